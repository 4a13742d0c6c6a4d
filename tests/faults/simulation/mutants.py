"""The same parts with one line of the algorithm taken out, by putting another port under the production code.

Each one is a step that somebody could think superfluous. The simulation must find it: see tests/faults/test_simulation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from sqlalchemy import delete, select, update

from dats_common.adapters.memory_bus import MemorySubscription
from dats_common.adapters.sql.ledger import SqlLedger
from dats_common.adapters.sql.rows import DOCUMENT_FIELDS, insert_new, metadata_of
from dats_common.adapters.sql.tables import artifacts, chunks, documents, outbox, pending, writer_epoch
from dats_common.contracts.events import build_invalidated
from dats_common.contracts.topology import EMBEDDING_COMPLETED, EMBEDDING_INVALIDATED
from dats_common.domain.access import Principal
from dats_common.domain.model import ArtifactKey, ChunkRef, Taint, Validated
from dats_common.domain.taint import FlipVerdict
from dats_common.ports import Publish, Subscription
from dats_common.records import Admission, Delivery, GuardedRead, Passage, Point, TaintReceipt
from tests.faults.simulation.faults import Fault, Kind
from tests.faults.simulation.ports import SimBus, SimIndex, SimLedger, SimSubscription
from tests.faults.simulation.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Parts:
    """What a simulated process puts under the production code.

    Attributes:
        steer: changes the drawn scenario, for what chance alone comes to too rarely.
    """

    ledger: Callable[..., SimLedger] = SimLedger
    index: Callable[..., SimIndex] = SimIndex
    bus: Callable[..., SimBus] = SimBus
    steer: Callable[[Scenario], Scenario] = lambda scenario: scenario


PRODUCTION = Parts()


# ------------------------------------------------------------------------------------------------------------ readers


class NoGuard(SimLedger):
    """Q2 hands out the text of whatever the index proposes, and there is no last look."""

    async def read(self, refs: Sequence[ChunkRef], principal: Principal) -> GuardedRead:
        passages = {}
        async with self._database.reading() as connection:
            for ref in refs:
                row = (
                    await connection.execute(
                        select(
                            documents.c.version,
                            chunks.c.chunk_text,
                            chunks.c.token_count.label("tokens"),
                            *DOCUMENT_FIELDS,
                        )
                        .join(chunks, chunks.c.generation == documents.c.generation)
                        .where(documents.c.generation == ref.generation, chunks.c.chunk_index == ref.chunk_index)
                    )
                ).one_or_none()
                if row is not None:
                    passages[ref] = Passage(ref, row.chunk_text, row.tokens, metadata_of(row), row.version)
        return GuardedRead(passages)

    async def still_live(self, refs: Sequence[ChunkRef], *_: Any) -> frozenset[ChunkRef]:
        return frozenset(refs)


class CachedGuard(SimLedger):
    """A replica remembers for a second what the guard has let through."""

    _SECOND = 1_000_000

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._remembered: dict[ChunkRef, tuple[int, Passage]] = {}

    async def read(self, refs: Sequence[ChunkRef], principal: Principal) -> GuardedRead:
        now = self._database.clock()
        known = {ref: self._remembered[ref] for ref in refs if ref in self._remembered}
        fresh = {ref: passage for ref, (at, passage) in known.items() if now - at < self._SECOND}
        read = await super().read([ref for ref in refs if ref not in fresh], principal)
        self._remembered |= {ref: (now, passage) for ref, passage in read.passages.items()}
        return GuardedRead({**fresh, **read.passages}, read.superseded)

    async def still_live(self, refs: Sequence[ChunkRef], *_: Any) -> frozenset[ChunkRef]:
        return frozenset(refs)


# ------------------------------------------------------------------------------------------------------------- taints


class _KnownOnly(SimLedger):
    """Taints only what the ledger has rows for."""

    every_tenant_too = False

    async def taint(self, taint: Taint, *, skew_s: float) -> TaintReceipt:
        tenants = [None] if taint.tenant_id is not None else await self._tenants_of(taint.artifact_ids)
        if taint.tenant_id is not None and not self.every_tenant_too:
            return await super().taint(taint, skew_s=skew_s)
        receipt = TaintReceipt(through=await self._through(taint, skew_s), chunks_removed={})
        for tenant_id in tenants or [taint.tenant_id]:
            tenant_id = tenant_id or taint.tenant_id
            known = await self._known(tenant_id, taint.artifact_ids) if tenant_id else ()
            if known and tenant_id:
                one = replace(taint, tenant_id=tenant_id, artifact_ids=known)
                receipt = await super().taint(one, skew_s=skew_s)
        await self.announce(self._event(taint, receipt.through))
        return receipt

    async def _through(self, taint: Taint, skew_s: float) -> int:
        now = self._database.clock()
        return min(now, now if taint.time.claimed is None else taint.time.claimed) + round(skew_s * 1e6)

    def _event(self, taint: Taint, through: int) -> dict[str, Any]:
        return build_invalidated(
            event_id=f"invalidated:{taint.cascade_id}",
            at=self._database.clock(),
            artifact_ids=taint.artifact_ids,
            tenant_id=taint.tenant_id,
            cascade_id=taint.cascade_id,
            chunks_removed=0,
            through=through,
        )

    async def _tenants_of(self, ids: Sequence[str]) -> list[str | None]:
        async with self._database.reading() as connection:
            rows = await connection.execute(
                select(artifacts.c.tenant_id).where(artifacts.c.artifact_id.in_(ids)).distinct()
            )
            return sorted(rows.scalars())

    async def _known(self, tenant_id: str, ids: Sequence[str]) -> tuple[str, ...]:
        async with self._database.reading() as connection:
            rows = await connection.execute(
                select(artifacts.c.artifact_id).where(
                    artifacts.c.tenant_id == tenant_id, artifacts.c.artifact_id.in_(ids)
                )
            )
            return tuple(sorted(rows.scalars()))


class NoTombstoneForUnknown(_KnownOnly):
    """A taint of an artifact that was never seen leaves nothing behind."""

    every_tenant_too = True


class NoWildcard(_KnownOnly):
    """A taint without tenant covers the tenants that show the id now, and none that show it later."""


class PublishBeforeCommit(SimLedger):
    """The world is told before the tombstone is there."""

    async def taint(self, taint: Taint, *, skew_s: float) -> TaintReceipt:
        process: Any = self.points
        now = self._database.clock()
        through = min(now, now if taint.time.claimed is None else taint.time.claimed) + round(skew_s * 1e6)
        body = build_invalidated(
            event_id=f"early:{taint.cascade_id}",
            at=now,
            artifact_ids=taint.artifact_ids,
            tenant_id=taint.tenant_id,
            cascade_id=taint.cascade_id,
            chunks_removed=0,
            through=through,
        )
        await process.world.bus.publish(EMBEDDING_INVALIDATED, body, event_id=body["id"])
        process.published(EMBEDDING_INVALIDATED, body)
        return await super().taint(taint, skew_s=skew_s)


class LiveNotCleared(SimLedger):
    """The taint raises the tombstone and leaves the generation live."""

    async def taint(self, taint: Taint, *, skew_s: float) -> TaintReceipt:
        async with self._database.reading() as connection:
            rows = await connection.execute(
                select(artifacts).where(
                    artifacts.c.artifact_id.in_(taint.artifact_ids), artifacts.c.live_generation > 0
                )
            )
            live = rows.all()
        receipt = await super().taint(taint, skew_s=skew_s)
        async with self._database.writing() as connection:
            for row in live:
                await connection.execute(
                    update(artifacts)
                    .where(artifacts.c.tenant_id == row.tenant_id, artifacts.c.artifact_id == row.artifact_id)
                    .where(artifacts.c.live_generation.is_(None))
                    .values(live_generation=row.live_generation, content_hash=row.content_hash)
                )
        return receipt


# ------------------------------------------------------------------------------------------------------------- writers


class _NoFence(SimLedger):
    """Whoever asks is the active writer."""

    async def _epoch(self) -> int:
        async with self._database.reading() as connection:
            return int((await connection.execute(select(writer_epoch.c.epoch))).scalar_one())

    async def admit(self, events: Sequence[Validated], *, epoch: int) -> list[Admission]:
        return await super().admit(events, epoch=await self._epoch())

    async def flip(self, admissions: Sequence[Admission], *, epoch: int) -> list[FlipVerdict]:
        return await super().flip(admissions, epoch=await self._epoch())


class FlipWithoutPending(_NoFence):
    """Neither the epoch nor the pending row is asked for at the flip. (One of them alone is enough.)"""

    async def flip(self, admissions: Sequence[Admission], *, epoch: int) -> list[FlipVerdict]:
        async with self._database.writing() as connection:
            rows = [
                {
                    "generation": item.generation.number,
                    "tenant_id": item.event.key.tenant_id,
                    "artifact_id": item.event.key.artifact_id,
                    "version": item.place.ord,
                    "own_clock": item.place.own_clock,
                    "epoch": epoch,
                }
                for item in admissions
                if item.generation is not None
            ]
            await connection.execute(insert_new(pending, connection), rows)
        return await super().flip(admissions, epoch=epoch)


class NoRecheckAtFlip(SimLedger):
    """What was admitted becomes live, whatever was tainted meanwhile."""

    async def flip(self, admissions: Sequence[Admission], *, epoch: int) -> list[FlipVerdict]:
        verdicts = await super().flip(admissions, epoch=epoch)
        for item, verdict in zip(admissions, verdicts, strict=True):
            if verdict is FlipVerdict.GARBAGE and item.generation is not None:
                key = item.event.key
                async with self._database.writing() as connection:
                    await connection.execute(
                        update(artifacts)
                        .where(artifacts.c.tenant_id == key.tenant_id, artifacts.c.artifact_id == key.artifact_id)
                        .where(artifacts.c.live_generation.is_(None), artifacts.c.version <= item.place.ord)
                        .values(live_generation=item.generation.number, version=item.place.ord)
                    )
        return verdicts


class OutboxApart(SimLedger):
    """`embedding.completed` is queued in a transaction of its own, after the flip's."""

    async def flip(self, admissions: Sequence[Admission], *, epoch: int) -> list[FlipVerdict]:
        await self._before("flip")
        verdicts = await SqlLedger.flip(self, admissions, epoch=epoch)
        numbers = {item.generation.number for item in admissions if item.generation is not None}
        async with self._database.writing() as connection:
            rows = (
                await connection.execute(
                    select(outbox).where(outbox.c.routing_key == EMBEDDING_COMPLETED, outbox.c.sent_at.is_(None))
                )
            ).all()
            taken = [row for row in rows if row.body["data"]["generation"] in numbers]
            await connection.execute(delete(outbox).where(outbox.c.id.in_([row.id for row in taken])))
        await self._after("flip")
        for row in taken:
            await self.announce(row.body)
        return verdicts


class MarkBeforePublish(SimLedger):
    """The relay marks events as sent and publishes them then."""

    async def relay(self, publish: Publish, *, limit: int) -> int:
        events = await self._claim(limit)
        await self._release([event.row_id for event in events], [])
        for event in events:
            await publish(event.routing_key, event.body, event_id=event.event_id)
        return len(events)


class AckFirst(SimBus):
    """A delivery is acknowledged when it is taken."""

    def _over(self, inner: MemorySubscription) -> Subscription:
        return _AckedFirst(inner, self.points)


class _AckedFirst(SimSubscription):
    async def batch(self, *, max_items: int, max_wait_s: float) -> list[Delivery]:
        deliveries = await super().batch(max_items=max_items, max_wait_s=max_wait_s)
        for delivery in deliveries:
            await self.inner.ack(delivery)
        return deliveries

    async def ack(self, delivery: Delivery) -> None:
        return

    async def retry(self, delivery: Delivery, *, delay_s: float) -> None:
        return

    async def give_back(self, delivery: Delivery) -> None:
        return

    async def hand_over(self, delivery: Delivery, *, queue: str) -> None:
        return

    async def dead_letter(self, delivery: Delivery, *, reason: str) -> None:
        return


# --------------------------------------------------------------------------------------------------------------- index


class NoGenerationInPointId(SimIndex):
    """A chunk's point has one id for all generations: the last write wins."""

    async def store(self, points: Sequence[Point]) -> None:
        await super().store(points)
        ids = {(point.ref.key, point.ref.chunk_index): point.ref.generation for point in points}
        self.shared._keep(lambda ref: ids.get((ref.key, ref.chunk_index), ref.generation) == ref.generation)


class UnconfirmedUpsert(SimIndex):
    """The upsert does not wait until the points are there."""

    async def store(self, points: Sequence[Point]) -> None:
        process: Any = self.points
        process.world.apply_later(0.05, lambda: self.shared.store(points))


class SweepNotScoped(SimIndex):
    """A sweep deletes the artifact's points, and not those of dead generations."""

    async def remove(self, key: ArtifactKey, generations: Sequence[int]) -> None:
        have = await self.shared.generations([key])
        await super().remove(key, sorted(have.get(key, set())))


class KeepFirstIndex(SimIndex):
    """The sweep asks what is to be kept before it asks what there is."""

    async def generations(self, keys: Sequence[ArtifactKey]) -> dict[ArtifactKey, set[int]]:
        await self._ask(keys)
        return await super().generations(keys)

    async def scan(self) -> AsyncIterator[dict[ArtifactKey, set[int]]]:
        await self._ask(sorted({key for key, _ in self.shared.all_generations()}))
        async for page in super().scan():
            yield page

    async def _ask(self, keys: Sequence[ArtifactKey]) -> None:
        process: Any = self.points
        process.kept_before = await SqlLedger(process.ledger_database()).kept(keys)
        await self.points.latency()


class KeepFirstLedger(SimLedger):
    """What was asked before is the answer."""

    async def kept(self, keys: Sequence[ArtifactKey]) -> dict[ArtifactKey, set[int]]:
        await super().kept(keys)
        process: Any = self.points
        return {key: process.kept_before.get(key, set()) for key in keys}


def _paused_between_store_and_flip(scenario: Scenario) -> Scenario:
    """One writer is paused with its points stored; the next one hangs before its flip while its sweep goes on."""
    faults = (
        Fault("store.after", visit=1, kind=Kind.FREEZE, notice_s=0.05, lasting_s=6.0),
        Fault("flip.before", visit=1, kind=Kind.STALL, notice_s=9.0, lasting_s=8.0),
    )
    return replace(scenario, faults=faults, troubles=(), sweep_interval_s=2.0)


MUTANTS: Mapping[str, Parts] = MappingProxyType(
    {
        "query guard removed": Parts(ledger=NoGuard),
        "guard on a cache": Parts(ledger=CachedGuard),
        "no tombstone for an artifact never seen": Parts(ledger=NoTombstoneForUnknown),
        "no tombstone for tenants to come": Parts(ledger=NoWildcard),
        "published before the tombstone commits": Parts(ledger=PublishBeforeCommit),
        "live generation not cleared": Parts(ledger=LiveNotCleared),
        "taint not checked again at the flip": Parts(ledger=NoRecheckAtFlip),
        "flip without its pending row": Parts(ledger=FlipWithoutPending, steer=_paused_between_store_and_flip),
        "outbox outside of the flip": Parts(ledger=OutboxApart),
        "marked as sent before publishing": Parts(ledger=MarkBeforePublish),
        "acknowledged first": Parts(bus=AckFirst),
        "generation missing from the point id": Parts(index=NoGenerationInPointId),
        "upsert without waiting": Parts(index=UnconfirmedUpsert),
        "sweep not scoped to generations": Parts(index=SweepNotScoped),
        "sweep asks the ledger first": Parts(index=KeepFirstIndex, ledger=KeepFirstLedger),
    }
)
