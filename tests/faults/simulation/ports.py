"""The ports of a simulated process: the real ledger, the twins of bus and index, and a named point at every call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

from dats_common.adapters.memory_bus import MemoryBus, MemorySubscription
from dats_common.adapters.memory_index import MemoryIndex
from dats_common.adapters.sql.engine import Database
from dats_common.adapters.sql.ledger import SqlLedger
from dats_common.domain.model import ArtifactKey, Chunk, ChunkRef, Generation, Taint, Validated
from dats_common.domain.taint import FlipVerdict
from dats_common.errors import BrokerUnavailable, IndexUnavailable, LedgerUnavailable
from dats_common.ports import Publish, Subscription
from dats_common.records import Admission, Candidate, Delivery, Fingerprint, Point, TaintReceipt
from tests.faults.simulation.faults import Kind


class Points(Protocol):
    """What the ports ask of their process."""

    async def reach(self, point: str) -> Kind | None:
        """Whatever is planned here happens. Returns the kind if it is the call that is to go wrong."""

    async def latency(self) -> None:
        """A moment in which others go on."""

    def away(self, what: str) -> bool:
        """Whether `ledger`, `index` or `broker` does not answer now."""

    def later(self, apply: Callable[[], Awaitable[None]]) -> None:
        """Have something applied after this call has failed."""

    def admitted(self, admissions: Sequence[Admission]) -> None:
        """For the record: which generation is whose."""

    def removing(self, key: ArtifactKey, generations: Sequence[int]) -> None:
        """For the record: a delete was sent."""

    def tainted(self, taint: Taint) -> None:
        """For the record: T1 was committed."""

    def published(self, routing_key: str, body: Mapping[str, Any]) -> None:
        """For the record: the broker has confirmed."""

    def connected(self, subscription: MemorySubscription) -> None:
        """The process has a consumer."""


class SimLedger(SqlLedger):
    """The production ledger with a point before and after each call."""

    def __init__(self, database: Database, points: Points) -> None:
        super().__init__(database)
        self.points = points

    async def _before(self, call: str) -> None:
        if self.points.away("ledger"):
            raise LedgerUnavailable("the ledger is away")
        if await self.points.reach(f"{call}.before") is Kind.REFUSED:
            raise LedgerUnavailable(f"{call} was refused")

    async def _after(self, call: str) -> None:
        if await self.points.reach(f"{call}.after") is Kind.UNCONFIRMED:
            raise LedgerUnavailable(f"{call} was not confirmed")

    async def activate(self, writer_id: str) -> int:
        await self._before("activate")
        epoch = await super().activate(writer_id)
        await self._after("activate")
        return epoch

    async def admit(self, events: Sequence[Validated], *, epoch: int) -> list[Admission]:
        await self._before("admit")
        admissions = await super().admit(events, epoch=epoch)
        self.points.admitted(admissions)
        await self._after("admit")
        return admissions

    async def write_chunks(self, documents: Mapping[Generation, Sequence[Chunk]], *, embedding_model: str) -> None:
        await self._before("write_chunks")
        await super().write_chunks(documents, embedding_model=embedding_model)
        await self._after("write_chunks")

    async def flip(self, admissions: Sequence[Admission], *, epoch: int) -> list[FlipVerdict]:
        await self._before("flip")
        verdicts = await super().flip(admissions, epoch=epoch)
        await self._after("flip")
        return verdicts

    async def abandon(self, generations: Sequence[int]) -> None:
        await self._before("abandon")
        await super().abandon(generations)
        await self._after("abandon")

    async def taint(self, taint: Taint, *, skew_s: float) -> TaintReceipt:
        await self._before("taint")
        receipt = await super().taint(taint, skew_s=skew_s)
        self.points.tainted(taint)
        await self._after("taint")
        return receipt

    async def relay(self, publish: Publish, *, limit: int) -> int:
        await self._before("relay")
        sent = await super().relay(publish, limit=limit)
        await self._after("relay")
        return sent

    async def kept(self, keys: Sequence[ArtifactKey]) -> dict[ArtifactKey, set[int]]:
        await self._before("kept")
        keep = await super().kept(keys)
        await self._after("kept")
        return keep

    async def forget(self, keys: Sequence[ArtifactKey] | None = None) -> None:
        await self._before("forget")
        await super().forget(keys)
        await self._after("forget")

    async def ping(self) -> None:
        if self.points.away("ledger"):
            raise LedgerUnavailable("the ledger is away")


class SharedIndex(MemoryIndex):
    """The index that all processes share; what it holds can be looked at."""

    def __init__(self, stored: Callable[[set[int]], None]) -> None:
        """Args: stored: told the generations of points whenever some arrive."""
        super().__init__()
        self._stored = stored

    async def store(self, points: Sequence[Point]) -> None:
        await super().store(points)
        self._stored({point.ref.generation for point in points})

    def chunk_numbers(self, generation: int) -> set[int]:
        """Numbers of the chunks that have a point."""
        return {ref.chunk_index for ref in self._points if ref.generation == generation}

    def all_generations(self) -> set[tuple[ArtifactKey, int]]:
        """What has points."""
        return {(ref.key, ref.generation) for ref in self._points}


class SimIndex:
    """A process' connection to the index: a request may be lost, done in part, done unheard, or done long after."""

    def __init__(self, shared: SharedIndex, points: Points) -> None:
        self.shared = shared
        self.points = points

    def _check(self) -> None:
        if self.points.away("index"):
            raise IndexUnavailable("the index is away")

    async def prepare(self, fingerprint: Fingerprint) -> None:
        await self.shared.prepare(fingerprint)

    async def store(self, points: Sequence[Point]) -> None:
        self._check()
        await self.points.latency()
        match await self.points.reach("store.before"):
            case Kind.REFUSED:
                raise IndexUnavailable("the upsert was lost")
            case Kind.PARTIAL:
                await self.shared.store(points[: len(points) // 2])
                raise IndexUnavailable("the upsert was done in part")
            case Kind.LATE:
                self.points.later(lambda: self.shared.store(points))
                raise IndexUnavailable("the upsert will be late")
        await self.shared.store(points)
        if await self.points.reach("store.after") is Kind.UNCONFIRMED:
            raise IndexUnavailable("the upsert was not confirmed")
        await self.points.latency()

    async def search(self, **asked: Any) -> list[Candidate]:
        self._check()
        await self.points.latency()
        found = await self.shared.search(**asked)
        await self.points.latency()
        return found

    async def generations(self, keys: Sequence[ArtifactKey]) -> dict[ArtifactKey, set[int]]:
        self._check()
        if await self.points.reach("generations.before") is Kind.REFUSED:
            raise IndexUnavailable("the index was not asked")
        found = await self.shared.generations(keys)
        await self.points.latency()
        if await self.points.reach("generations.after") is Kind.UNCONFIRMED:
            raise IndexUnavailable("the index did not answer")
        return found

    async def scan(self) -> AsyncIterator[dict[ArtifactKey, set[int]]]:
        self._check()
        async for page in self.shared.scan():
            await self.points.reach("generations.after")
            await self.points.latency()
            yield page

    async def remove(self, key: ArtifactKey, generations: Sequence[int]) -> None:
        self._check()
        await self.points.latency()
        match await self.points.reach("remove.before"):
            case Kind.REFUSED:
                raise IndexUnavailable("the delete was lost")
            case Kind.LATE:
                self.points.removing(key, generations)
                self.points.later(lambda: self.shared.remove(key, generations))
                raise IndexUnavailable("the delete will be late")
        self.points.removing(key, generations)
        await self.shared.remove(key, generations)
        if await self.points.reach("remove.after") is Kind.UNCONFIRMED:
            raise IndexUnavailable("the delete was not confirmed")
        await self.points.latency()

    async def chunks_of(self, keys: Sequence[ArtifactKey]) -> list[ChunkRef]:
        return await self.shared.chunks_of(keys)

    async def count(self) -> int:
        return await self.shared.count()

    async def drop(self) -> None:
        await self.shared.drop()

    async def ping(self) -> None:
        self._check()


class SimSubscription:
    """A process' consumer."""

    def __init__(self, inner: MemorySubscription, points: Points) -> None:
        self.inner = inner
        self.points = points

    async def batch(self, *, max_items: int, max_wait_s: float) -> list[Delivery]:
        return await self.inner.batch(max_items=max_items, max_wait_s=max_wait_s)

    async def ack(self, delivery: Delivery) -> None:
        await self.points.reach("ack.before")
        await self.inner.ack(delivery)
        await self.points.reach("ack.after")

    async def retry(self, delivery: Delivery, *, delay_s: float) -> None:
        await self.points.latency()
        await self.inner.retry(delivery, delay_s=delay_s)

    async def give_back(self, delivery: Delivery) -> None:
        await self.points.latency()
        await self.inner.give_back(delivery)

    async def hand_over(self, delivery: Delivery, *, queue: str) -> None:
        await self.points.latency()
        await self.inner.hand_over(delivery, queue=queue)

    async def dead_letter(self, delivery: Delivery, *, reason: str) -> None:
        await self.points.latency()
        await self.inner.dead_letter(delivery, reason=reason)

    async def stop(self) -> None:
        await self.inner.stop()


class SimBus:
    """A process' connection to the broker."""

    def __init__(self, shared: MemoryBus, points: Points) -> None:
        self.shared = shared
        self.points = points

    def _check(self) -> None:
        if self.points.away("broker"):
            raise BrokerUnavailable("the broker is away")

    async def publish(self, routing_key: str, body: Mapping[str, Any], *, event_id: str) -> None:
        self._check()
        await self.points.latency()
        if await self.points.reach("publish.before") is Kind.REFUSED:
            raise BrokerUnavailable("the event was not published")
        await self.shared.publish(routing_key, body, event_id=event_id)
        self.points.published(routing_key, body)
        if await self.points.reach("publish.after") is Kind.UNCONFIRMED:
            raise BrokerUnavailable("the event was not confirmed")
        await self.points.latency()

    async def command(self, body: Mapping[str, Any], *, event_id: str) -> None:
        self._check()
        await self.shared.command(body, event_id=event_id)

    @asynccontextmanager
    async def subscribe(self, queue: str, *, prefetch: int) -> AsyncIterator[Subscription]:
        async with self.shared.subscribe(queue, prefetch=prefetch) as inner:
            assert isinstance(inner, MemorySubscription)
            self.points.connected(inner)
            yield self._over(inner)

    def _over(self, inner: MemorySubscription) -> Subscription:
        return SimSubscription(inner, self.points)

    def watch(self, *routing_keys: str) -> Any:
        return self.shared.watch(*routing_keys)

    async def depth(self, queue: str) -> int:
        self._check()
        return await self.shared.depth(queue)

    async def ping(self) -> None:
        self._check()
