"""The ledger over SQLAlchemy: SQLite on a laptop, PostgreSQL in a fleet, the same statements on both."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import ColumnElement, Select, delete, exists, or_, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from dats_common.adapters.sql.engine import Database, open_database, unix_microseconds
from dats_common.adapters.sql.quarantining import open_entries, readmitted_event, resolve_entry
from dats_common.adapters.sql.reading import (
    all_heartbeats,
    count_all,
    iterate_live,
    latest_heartbeat,
    live_refs,
    outcome_of,
    page_of_live,
    read_passages,
)
from dats_common.adapters.sql.row_security import AS_WRITER, Access
from dats_common.adapters.sql.rows import SLICE, enqueue, insert, is_any_of, key_of, slices
from dats_common.adapters.sql.tables import artifacts, chunks, documents, outbox, pending, writer_epoch, writers
from dats_common.adapters.sql.tainting import commit_taint
from dats_common.adapters.sql.untainting import untainted_event, withdrawn_source
from dats_common.adapters.sql.writing import (
    abandon_generations,
    admit_events,
    flip_generations,
    require_epoch,
    take_over,
    write_chunk_rows,
)
from dats_common.domain.access import Principal
from dats_common.domain.model import ArtifactKey, Chunk, ChunkRef, Generation, Taint, Validated
from dats_common.domain.taint import FlipVerdict
from dats_common.ports import Publish
from dats_common.records import (
    Admission,
    ArtifactOutcome,
    GuardedRead,
    Heartbeat,
    LedgerCounts,
    LiveGeneration,
    OutboxEvent,
    Quarantined,
    TaintReceipt,
    Withdrawn,
)
from dats_common.trace_context import parse_traceparent, within_trace

# How long a relay may hold events it has claimed. A relay that dies delays them by this much and no more; one that
# is slower than this sends some twice, which subscribers must bear anyway.
RELAY_CLAIM_S = 10.0


# Longer than any retry of a message may take: until then the row keeps a copy of its event from being sent again.
SENT_EVENTS_KEPT_S = 7 * 86_400.0


@asynccontextmanager
async def open_ledger(
    url: str,
    *,
    timeout_s: float = 10.0,
    clock: Callable[[], int] = unix_microseconds,
    access: Access = AS_WRITER,
) -> AsyncIterator[SqlLedger]:
    """The ledger at `url` with its schema up to date.

    Raises: ConfigurationError, LedgerUnavailable (see `open_database`).
    """
    async with open_database(url, timeout_s=timeout_s, clock=clock, access=access) as database:
        yield SqlLedger(database)


class SqlLedger:
    """`ports.Ledger`; the steps themselves are functions in the sibling modules."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def activate(self, writer_id: str) -> int:
        return await take_over(self._database)

    async def admit(self, events: Sequence[Validated], *, epoch: int) -> list[Admission]:
        return await admit_events(self._database, events, epoch=epoch)

    async def write_chunks(self, documents: Mapping[Generation, Sequence[Chunk]], *, embedding_model: str) -> None:
        await write_chunk_rows(self._database, documents, embedding_model=embedding_model)

    async def flip(self, admissions: Sequence[Admission], *, epoch: int) -> list[FlipVerdict]:
        return await flip_generations(self._database, admissions, epoch=epoch)

    async def abandon(self, generations: Sequence[int]) -> None:
        await abandon_generations(self._database, generations)

    async def taint(self, taint: Taint, *, skew_s: float) -> TaintReceipt:
        return await commit_taint(self._database, taint, skew_s=skew_s)

    async def announce(self, envelope: Mapping[str, Any]) -> None:
        async with self._database.writing() as connection:
            await enqueue(connection, [envelope], now=await self._database.now(connection))

    async def relay(self, publish: Publish, *, limit: int) -> int:
        events = await self._claim(limit)
        sent: list[int] = []

        async def send(event: OutboxEvent) -> None:
            with within_trace(event.trace):
                await publish(event.routing_key, event.body, event_id=event.event_id)
            sent.append(event.row_id)

        try:
            # Begun in their order, but confirmed together: a broker takes as long for one as for all of them.
            outcomes = await asyncio.gather(*map(send, events), return_exceptions=True)
        finally:
            await self._release(sent, [event.row_id for event in events if event.row_id not in set(sent)])
        for failure in filter(None, outcomes):
            raise failure
        return len(sent)

    async def _claim(self, limit: int) -> list[OutboxEvent]:
        """Take the oldest unsent events for a while: a lease, so that no transaction stays open while publishing."""
        if self._database.is_sqlite and not await self._has_unsent():
            return []  # the common case must not take the write lock
        async with self._database.writing() as connection:
            now = await self._database.now(connection)
            # A CTE, so that it runs once: as a subquery a plan may run it for each row, and take more than `limit`.
            oldest = (
                select(outbox.c.id)
                .where(outbox.c.sent_at.is_(None), outbox.c.claimed_until < now)
                .order_by(outbox.c.id)
                .limit(limit)
                .with_for_update(skip_locked=True)
                .cte("oldest")
            )
            rows = await connection.execute(
                update(outbox)
                .where(outbox.c.id.in_(select(oldest.c.id)))
                .values(claimed_until=now + round(RELAY_CLAIM_S * 1e6))
                .returning(outbox.c.id, outbox.c.event_id, outbox.c.routing_key, outbox.c.body, outbox.c.traceparent)
            )
            return sorted(
                (
                    OutboxEvent(
                        row.id, row.event_id, row.routing_key, row.body, trace=parse_traceparent(row.traceparent)
                    )
                    for row in rows
                ),
                key=lambda event: event.row_id,
            )

    async def _has_unsent(self) -> bool:
        async with self._database.reading() as connection:
            now = await self._database.now(connection)
            waiting = select(outbox.c.id).where(outbox.c.sent_at.is_(None), outbox.c.claimed_until < now).limit(1)
            return (await connection.execute(waiting)).one_or_none() is not None

    async def _release(self, sent: Sequence[int], unsent: Sequence[int]) -> None:
        if not sent and not unsent:
            return
        async with self._database.writing() as connection:
            now = await self._database.now(connection)
            for part in slices(sent):
                await connection.execute(update(outbox).where(outbox.c.id.in_(part)).values(sent_at=now))
            for part in slices(unsent):
                await connection.execute(update(outbox).where(outbox.c.id.in_(part)).values(claimed_until=0))

    async def kept(self, keys: Sequence[ArtifactKey]) -> dict[ArtifactKey, set[int]]:
        keep: dict[ArtifactKey, set[int]] = defaultdict(set)
        for tenant_id, part in self._parts(keys):
            # One statement, so that a generation on its way from pending to live is never missed between two.
            live = select(
                artifacts.c.tenant_id, artifacts.c.artifact_id, artifacts.c.live_generation.label("generation")
            ).where(is_any_of(self._database.engine, artifacts, part))
            writing = select(pending.c.tenant_id, pending.c.artifact_id, pending.c.generation).where(
                is_any_of(self._database.engine, pending, part)
            )
            async with self._database.reading(tenant_id) as connection:
                for row in await connection.execute(live.union_all(writing)):
                    generations = keep[key_of(row)]  # also of an artifact without any: the ledger knows it
                    if row.generation is not None:
                        generations.add(row.generation)
        return dict(keep)

    def _parts(self, keys: Sequence[ArtifactKey]) -> Iterator[tuple[str | None, Sequence[ArtifactKey]]]:
        for tenant_id, share in self._database.shares(keys):
            for part in slices(share):
                yield tenant_id, part

    async def forget(self, keys: Sequence[ArtifactKey] | None = None) -> None:
        for tenant_id, part in self._parts(keys) if keys is not None else [(None, None)]:
            while dead := await self._forgettable(part, tenant_id):
                async with self._database.writing(tenant_id) as connection:
                    await connection.execute(delete(chunks).where(chunks.c.generation.in_(dead)))
                    await connection.execute(
                        delete(documents).where(documents.c.generation.in_(dead), _has_a_live_successor())
                    )
        if keys is None:
            await self._purge_outbox()

    async def _forgettable(self, keys: Sequence[ArtifactKey] | None, tenant_id: str | None) -> list[int]:
        """Some terminal generations with something left to drop. Looked up outside of a write transaction: over all
        artifacts this is a scan, and a taint must not wait for it. Terminal generations never come back."""
        leftover = exists().where(chunks.c.generation == documents.c.generation)
        statement = _terminal(self._database.engine, keys).where(or_(leftover, _has_a_live_successor()))
        async with self._database.reading(tenant_id) as connection:
            return list((await connection.execute(statement.limit(SLICE))).scalars())

    async def _purge_outbox(self) -> None:
        async with self._database.writing() as connection:
            before = await self._database.now(connection) - round(SENT_EVENTS_KEPT_S * 1e6)
            await connection.execute(delete(outbox).where(outbox.c.sent_at < before))

    async def beat(self, heartbeat: Heartbeat, *, epoch: int | None = None) -> None:
        async with self._database.writing() as connection:
            if epoch is not None:
                await require_epoch(connection, epoch)
            values = {
                "state": heartbeat.state,
                "pending": heartbeat.pending,
                "processing": heartbeat.processing,
                "model": heartbeat.model,
                "backend": heartbeat.backend,
                "beat_at": await self._database.now(connection),
            }
            statement = insert(writers, connection).values(writer_id=heartbeat.writer_id, **values)
            await connection.execute(statement.on_conflict_do_update(index_elements=["writer_id"], set_=values))

    async def now(self) -> int:
        if self._database.is_sqlite:
            return self._database.clock()
        async with self._database.reading() as connection:
            return await self._database.now(connection)

    async def read(self, refs: Sequence[ChunkRef], principal: Principal) -> GuardedRead:
        return await read_passages(self._database, refs, principal)

    async def still_live(self, refs: Sequence[ChunkRef], principal: Principal) -> frozenset[ChunkRef]:
        return await live_refs(self._database, refs, principal)

    async def outcome(self, key: ArtifactKey, *, at: int) -> ArtifactOutcome:
        return await outcome_of(self._database, key, at)

    async def heartbeat(self) -> Heartbeat | None:
        return await latest_heartbeat(self._database)

    async def counts(self) -> LedgerCounts:
        return await count_all(self._database)

    def live_chunks(self, *, after: ArtifactKey | None = None) -> AsyncIterator[tuple[Generation, Sequence[Chunk]]]:
        return iterate_live(self._database, after)

    async def live_generations(self, *, limit: int, after: ArtifactKey | None = None) -> list[LiveGeneration]:
        return await page_of_live(self._database, limit=limit, after=after)

    async def announced(self, event_ids: Sequence[str]) -> frozenset[str]:
        found: set[str] = set()
        async with self._database.reading() as connection:
            for part in slices(event_ids):
                rows = await connection.execute(select(outbox.c.event_id).where(outbox.c.event_id.in_(part)))
                found |= set(rows.scalars())
        return frozenset(found)

    async def first_announced(self) -> int | None:
        async with self._database.reading() as connection:
            oldest = select(outbox.c.created_at).order_by(outbox.c.id).limit(1)
            return (await connection.execute(oldest)).scalar_one_or_none()

    async def writers(self) -> list[Heartbeat]:
        return await all_heartbeats(self._database)

    async def epoch(self) -> int:
        async with self._database.reading() as connection:
            return (await connection.execute(select(writer_epoch.c.epoch))).scalar_one_or_none() or 0

    async def quarantined(self, *, limit: int, after: int = 0, with_content: bool = False) -> list[Quarantined]:
        return await open_entries(self._database, limit=limit, after=after, with_content=with_content)

    async def readmission(self, entry_id: int) -> Validated:
        return await readmitted_event(self._database, entry_id)

    async def resolve(self, entry_id: int) -> None:
        await resolve_entry(self._database, entry_id)

    async def withdrawn(self, key: ArtifactKey, *, with_content: bool = False) -> Withdrawn:
        return await withdrawn_source(self._database, key, with_content=with_content)

    async def untainted(self, key: ArtifactKey, *, tainted_at: int, taints: int, reason: str, actor: str) -> Validated:
        return await untainted_event(
            self._database, key, tainted_at=tainted_at, taints=taints, reason=reason, actor=actor
        )

    async def ping(self) -> None:
        async with self._database.reading() as connection:
            await connection.execute(select(1))


def _has_a_live_successor() -> ColumnElement[bool]:
    """The source of what a taint took away stays, for audit and un-tainting; superseded sources go."""
    return exists().where(
        artifacts.c.tenant_id == documents.c.tenant_id,
        artifacts.c.artifact_id == documents.c.artifact_id,
        artifacts.c.version >= documents.c.version,
        artifacts.c.live_generation.is_not(None),
        artifacts.c.live_generation != documents.c.generation,
    )


def _terminal(engine: AsyncEngine, keys: Sequence[ArtifactKey] | None) -> Select[int]:
    """Generations that are neither live nor pending: they never come back."""
    statement = select(documents.c.generation).where(
        ~exists().where(pending.c.generation == documents.c.generation),
        ~exists().where(artifacts.c.live_generation == documents.c.generation),
    )
    return statement if keys is None else statement.where(is_any_of(engine, documents, keys))
