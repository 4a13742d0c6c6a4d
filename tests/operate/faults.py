"""Each fault as it happens: in a process, in the broker, in the database, on the disk. No metric is touched."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import aio_pika
import httpx
import numpy as np
from fleet import COLLECTION, Fleet, Producer, names, text

from dats_common.adapters.qdrant import open_qdrant
from dats_common.contracts.topology import COMMANDS_QUEUE, VALIDATED_QUEUE
from dats_common.domain import sparse
from dats_common.domain.model import ArtifactKey, ChunkRef, SourceMetadata
from dats_common.records import Point
from tests.operate.stage import Stage

DIMENSION = 384
_LOCKED_S, _FREE_S = 1.2, 0.05
_LONG_AGO_S = 3600.0


async def break_a_message(team: Producer) -> None:
    """Somebody publishes what is no event."""
    await team.publish("task.validated", {"data": {"artifact_id": "broken"}})


async def approve_after_a_taint(team: Producer) -> None:
    """A version without a time after a taint: nobody can say which came first."""
    [artifact_id] = names(1, prefix="unordered")
    await team.validated(artifact_id, text(artifact_id))
    await team.completed(artifact_id)
    await team.tainted(artifact_id, at=time.time())
    await team.invalidated(artifact_id)
    await team.validated(artifact_id, text(f"{artifact_id} again"))


async def drift(fleet: Fleet, lost: str) -> None:
    """Take a live artifact's points out of the index behind the ledger's back, and put in some that nobody knows."""
    key = ArtifactKey("default", lost)
    async with open_qdrant(collection=COLLECTION, host="127.0.0.1", grpc_port=fleet.engine_port) as index:
        await index.remove(key, sorted((await index.generations([key]))[key]))
        await index.store([_orphan(chunk) for chunk in range(3)])


def _orphan(chunk: int) -> Point:
    ref = ChunkRef(ArtifactKey("default", "nobody"), 987_654, chunk)
    vector = np.eye(1, DIMENSION, dtype=np.float32)[0]
    return Point(ref, SourceMetadata(project_id="proj-1"), vector, sparse.encode_document("a stray point"))


def fill_disk(stage: Stage) -> None:
    """Leave a twentieth of the first replica's disk."""
    assert stage.small_disk is not None
    left = os.statvfs(stage.small_disk)
    with (stage.small_disk / "ballast").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, left.f_frsize * (left.f_bavail - left.f_blocks // 20))


@asynccontextmanager
async def a_busy_table(fleet: Fleet) -> AsyncIterator[None]:
    """Somebody locks the chunks again and again, as a careless migration does: each search waits for it."""

    async def lock() -> None:
        async with fleet.ledger() as ledger:
            while True:
                async with ledger.transaction():
                    await ledger.execute("LOCK TABLE rag_chunks IN ACCESS EXCLUSIVE MODE")
                    await asyncio.sleep(_LOCKED_S)
                await asyncio.sleep(_FREE_S)

    locking = asyncio.create_task(lock())
    try:
        yield
    finally:
        locking.cancel()
        with suppress(asyncio.CancelledError):
            await locking


@asynccontextmanager
async def a_foreign_consumer(fleet: Fleet) -> AsyncIterator[None]:
    """A forgotten tool holds the single place of the work queues, so that writers wait behind it; writers must not run
    yet. It takes one message and never says what came of it."""
    async with await aio_pika.connect(fleet.amqp_url, timeout=10) as connection, connection.channel() as channel:
        await channel.set_qos(prefetch_count=1)
        for name in (VALIDATED_QUEUE, COMMANDS_QUEUE):
            queue = await channel.get_queue(name, ensure=False)
            await queue.consume(_keep)
        yield


async def _keep(message: aio_pika.abc.AbstractIncomingMessage) -> None:
    """Not a word to the broker."""


async def publish_an_old_event(team: Producer) -> str:
    """One that QA approved an hour ago and that nobody could deliver until now."""
    [artifact_id] = names(1, prefix="old")
    await team.validated(artifact_id, text(artifact_id), at=time.time() - _LONG_AGO_S)
    return artifact_id


async def withdraw(stage: Stage, artifact_id: str) -> None:
    """Over HTTP, which needs no broker; its event then waits in the outbox."""
    async with httpx.AsyncClient(timeout=10, trust_env=False) as client:
        response = await client.delete(f"{stage.fleet.replicas[-1].url}/api/v1/embeddings/{artifact_id}")
        assert response.status_code == httpx.codes.OK, response.text
