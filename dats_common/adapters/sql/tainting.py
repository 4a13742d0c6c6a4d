"""T1: the one transaction after whose commit an artifact is invisible everywhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Row, and_, case, delete, not_, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from dats_common.adapters.sql.engine import Database
from dats_common.adapters.sql.identity import record, taint_entry
from dats_common.adapters.sql.rows import (
    DOCUMENT_FIELDS,
    covers,
    enqueue,
    insert,
    insert_new,
    is_any_of,
    key_of,
    lock_order,
    lock_wildcards,
    metadata_of,
    put_in_quarantine,
    slices,
    tombstone_columns,
)
from dats_common.adapters.sql.tables import (
    artifacts,
    documents,
    outbox,
    pending,
    taint_receipts,
    wildcards,
)
from dats_common.contracts.events import build_invalidated
from dats_common.domain.model import ArtifactKey, EventTime, Taint, Validated
from dats_common.domain.taint import Place, QuarantineReason, Tombstone, place, tombstone
from dats_common.records import TaintReceipt


async def commit_taint(database: Database, taint: Taint, *, skew_s: float) -> TaintReceipt:
    """Raise the tombstones, clear what they cover, queue `embedding.invalidated` and audit it, all or nothing."""
    removed: dict[str, int] = defaultdict(int)
    fallen: list[ArtifactKey] = []
    ids = sorted(set(taint.artifact_ids))
    async with database.writing(taint.tenant_id) as connection:
        # Before the clock is read: what was received before the taint then has a lower place, what is received after
        # it sees the tombstone. There is no third case, in which a version without a time would outlive the taint.
        locked = await _lock(connection, taint.tenant_id, ids)
        at = await _place(database, connection, taint)
        now = await database.now(connection)
        stone = tombstone(at.ord, own_clock=at.own_clock, skew_s=skew_s)
        event_id = f"invalidated:{taint.identity or database.new_id()}"
        if taint.whole is not None and await _is_queued(connection, event_id):
            # A copy of a large taint goes on where the last one stopped: from the start it might never come to the end.
            return TaintReceipt(through=stone.through, chunks_removed={}, claimed=taint.time.claimed)
        if taint.tenant_id is None:
            for part in slices(ids):
                await _raise_wildcards(connection, part, stone)
        for rows in slices(locked):
            fallen += await _cover(connection, rows, stone, removed, now=now)
        invalidated = build_invalidated(
            event_id=event_id,
            at=now,
            artifact_ids=taint.artifact_ids,
            tenant_id=taint.tenant_id,
            cascade_id=taint.cascade_id,
            chunks_removed=sum(removed.values()),
            through=stone.through,
        )
        await enqueue(connection, [invalidated], now=now)
        await record(connection, taint_entry(taint, at=now, chunks_removed=sum(removed.values())))
    return TaintReceipt(
        through=stone.through,
        chunks_removed=dict(removed),
        fallen=tuple(fallen),
        cascade_id=taint.cascade_id,
        claimed=taint.time.claimed,
    )


async def _lock(connection: AsyncConnection, tenant_id: str | None, artifact_ids: Sequence[str]) -> list[Row[Any]]:
    """Lock what the taint is about and read it, in the order in which every transaction locks.

    Args:
        artifact_ids: unique and sorted.
    """
    locked: list[Row[Any]] = []
    for keys in slices(await _keys_to_lock(connection, tenant_id, artifact_ids)):
        in_order = lock_order(connection.dialect.name)
        statement = select(artifacts).where(is_any_of(connection, artifacts, keys)).order_by(*in_order)
        locked += (await connection.execute(statement.with_for_update())).all()
    return locked


async def _keys_to_lock(
    connection: AsyncConnection, tenant_id: str | None, artifact_ids: Sequence[str]
) -> list[ArtifactKey]:
    if tenant_id is None:
        for part in slices(artifact_ids):
            await lock_wildcards(connection, part)
        # A second statement: on PostgreSQL it sees rows that were committed while the first one waited.
        return sorted([key for part in slices(artifact_ids) for key in await _keys_in_every_tenant(connection, part)])
    for part in slices(artifact_ids):
        rows = [{"tenant_id": tenant_id, "artifact_id": artifact_id} for artifact_id in part]
        await connection.execute(insert(artifacts, connection).values(rows).on_conflict_do_nothing())
    return [ArtifactKey(tenant_id, artifact_id) for artifact_id in artifact_ids]


async def _place(database: Database, connection: AsyncConnection, taint: Taint) -> Place:
    """A taint without a usable time keeps the place of its first receipt, where its identity tells that it is one.

    Each part of a large one has its own: a version without a time that came between two parts was received before the
    later one is confirmed, and must not outlive it.
    """
    at = place(taint.time, now=await database.now(connection), first_receipt=None)
    if taint.identity is None:
        return at
    # Insert, then read: of two copies that arrive at once the second waits here and takes the first one's place.
    await connection.execute(insert_new(taint_receipts, connection), [{"identity": taint.identity, "placed": at.ord}])
    first = await connection.execute(select(taint_receipts.c.placed).where(taint_receipts.c.identity == taint.identity))
    return replace(at, ord=first.scalar_one())


async def _is_queued(connection: AsyncConnection, event_id: str) -> bool:
    found = await connection.execute(select(outbox.c.id).where(outbox.c.event_id == event_id))
    return found.first() is not None


async def _raise_wildcards(connection: AsyncConnection, artifact_ids: Sequence[str], stone: Tombstone) -> None:
    rows = [{"artifact_id": artifact_id, **tombstone_columns(stone)} for artifact_id in artifact_ids]
    statement = insert(wildcards, connection).values(rows)
    raised = {
        name: case((wildcards.c[name] > statement.excluded[name], wildcards.c[name]), else_=statement.excluded[name])
        for name in tombstone_columns(stone)
    }
    await connection.execute(statement.on_conflict_do_update(index_elements=["artifact_id"], set_=raised))


async def _keys_in_every_tenant(connection: AsyncConnection, artifact_ids: Sequence[str]) -> list[ArtifactKey]:
    rows = await connection.execute(
        select(artifacts.c.tenant_id, artifacts.c.artifact_id).where(artifacts.c.artifact_id.in_(artifact_ids))
    )
    return [key_of(row) for row in rows]


async def _cover(
    connection: AsyncConnection,
    locked: Sequence[Row[Any]],
    stone: Tombstone,
    removed: dict[str, int],
    *,
    now: int,
) -> list[ArtifactKey]:
    """Raise the rows' bounds; take away what they now cover, live or pending. Returns what was live."""
    keys = [key_of(row) for row in locked]
    await connection.execute(
        update(artifacts)
        .where(is_any_of(connection, artifacts, keys))
        .values(
            **{
                name: case((artifacts.c[name] > value, artifacts.c[name]), else_=value)
                for name, value in tombstone_columns(stone).items()
            }
        )
    )
    fallen = [
        row
        for row in locked
        if row.live_generation is not None and row.version <= stone.bound(own_clock=row.version_own_clock)
    ]
    if fallen:
        await _count_and_keep(connection, [row.live_generation for row in fallen], stone, removed, now=now)
        await connection.execute(
            update(artifacts)
            .where(is_any_of(connection, artifacts, keys), covers(artifacts))
            .values(live_generation=None, content_hash=None)
        )
    await connection.execute(
        delete(pending).where(
            is_any_of(connection, pending, keys),
            or_(
                and_(pending.c.own_clock, pending.c.version <= stone.through_own),
                and_(not_(pending.c.own_clock), pending.c.version <= stone.through),
            ),
        )
    )
    return [key_of(row) for row in fallen]


async def _count_and_keep(
    connection: AsyncConnection,
    generations: Sequence[int],
    stone: Tombstone,
    removed: dict[str, int],
    *,
    now: int,
) -> None:
    """Count what vanishes. A version newer than the taint itself fell only to the skew: it goes to quarantine, just
    as it would have if it had arrived after the taint."""
    rows = await connection.execute(
        select(documents.c.generation, documents.c.chunk_count, artifacts.c.artifact_id, artifacts.c.version)
        .join(artifacts, artifacts.c.live_generation == documents.c.generation)
        .where(documents.c.generation.in_(generations))
    )
    within_skew = {}
    for row in rows:
        removed[row.artifact_id] += row.chunk_count
        if row.version > stone.at:
            within_skew[row.generation] = row.version
    kept = await connection.execute(
        select(
            documents.c.tenant_id,
            documents.c.artifact_id,
            documents.c.body,
            documents.c.own_clock,
            documents.c.event_id,
            *DOCUMENT_FIELDS,
        ).where(documents.c.generation.in_(within_skew))
    )
    for row in kept:
        version = within_skew[row.generation]
        event = Validated(key_of(row), row.body, metadata_of(row), EventTime(claimed=version), row.event_id)
        at = Place(version, own_clock=row.own_clock)
        await put_in_quarantine(connection, event, at, QuarantineReason.WITHIN_SKEW, now=now)
