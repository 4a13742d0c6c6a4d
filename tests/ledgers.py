"""Ledgers for tests: one context manager for each database, a clock that tests move, and short ways to say things."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast
from urllib.parse import urlsplit

import asyncpg

from dats_common.adapters.sql.ledger import open_ledger
from dats_common.adapters.sql.row_security import Access
from dats_common.domain.access import LAPTOP
from dats_common.domain.model import (
    ArtifactKey,
    Chunk,
    ChunkRef,
    EventTime,
    Generation,
    Scope,
    SourceMetadata,
    Taint,
    Validated,
)
from dats_common.domain.taint import FlipVerdict, Verdict
from dats_common.ports import Ledger
from dats_common.records import Admission, GuardedRead, TaintReceipt

SECOND = 1_000_000
NOON = 1_767_268_800 * SECOND
"""2026-01-01 12:00 UTC, before any clock that runs these tests; claimed times count from here."""


@dataclass
class Clock:
    """The ledger's clock in the hands of a test; microseconds since 1970 UTC."""

    now: int = NOON

    def __call__(self) -> int:
        return self.now

    def pass_s(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)


@asynccontextmanager
async def fresh_database(server_url: str) -> AsyncIterator[str]:
    """URL of a new database on a PostgreSQL server; dropped afterwards."""
    name = f"ledger_{uuid.uuid4().hex[:12]}"
    admin = await asyncpg.connect(server_url, timeout=10)
    try:
        await admin.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        yield urlsplit(server_url)._replace(path=f"/{name}").geturl()
        await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        await admin.close()


class InAFleet:
    """A ledger on PostgreSQL whose calls are made as a fleet makes them: a replica's under a replica's role."""

    OF_A_REPLICA = frozenset(
        {"read", "still_live", "outcome", "counts", "heartbeat", "now", "ping", "kept", "relay", "announce"}
    )

    def __init__(self, writer: Ledger, replica: Ledger) -> None:
        self._writer = writer
        self._replica = replica

    def __getattr__(self, call: str) -> Any:
        return getattr(self._replica if call in self.OF_A_REPLICA else self._writer, call)

    async def taint(self, taint: Taint, *, skew_s: float) -> TaintReceipt:
        over_http = taint.tenant_id is not None  # only the bus brings a taint for all tenants
        return await (self._replica if over_http else self._writer).taint(taint, skew_s=skew_s)

    async def forget(self, keys: Sequence[ArtifactKey] | None = None) -> None:
        await (self._writer if keys is None else self._replica).forget(keys)


@asynccontextmanager
async def open_as_a_fleet(url: str) -> AsyncIterator[Ledger]:
    """The ledger at `url`; on PostgreSQL under both roles."""
    async with open_ledger(url) as writer:
        if url.startswith("sqlite"):
            yield writer
            return
        async with open_ledger(url, access=Access("query")) as replica:
            yield cast(Ledger, InAFleet(writer, replica))


def key(artifact_id: str = "a", tenant_id: str = "default") -> ArtifactKey:
    return ArtifactKey(tenant_id, artifact_id)


def metadata(**changes: Any) -> SourceMetadata:
    return replace(SourceMetadata(project_id="p", scope=Scope.PROJECT), **changes)


def validated(
    artifact: ArtifactKey | str = "a",
    content: str = "one content",
    *,
    at_s: float | None = None,
    own_clock: bool = False,
    source: SourceMetadata | None = None,
) -> Validated:
    """A validated event, `at_s` seconds after noon by its producer's clock; bare without it."""
    artifact = key(artifact) if isinstance(artifact, str) else artifact
    claimed = None if at_s is None else NOON + round(at_s * SECOND)
    return Validated(artifact, content, source or metadata(), EventTime(claimed, own_clock), f"{content}@{at_s}")


def tainted(
    *artifact_ids: str,
    at_s: float | None = None,
    tenant_id: str | None = "default",
    own_clock: bool = False,
    event_id: str | None = None,
) -> Taint:
    claimed = None if at_s is None else NOON + round(at_s * SECOND)
    return Taint(tenant_id, artifact_ids, EventTime(claimed, own_clock), "cascade", "wrong", event_id)


def cut(content: str, *, parts: int = 2) -> list[Chunk]:
    """`content` in `parts` chunks, ten tokens each."""
    edges = [round(i * len(content) / parts) for i in range(parts + 1)]
    return [Chunk(index, content[start:end], 10, start, end) for index, (start, end) in enumerate(pairwise(edges))]


def refs_of(generation: Generation, *, parts: int = 2) -> list[ChunkRef]:
    return [ChunkRef(generation.key, generation.number, index) for index in range(parts)]


class Writer:
    """V1, chunk rows and V4 as the pipeline calls them, without an index."""

    def __init__(self, ledger: Ledger, epoch: int) -> None:
        self.ledger = ledger
        self.epoch = epoch

    @classmethod
    async def of(cls, ledger: Ledger, writer_id: str = "w") -> Writer:
        return cls(ledger, await ledger.activate(writer_id))

    async def admit(self, event: Validated) -> Admission:
        return (await self.ledger.admit([event], epoch=self.epoch))[0]

    async def prepare(self, event: Validated, *, parts: int = 2) -> Admission:
        """V1 to V3: the generation is pending and its chunks are written."""
        admission = await self.admit(event)
        assert admission.verdict is Verdict.EMBED, admission.verdict
        assert admission.generation is not None
        await self.ledger.write_chunks(
            {admission.generation: cut(event.content, parts=parts)}, embedding_model="test-model"
        )
        return admission

    async def flip(self, admission: Admission) -> FlipVerdict:
        return (await self.ledger.flip([admission], epoch=self.epoch))[0]

    async def publish(self, event: Validated, *, parts: int = 2) -> Generation:
        """V1 to V4; the event must become live."""
        admission = await self.prepare(event, parts=parts)
        assert await self.flip(admission) is FlipVerdict.LIVE
        assert admission.generation is not None
        return admission.generation


async def text_of(ledger: Ledger, refs: Sequence[ChunkRef], **principal: Any) -> str | None:
    """What the guard hands out of `refs`, joined; None if it hands out nothing."""
    read: GuardedRead = await ledger.read(refs, replace(LAPTOP, **principal))
    return "".join(read.passages[ref].text for ref in refs if ref in read.passages) or None


async def live_of(ledger: Ledger, refs: Sequence[ChunkRef]) -> frozenset[ChunkRef]:
    """Those that are live, asked on behalf of each one's own tenant."""
    live: frozenset[ChunkRef] = frozenset()
    for tenant_id in {ref.key.tenant_id for ref in refs}:
        own = [ref for ref in refs if ref.key.tenant_id == tenant_id]
        live |= await ledger.still_live(own, replace(LAPTOP, tenant_id=tenant_id))
    return live


async def version_of(ledger: Ledger, ref: ChunkRef) -> float:
    """The version under which `ref` is live, in seconds after noon."""
    return ((await ledger.read([ref], LAPTOP)).passages[ref].version - NOON) / SECOND


async def outcome_of(ledger: Ledger, artifact_id: str = "a", *, at_s: float) -> str:
    """What became of the event at `at_s`."""
    return (await ledger.outcome(key(artifact_id), at=NOON + round(at_s * SECOND))).status


class Inbox:
    """A `Publish` that remembers; `fail` makes it refuse."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Mapping[str, Any], str]] = []
        self.fail: Exception | None = None

    async def __call__(self, routing_key: str, body: Mapping[str, Any], *, event_id: str) -> None:
        if self.fail is not None:
            raise self.fail
        self.events.append((routing_key, body, event_id))

    def data(self, routing_key: str) -> list[Mapping[str, Any]]:
        return [body["data"] for name, body, _ in self.events if name == routing_key]


async def relayed(ledger: Ledger) -> Inbox:
    """Everything the outbox holds, published now."""
    inbox = Inbox()
    while await ledger.relay(inbox, limit=100):
        pass
    return inbox
