"""A taint needs the ledger and nothing else: writer, broker and index are all stopped while it is acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
from fleet import Fleet, create_database, eventually, names, producer, published, search, shown, text
from servers import PostgresServer, RabbitNode

pytestmark = [pytest.mark.rabbitmq, pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
async def node(tmp_path: Path, rabbitmq: object) -> AsyncIterator[RabbitNode]:
    """A broker of this test's own: the shared one is not stopped under others."""
    started = RabbitNode(tmp_path / "node")
    try:
        await asyncio.to_thread(started.start)
        yield started
    finally:
        await asyncio.to_thread(started.end)


@pytest.fixture
async def fleet(node: RabbitNode, postgres: PostgresServer, tmp_path: Path) -> AsyncIterator[Fleet]:
    base = tmp_path / "fleet"
    base.mkdir()
    started = Fleet(base, sql_url=await create_database(postgres.url), amqp_url=node.url)
    try:
        await asyncio.to_thread(started.start, writers=1, replicas=2)
        yield started
    finally:
        started.end()


async def test_a_taint_with_writer_broker_and_index_stopped_is_seen_by_no_replica_when_the_index_is_back(
    fleet: Fleet, node: RabbitNode
) -> None:
    gone, also_gone, stays = names(3)
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(replica.client()) for replica in fleet.replicas]
        async with producer(fleet.amqp_url) as team:
            for artifact in (gone, also_gone, stays):
                await team.validated(artifact, text(artifact))
            await team.completed(gone, also_gone, stays)
        everything = {gone, also_gone, stays}
        assert [shown(await search(client, *everything)) for client in replicas] == [everything] * 2

        (writer,), engine = fleet.writers, fleet.engine
        assert engine is not None
        assert await asyncio.to_thread(writer.stop) == 0
        await asyncio.to_thread(node.stop)
        await asyncio.to_thread(engine.kill9)

        alone = await replicas[0].delete(f"/api/v1/embeddings/{gone}")
        assert (alone.status_code, alone.json()["removed_chunks"]) == (200, 1)
        together = await replicas[1].post("/api/v1/embeddings/batch-invalidate", json={"artifact_ids": [also_gone]})
        assert (together.status_code, together.json()["chunks_removed"]) == (200, 1)
        assert {await _status(client, gone) for client in replicas} == {503}

        await asyncio.to_thread(fleet.start_engine)
        for client in replicas:
            await eventually(lambda one=client: _answers(one), what="the index's return")  # type: ignore[misc]
        # The points are still there: nobody was up to sweep them. Only the guard stands between them and a reader.
        assert (await fleet.indexed([gone, also_gone])).keys() == {gone, also_gone}
        assert [shown(await search(client, *everything)) for client in replicas] == [{stays}] * 2

        await asyncio.to_thread(node.start)
        await asyncio.to_thread(fleet.revive)
        announced: set[str] = set()
        async for data in published(fleet.amqp_url, event="embedding.invalidated"):
            announced |= set(data["artifact_ids"])
            if announced >= {gone, also_gone}:
                break
        assert announced >= {gone, also_gone}


async def _status(client: httpx.AsyncClient, artifact: str) -> int:
    body = {"query": "ledger report invoices", "filters": {"artifact_ids": [artifact]}}
    return (await client.post("/api/v1/query", json=body)).status_code


async def _answers(client: httpx.AsyncClient) -> bool:
    return (await client.get("/api/v1/health/ready")).status_code == 200
