"""The state at the end: ledger, index, dead letters and queues, exactly, for the checker."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import aio_pika
import asyncpg
from fleet import COLLECTION, Fleet
from qdrant_client import AsyncQdrantClient

from dats_common.contracts.routing import RETRY_RUNGS_S, retry_queue
from dats_common.contracts.topology import DEAD_LETTERS_QUEUE, QUEUES
from tests.faults.chaos.content import versions
from tests.faults.chaos.load import ANSWERS_QUEUE

Snapshot = dict[str, Any]


async def take_snapshot(fleet: Fleet) -> Snapshot:
    """Everything that the checker needs besides the history; nothing may be moving any more."""
    async with fleet.ledger() as ledger:
        found = await _of_the_ledger(ledger)
    return {
        **found,
        "points": await _points(fleet),
        "dead_letters": await _dead_letters(fleet.amqp_url),
        "queues": await depths(fleet.amqp_url, ANSWERS_QUEUE),
        "stack_traces": {name: log.count("Traceback (") for name, log in fleet.logs().items() if "Traceback (" in log},
    }


async def _of_the_ledger(ledger: asyncpg.Connection) -> Snapshot:
    documents = await ledger.fetch("SELECT generation, artifact_id, body FROM rag_documents")
    of = versions(documents)
    live = await ledger.fetch(
        "SELECT artifact_id, live_generation FROM rag_artifacts WHERE live_generation IS NOT NULL"
    )
    chunks = await ledger.fetch("SELECT generation, count(*) AS count FROM rag_chunks GROUP BY generation")
    held = await ledger.fetch("SELECT body FROM rag_quarantine WHERE resolved_at IS NULL")
    return {
        "generations": {str(generation): list(found) for generation, found in of.items()},
        "live": {row["artifact_id"]: row["live_generation"] for row in live},
        "chunks": {str(row["generation"]): row["count"] for row in chunks},
        "quarantined": sorted(
            list(found)
            for found in versions([{"generation": n, "body": row["body"]} for n, row in enumerate(held)]).values()
        ),
        "pending": await ledger.fetchval("SELECT count(*) FROM rag_pending"),
        "outbox_unsent": await ledger.fetchval("SELECT count(*) FROM rag_outbox WHERE sent_at IS NULL"),
    }


async def _points(fleet: Fleet) -> list[list[Any]]:
    """Artifact, generation and chunk of every point that the index has."""
    client = AsyncQdrantClient(
        host="127.0.0.1",
        grpc_port=fleet.engine_port,
        https=False,
        prefer_grpc=True,
        timeout=30,
        check_compatibility=False,
        grpc_options={"grpc.enable_http_proxy": 0},
    )
    found: list[list[Any]] = []
    offset: Any = None
    try:
        while True:
            records, offset = await client.scroll(COLLECTION, limit=1000, offset=offset, with_payload=True)
            found += [[each.payload["artifact_id"], each.payload["gen"], each.payload["chunk_no"]] for each in records]  # type: ignore[index]
            if offset is None:
                return sorted(found)
    finally:
        await client.close()


async def _dead_letters(amqp_url: str) -> dict[str, int]:
    """How often each message lies there, by the id of its envelope."""
    found: Counter[str] = Counter()
    async with await aio_pika.connect(amqp_url, timeout=10) as connection, connection.channel() as channel:
        queue = await channel.get_queue(DEAD_LETTERS_QUEUE, ensure=False)
        while (letter := await queue.get(fail=False, no_ack=False)) is not None:
            found[_id(letter.body)] += 1  # Not acknowledged: it stays there.
    return dict(found)


def _id(body: bytes) -> str:
    read: Mapping[str, Any] = json.loads(body)
    return str(read.get("id"))


async def depths(amqp_url: str, *besides: str) -> dict[str, int]:
    """Messages that wait, of every queue of the service in which one may, and of those besides."""
    names = [*besides, *(queue.name for queue in QUEUES)]
    names += [retry_queue(queue.name, rung_s) for queue in QUEUES for rung_s in RETRY_RUNGS_S]
    async with await aio_pika.connect(amqp_url, timeout=10) as connection, connection.channel() as channel:
        declared = [await channel.declare_queue(name, passive=True) for name in names]
    return {each.name: each.declaration_result.message_count or 0 for each in declared}
