"""The promises of the service, held by real processes: two replicas and two writers over RabbitMQ, PostgreSQL and the
embedded engine. `DATS_TEST_EVENTS` sets how many events the crash test sends (150), `DATS_TEST_DOCUMENTS` how many are
indexed while artifacts are tainted (200)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from fleet import (
    Child,
    Fleet,
    Producer,
    create_database,
    eventually,
    names,
    producer,
    published,
    purge,
    search,
    shown,
    text,
)
from servers import PostgresServer, RabbitNode, RabbitServer, wait_until

from dats_common.clients.rag import RAGClient

pytestmark = [pytest.mark.rabbitmq, pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(900)]

EVENTS = int(os.environ.get("DATS_TEST_EVENTS", "150"))
DOCUMENTS = int(os.environ.get("DATS_TEST_DOCUMENTS", "200"))
STREAM_TIMEOUT_S = 60.0 + 0.5 * max(EVENTS, DOCUMENTS)


@pytest.fixture(scope="module")
def fleet(
    rabbitmq: RabbitServer, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    async def prepare() -> str:
        await purge(rabbitmq.url)
        return await create_database(postgres.url)

    started = Fleet(tmp_path_factory.mktemp("fleet"), sql_url=asyncio.run(prepare()), amqp_url=rabbitmq.url)
    try:
        started.start()
        yield started
    finally:
        started.end()


@pytest.fixture
async def replicas(fleet: Fleet) -> AsyncIterator[list[httpx.AsyncClient]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(replica.client()) for replica in fleet.replicas[:2]]


@pytest.fixture
async def team(fleet: Fleet) -> AsyncIterator[Producer]:
    async with producer(fleet.amqp_url) as found:
        yield found


@pytest.fixture
def node(rabbitmq: RabbitServer) -> RabbitNode:
    if not isinstance(rabbitmq, RabbitNode):
        pytest.skip("the broker that was named cannot be stopped")
    return rabbitmq


# ------------------------------------------------------------------------------------------------ what spec 1 shows


async def test_bare_messages_of_a_plain_amqp_client_are_answered(
    team: Producer, replicas: list[httpx.AsyncClient]
) -> None:
    (artifact,) = names(1)
    metadata = {"provenance_id": "prov-1", "task_id": "task-1", "project_id": "proj-1", "domain": "code.python"}
    data = {"artifact_id": artifact, "content": text(artifact), "metadata": {**metadata, "verified": True}}
    await team.publish("task.validated", {"data": data})
    await team.completed(artifact)
    (completed,) = team.data("embedding.completed")
    assert completed["chunks"] == 1
    assert completed["status"] == "indexed"
    assert [shown(await search(client, artifact)) for client in replicas] == [{artifact}] * 2

    await team.publish("artifact.tainted", {"data": {"artifact_ids": [artifact], "cascade_id": "cascade-1"}})
    await team.invalidated(artifact)
    (invalidated,) = team.data("embedding.invalidated")
    assert invalidated["cascade_id"] == "cascade-1"
    assert invalidated["chunks_removed"] == 1
    assert [shown(await search(client, artifact)) for client in replicas] == [set()] * 2


async def test_embed_then_query(replicas: list[httpx.AsyncClient]) -> None:
    client = replicas[0]
    # Source: spec 1, "Integration Tests"; unchanged from here.
    # Embed content
    embed_response = await client.post(
        "/api/v1/embed",
        json={
            "content": "def hello(): return 'world'",
            "metadata": {"artifact_id": "test-123", "project_id": "proj-1"},
        },
    )
    assert embed_response.status_code == 200

    # Query for it
    query_response = await client.post(
        "/api/v1/query",
        json={"query": "hello function"},
    )
    assert query_response.status_code == 200
    assert "hello" in query_response.json()["context"]


@pytest.fixture
async def engine(fleet: Fleet) -> AsyncIterator[RAGClient]:
    async with RAGClient(base_url=f"{fleet.replicas[0].url}/api/v1") as client:
        await client.embed(
            "def fibonacci(n):\n    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)",
            {"artifact_id": "fibonacci", "project_id": "proj-1", "domain": "code.python"},
        )
        yield client


@pytest.fixture
async def tainted_artifacts(engine: RAGClient) -> list[str]:
    ids = ["tainted-1", "tainted-2"]
    for artifact in ids:
        await engine.embed(f"A test query about {artifact}", {"artifact_id": artifact, "project_id": "proj-1"})
    await engine.embed("A test query that stays", {"artifact_id": "stays", "project_id": "proj-1"})
    assert {source.artifact_id for source in (await engine.query(query="test query")).sources} >= {*ids, "stays"}
    await engine.batch_invalidate(ids)
    return ids


async def test_hybrid_search(engine: RAGClient) -> None:
    # Source: spec 1, "Unit Tests"; unchanged from here.
    result = await engine.query(
        query="fibonacci implementation",
        search_mode="hybrid",
    )
    assert result.context != ""
    assert len(result.sources) > 0


async def test_filters_exclude_tainted(engine: RAGClient, tainted_artifacts: list[str]) -> None:
    TAINTED_ARTIFACTS = tainted_artifacts  # noqa: N806 - spec 1's name
    # Source: spec 1, "Unit Tests"; unchanged from here.
    result = await engine.query(
        query="test query",
        filters={"exclude_tainted": True},
    )
    for source in result.sources:
        assert source.artifact_id not in TAINTED_ARTIFACTS
    # Ours: the loop above was not empty.
    assert "stays" in {source.artifact_id for source in result.sources}


# ------------------------------------------------------------------------------------------------------ the promise


class Watch:
    """Readers that ask one replica after the other all the time, and what each answer showed."""

    def __init__(self, replicas: list[httpx.AsyncClient], ids: list[str]) -> None:
        self.looks: list[tuple[int, float, set[str]]] = []  # replica, start of the query, ids shown
        self.acknowledged: dict[str, float] = {}
        self._replicas = replicas
        self._ids = ids
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Watch:
        for number, client in enumerate(self._replicas):
            self._tasks.append(asyncio.create_task(self._look(number, client), name=f"reader-{number}"))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        for ended in await asyncio.gather(*self._tasks, return_exceptions=True):
            assert isinstance(ended, asyncio.CancelledError), ended

    async def _look(self, number: int, client: httpx.AsyncClient) -> None:
        while True:
            started = time.monotonic()
            self.looks.append((number, started, shown(await search(client, *self._ids))))

    def acknowledge(self, *artifact_ids: str) -> None:
        self.acknowledged.update(dict.fromkeys(artifact_ids, time.monotonic()))

    async def more(self, looks: int = 3) -> None:
        """Wait until each replica was asked a few times more, by queries that start from now on."""
        since = time.monotonic()

        async def done() -> bool:
            asked = Counter(number for number, started, _ in self.looks if started > since)
            return all(asked[number] >= looks for number in range(len(self._replicas)))

        await eventually(done, what="more looks", pause_s=0.01)

    def stale(self) -> list[tuple[int, str, float]]:
        """Queries that showed an artifact although they started after the acknowledgement of its taint."""
        return [
            (number, artifact, started - self.acknowledged[artifact])
            for number, started, ids in self.looks
            for artifact in ids & self.acknowledged.keys()
            if started > self.acknowledged[artifact]
        ]

    def seen_before(self, artifact: str) -> set[int]:
        """The replicas that showed it while they still might."""
        return {number for number, started, ids in self.looks if artifact in ids}


@pytest.mark.parametrize("load", ["idle", "while documents are being indexed"])
async def test_no_query_on_any_replica_that_starts_after_the_acknowledgement_sees_a_tainted_artifact(
    load: str, fleet: Fleet, team: Producer, replicas: list[httpx.AsyncClient]
) -> None:
    ids = names(12, prefix="tainted")
    for artifact in ids:
        await team.validated(artifact, text(artifact))
    await fleet.all_live(ids)
    others = [] if load == "idle" else names(DOCUMENTS, prefix="load")
    async with Watch(replicas, ids) as watch:
        await watch.more()
        for artifact in others:
            await team.validated(artifact, text(artifact))
        by_http, by_event = ids[: len(ids) // 2], ids[len(ids) // 2 :]
        for over_http, over_amqp in zip(by_http, by_event, strict=True):
            response = await replicas[0].delete(f"/api/v1/embeddings/{over_http}")
            watch.acknowledge(over_http)
            assert response.json() == {"artifact_id": over_http, "removed_chunks": 1, "status": "invalidated"}
            await team.tainted(over_amqp)
            await team.invalidated(over_amqp)
            watch.acknowledge(over_amqp)
            await watch.more(1)
        if others:
            assert len(await fleet.live(others)) < len(others), "the load was over before the last taint"
        await watch.more()
    assert watch.stale() == []
    assert all(watch.seen_before(artifact) == {0, 1} for artifact in ids)
    await fleet.all_live(others, timeout_s=STREAM_TIMEOUT_S)


async def test_a_taint_that_arrives_before_its_validated_wins(
    fleet: Fleet, team: Producer, replicas: list[httpx.AsyncClient]
) -> None:
    first, later, witness = names(3)
    now = time.time()
    await team.tainted(first, at=now)
    await team.invalidated(first)
    response = await replicas[1].delete(f"/api/v1/embeddings/{later}")
    assert response.json()["removed_chunks"] == 0
    await team.validated(first, text(first), at=now - 100)
    await team.validated(later, text(later), at=now - 100)
    await team.validated(witness, text(witness), at=now - 100)
    await fleet.all_live([witness])
    assert [shown(await search(client, first, later, witness)) for client in replicas] == [{witness}] * 2


# ------------------------------------------------------------------------------------------------ versions and copies


async def test_a_new_version_replaces_the_old_in_one_step(
    fleet: Fleet, team: Producer, replicas: list[httpx.AsyncClient]
) -> None:
    (artifact,) = names(1)
    versions = 6
    start = time.time() - 1000

    def version(number: int) -> str:
        sentence = f"Paragraph of release{number} about invoices, approvals and the ledger report. "
        return "\n\n".join(sentence * 8 for _ in range(4))

    async def publish(number: int) -> None:
        await team.validated(artifact, version(number), at=start + number)

    await publish(0)
    await fleet.all_live([artifact])
    chunks = len((await search(replicas[0], artifact))["sources"])
    assert chunks > 1
    looks: list[list[tuple[set[int], int]]] = [[], []]

    async def read(number: int, client: httpx.AsyncClient) -> None:
        while True:
            answer = await search(client, artifact)
            found = {each for each in range(versions) if f"release{each}" in answer["context"]}
            looks[number].append((found, len(answer["sources"])))

    readers = [asyncio.create_task(read(number, client)) for number, client in enumerate(replicas)]
    for number in range(1, versions):
        generation = (await fleet.live([artifact]))[artifact]
        await publish(number)

        async def replaced(old: int = generation) -> bool:
            return (await fleet.live([artifact]))[artifact] != old

        await eventually(replaced, what="the next version", pause_s=0.02)
    count = [len(look) for look in looks]

    async def read_on() -> bool:
        return all(len(look) > before + 1 for look, before in zip(looks, count, strict=True))

    await eventually(read_on, what="a look after the last version")
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    for seen in looks:
        assert {len(found) for found, _ in seen} == {1}, "neither, or two versions in one answer"
        assert {parts for _, parts in seen} == {chunks}, "a part of a version"
        order = [min(found) for found, _ in seen]
        assert order == sorted(order), "an old version came back"
        assert order[-1] == versions - 1


async def test_a_repeated_event_and_unchanged_content_write_nothing(fleet: Fleet, team: Producer) -> None:
    (artifact,) = names(1)
    now = time.time()
    for _ in range(4):
        await team.validated(artifact, text(artifact), at=now - 50)
    await fleet.all_live([artifact])
    await team.validated(artifact, text(artifact), at=now - 40)

    async def moved() -> bool:
        return len([data for data in team.data("embedding.completed") if data["status"] == "unchanged"]) == 1

    await eventually(moved, what="the unchanged version's completed")
    async with fleet.ledger() as ledger:
        made = await ledger.fetchval("SELECT count(*) FROM rag_documents WHERE artifact_id = $1", artifact)
    assert made == 1
    assert await fleet.indexed([artifact]) == {artifact: {(await fleet.live([artifact]))[artifact]}}


# ------------------------------------------------------------------------------------------------------------ crashes


async def assert_live_exactly_once(fleet: Fleet, team: Producer, client: httpx.AsyncClient, ids: list[str]) -> None:
    """Ledger, index and searches agree: each artifact live, with the points of one generation, shown once."""
    live = await fleet.live(ids)
    assert live.keys() == {*ids}
    expected = {artifact: {generation} for artifact, generation in live.items()}

    async def swept() -> bool:
        return await fleet.indexed(ids) == expected

    await eventually(swept, what="an index without dead generations", pause_s=0.3)
    for start in range(0, len(ids), 50):
        part = ids[start : start + 50]
        times = Counter((each["artifact_id"], each["chunk_index"]) for each in (await search(client, *part))["sources"])
        assert times == dict.fromkeys(((artifact, 0) for artifact in part), 1)
    await team.completed(*ids)
    completed = {(data["artifact_id"], data["generation"]) for data in team.data("embedding.completed")}
    assert {pair for pair in completed if pair[0] in live} == set(live.items())


async def in_the_middle(fleet: Fleet, team: Producer, ids: list[str]) -> Child:
    """Publish these events; the active writer, in the middle of them."""
    (first,) = names(1)
    await team.validated(first, text(first))
    await fleet.all_live([first])
    active: list[Child] = []

    async def known() -> bool:
        active[:] = filter(None, [await fleet.active_writer()])
        return bool(active)

    await eventually(known, what="an active writer")
    for artifact in ids:
        await team.validated(artifact, text(artifact), at=time.time() - 200)

    async def begun() -> bool:
        return len(await fleet.live(ids)) >= len(ids) // 8

    await eventually(begun, what="a part of the events", pause_s=0.02)
    return active[0]


async def test_the_standby_goes_on_when_the_active_writer_is_killed(
    fleet: Fleet, team: Producer, replicas: list[httpx.AsyncClient]
) -> None:
    ids = names(EVENTS)
    active = await in_the_middle(fleet, team, ids)
    active.kill9()
    assert len(await fleet.live(ids)) < len(ids), "the writer was done before it was killed"
    await fleet.all_live(ids, timeout_s=STREAM_TIMEOUT_S)
    await assert_live_exactly_once(fleet, team, replicas[0], ids)
    fleet.revive()


async def test_a_writer_that_hung_and_comes_back_changes_nothing_any_more(
    fleet: Fleet, team: Producer, replicas: list[httpx.AsyncClient]
) -> None:
    ids = names(EVENTS // 2)
    gone = ids[-1]
    active = await in_the_middle(fleet, team, ids)
    active.pause()
    try:
        assert len(await fleet.live(ids)) < len(ids), "the writer was done before it was paused"
        await team.tainted(gone, at=time.time())
        stay = [artifact for artifact in ids if artifact != gone]
        await fleet.all_live(stay, timeout_s=STREAM_TIMEOUT_S)  # the broker finds the hung one by its heartbeat
        await team.invalidated(gone)
    finally:
        active.resume()
    (witness,) = names(1)
    await team.validated(witness, text(witness))
    await team.completed(witness)
    assert await fleet.live([gone]) == {}
    await assert_live_exactly_once(fleet, team, replicas[0], stay)
    assert active.is_running


async def test_a_writer_that_is_asked_to_stop_finishes_what_it_has_in_hand(
    fleet: Fleet, team: Producer, replicas: list[httpx.AsyncClient]
) -> None:
    ids = names(EVENTS // 2)
    active = await in_the_middle(fleet, team, ids)
    fenced_before = active.log.read_text().count("another writer")  # it may be the one that hung, of the test before
    assert await asyncio.to_thread(active.stop) == 0
    assert active.said("stopped") == 1
    assert active.log.read_text().count("another writer") == fenced_before, "what was in hand was fenced"
    await fleet.all_live(ids, timeout_s=STREAM_TIMEOUT_S)
    await assert_live_exactly_once(fleet, team, replicas[0], ids)
    fleet.revive()


async def test_a_restart_of_the_broker_in_the_middle_loses_nothing(
    fleet: Fleet, node: RabbitNode, replicas: list[httpx.AsyncClient]
) -> None:
    ids = names(EVENTS // 2)
    async with producer(fleet.amqp_url) as before:
        await in_the_middle(fleet, before, ids)
        assert len(await fleet.live(ids)) < len(ids), "the writer was done before the broker stopped"
        await asyncio.to_thread(node.stop)
    async with AsyncExitStack() as stack:
        await asyncio.to_thread(node.start)
        after = await stack.enter_async_context(producer(fleet.amqp_url))
        await fleet.all_live(ids, timeout_s=STREAM_TIMEOUT_S)
        live = await fleet.live(ids)

        async def swept() -> bool:
            return await fleet.indexed(ids) == {artifact: {generation} for artifact, generation in live.items()}

        await eventually(swept, what="an index without dead generations", pause_s=0.3)
        assert shown(await search(replicas[0], *ids[:50])) == {*ids[:50]}
        (fresh,) = names(1)
        await after.validated(fresh, text(fresh))
        await after.completed(fresh)


async def test_a_taint_needs_no_broker_a_replica_starts_without_one_and_a_writer_waits_for_it(
    fleet: Fleet, node: RabbitNode, team: Producer, replicas: list[httpx.AsyncClient]
) -> None:
    gone, stays = names(2)
    for artifact in (gone, stays):
        await team.validated(artifact, text(artifact))
    await fleet.all_live([gone, stays])
    await team.completed(gone, stays)
    await asyncio.to_thread(node.stop)
    started = time.monotonic()
    response = await replicas[0].delete(f"/api/v1/embeddings/{gone}")
    took_s = time.monotonic() - started
    assert response.json()["removed_chunks"] == 1
    assert took_s < 2.0
    assert [shown(await search(client, gone, stays)) for client in replicas] == [{stays}] * 2

    refused = await replicas[0].post(
        "/api/v1/embed", json={"content": text(gone), "metadata": {"artifact_id": gone, "project_id": "p"}}
    )
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0
    health = (await replicas[0].get("/api/v1/health")).json()
    assert health["status"] == "degraded"
    assert health["components"]["broker"]["status"] == "unavailable"

    newcomer, patient = fleet.add_replica(), fleet.add_writer()
    await asyncio.to_thread(wait_until, lambda: newcomer.is_ready, timeout_s=60, what="a replica without a broker")
    async with newcomer.client() as client:
        assert shown(await search(client, gone, stays)) == {stays}
    await asyncio.to_thread(node.start)
    async for data in published(fleet.amqp_url, event="embedding.invalidated"):
        if gone in data["artifact_ids"]:
            break
    else:
        pytest.fail("the event was never published")
    await asyncio.to_thread(fleet.wait_until_up)
    assert patient.said("broker_waited") > 0
    for child in (fleet.replicas.pop(), fleet.writers.pop()):
        assert await asyncio.to_thread(child.stop) == 0

    async def healthy() -> bool:
        return bool((await replicas[0].get("/api/v1/health")).json()["status"] == "healthy")

    await eventually(healthy, what="health after the broker's return")


# ------------------------------------------------------------------------------------------------------------ restarts


LIBRARY = {
    "library/ledger": "The ledger report lists invoices and approvals. " * 40,
    "library/fibonacci": "def fibonacci(n):\n    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)",
    "library/hello": "def hello(): return 'world'",
}


async def answers(fleet: Fleet) -> list[Any]:
    """Results of some searches in every mode, without ids and latencies of the request."""
    found = []
    async with fleet.replicas[0].client() as client:
        for artifact, content in LIBRARY.items():
            metadata = {"artifact_id": artifact, "project_id": "library"}
            embedded = await client.post("/api/v1/embed", json={"content": content, "metadata": metadata})
            assert embedded.status_code == 200
        for mode in ("vector", "keyword", "hybrid"):
            for query in ("ledger report invoices", "fibonacci implementation", "hello function"):
                answer = await search(client, query=query, search_mode=mode, project_id="library")
                assert answer["sources"]
                found.append((mode, query, answer["sources"], answer["context"], answer["tokens_used"]))
    return found


async def test_after_a_restart_of_everything_the_index_is_there(fleet: Fleet) -> None:
    before = await answers(fleet)
    await asyncio.to_thread(fleet.stop)
    await asyncio.to_thread(fleet.revive)
    assert await answers(fleet) == before


async def test_reindex_rebuilds_a_lost_index_from_the_ledger(fleet: Fleet) -> None:
    before = await answers(fleet)
    await asyncio.to_thread(fleet.stop)
    fleet.delete_index()
    fleet.start_engine()
    rebuilt = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "services.cli", "reindex"],
        env=fleet.environment,
        cwd=fleet.base,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert rebuilt.returncode == 0, rebuilt.stderr
    await asyncio.to_thread(fleet.revive)
    assert await answers(fleet) == before


def test_no_process_logged_a_stack_trace_or_content(fleet: Fleet) -> None:
    told = {name: log for name, log in fleet.logs().items() if "Traceback" in log or "describes invoices" in log}
    assert told == {}
    assert {Path(name).stem.split(".")[0] for name in fleet.logs()} >= {"engine", "writer-0", "writer-1", "replica-0"}
