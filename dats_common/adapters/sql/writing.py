"""The writer's transactions: V1 (admit), chunk rows, V4 (flip), and taking over from another writer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, Literal

from sqlalchemy import and_, bindparam, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from dats_common.adapters.sql.engine import Database
from dats_common.adapters.sql.rows import (
    document_row,
    enqueue,
    insert_new,
    is_any_of,
    key_of,
    location_columns,
    lock_states,
    make_rows,
    put_in_quarantine,
    slices,
    wait_for_wildcards,
)
from dats_common.adapters.sql.tables import (
    artifacts,
    chunks,
    documents,
    pending,
    quarantine,
    receipts,
    writer_epoch,
)
from dats_common.contracts.events import build_completed
from dats_common.domain.model import NEVER, ArtifactKey, Chunk, Generation, Validated
from dats_common.domain.taint import ArtifactState, FlipVerdict, Place, QuarantineReason, Verdict, admit, flip, place
from dats_common.errors import Fenced
from dats_common.records import Admission


async def take_over(database: Database) -> int:
    """Raise the epoch and reclaim what earlier writers left pending."""
    async with database.writing() as connection:
        await connection.execute(insert_new(writer_epoch, connection), [{"id": 1, "epoch": 0}])
        raised = await connection.execute(
            update(writer_epoch)
            .where(writer_epoch.c.id == 1)
            .values(epoch=writer_epoch.c.epoch + 1)
            .returning(writer_epoch.c.epoch)
        )
        epoch = int(raised.scalar_one())
        await connection.execute(delete(pending).where(pending.c.epoch < epoch))
        return epoch


_EPOCH = select(writer_epoch.c.epoch).where(writer_epoch.c.id == 1).with_for_update(read=True)


async def require_epoch(connection: AsyncConnection, epoch: int) -> None:
    """Hold the epoch until the end of the transaction. Raises: Fenced: it is over."""
    current = await connection.execute(_EPOCH)
    if current.scalar_one_or_none() != epoch:
        raise Fenced(f"epoch {epoch} is over: another writer has become active")


async def admit_events(database: Database, events: Sequence[Validated], *, epoch: int) -> list[Admission]:
    """V1 for one event of each of several artifacts."""
    keys = [event.key for event in events]
    if len(set(keys)) != len(keys):
        raise ValueError("one call may hold one event of an artifact: their order matters")
    async with database.writing() as connection:
        await require_epoch(connection, epoch)
        await wait_for_wildcards(connection, [event.key.artifact_id for event in events])
        await make_rows(connection, keys)
        states = await lock_states(connection, keys)
        known = await _known_receipts(connection, events)
        ambiguous = await _never_placed(connection, events)
        now = await database.now(connection)
        judged = [_judge(event, states[event.key], known, ambiguous, now=now) for event in events]
        await connection.execute(
            insert_new(receipts, connection),
            [
                {
                    "tenant_id": item.event.key.tenant_id,
                    "artifact_id": item.event.key.artifact_id,
                    "content_hash": item.event.content_hash,
                    "claimed": _claimed(item.event),
                    "placed": item.place.ord,
                }
                for item in judged
            ],
        )
        for item in judged:
            if item.verdict is Verdict.QUARANTINED and item.reason is not None:
                await put_in_quarantine(connection, item.event, item.place, item.reason, now=now)
            elif item.verdict is Verdict.UNCHANGED:
                await _move_version(connection, item, states[item.event.key], now=now)
        return await _allocate(connection, judged, epoch=epoch, now=now)


def _claimed(event: Validated) -> int:
    return NEVER if event.time.claimed is None else event.time.claimed


def _judge(
    event: Validated,
    state: ArtifactState,
    known: Mapping[tuple[ArtifactKey, str], Mapping[int, int]],
    ambiguous: Set[tuple[ArtifactKey, str]],
    *,
    now: int,
) -> Admission:
    content = (event.key, event.content_hash)
    seen = known.get(content, {})
    if event.time.claimed is not None:
        at = place(event.time, now=now, first_receipt=seen.get(event.time.claimed))
    else:
        # A bare copy of content that came with a time before takes the place of that first receipt too; that time was
        # another clock's.
        first = min(seen.values(), default=None)
        at = replace(place(event.time, now=now, first_receipt=first), own_clock=first in (None, seen.get(NEVER)))
    placed_before = any(claimed != NEVER or content not in ambiguous for claimed in seen)
    verdict, reason = admit(state, at, content_hash=event.content_hash, seen_before=placed_before)
    return Admission(event, verdict, at, reason=reason, replaces=state.version > NEVER)


async def _known_receipts(
    connection: AsyncConnection, events: Sequence[Validated]
) -> dict[tuple[ArtifactKey, str], dict[int, int]]:
    known: dict[tuple[ArtifactKey, str], dict[int, int]] = {}
    of_these = and_(
        is_any_of(connection, receipts, [event.key for event in events]),
        receipts.c.content_hash.in_([event.content_hash for event in events]),
    )
    for row in await connection.execute(select(receipts).where(of_these)):
        places = known.setdefault((ArtifactKey(row.tenant_id, row.artifact_id), row.content_hash), {})
        places[row.claimed] = row.placed
    return known


async def _never_placed(connection: AsyncConnection, events: Sequence[Validated]) -> frozenset[tuple[ArtifactKey, str]]:
    """Contents whose bare receipt came after a taint and settled nothing: a copy of it settles nothing either."""
    bare = [event for event in events if event.time.claimed is None]
    if not bare:
        return frozenset()
    rows = await connection.execute(
        select(quarantine.c.tenant_id, quarantine.c.artifact_id, quarantine.c.content_hash).where(
            is_any_of(connection, quarantine, [event.key for event in bare]),
            quarantine.c.reason == QuarantineReason.BARE_AFTER_TAINT.value,
        )
    )
    return frozenset((key_of(row), row.content_hash) for row in rows)


async def _move_version(connection: AsyncConnection, item: Admission, state: ArtifactState, *, now: int) -> None:
    """The live content was approved again under a newer time: it outlives older taints and versions from here on."""
    key = item.event.key
    await connection.execute(
        update(artifacts)
        .where(artifacts.c.tenant_id == key.tenant_id, artifacts.c.artifact_id == key.artifact_id)
        .values(version=item.place.ord, version_own_clock=item.place.own_clock)
    )
    counted = await connection.execute(
        select(documents.c.chunk_count).where(documents.c.generation == state.live_generation)
    )
    await _resolve_quarantine(connection, [item], now=now)
    moved = _completed(
        key, item.place, state.live_generation or 0, chunks=counted.scalar_one(), status="unchanged", now=now
    )
    await enqueue(connection, [moved], now=now, traces=[item.event.trace])


def _completed(
    key: ArtifactKey, at: Place, generation: int, *, chunks: int, status: Literal["indexed", "unchanged"], now: int
) -> dict[str, Any]:
    return build_completed(
        event_id=f"completed:{key.document_id}:{at.ord}:{generation}",
        at=now,
        artifact_id=key.artifact_id,
        chunks=chunks,
        version=at.ord,
        generation=generation,
        status=status,
    )


async def _allocate(
    connection: AsyncConnection, judged: Sequence[Admission], *, epoch: int, now: int
) -> list[Admission]:
    """A generation and its pending row for every event that is to be embedded."""
    embed = [item for item in judged if item.verdict is Verdict.EMBED]
    if not embed:
        return list(judged)
    inserted = await connection.execute(
        documents.insert().returning(documents.c.generation, sort_by_parameter_order=True),
        [document_row(item.event, item.place, now=now) for item in embed],
    )
    generations = {
        item.event.key: Generation(number, item.event.key, item.place.ord, item.event.metadata)
        for item, number in zip(embed, inserted.scalars(), strict=True)
    }
    await connection.execute(
        pending.insert(),
        [
            {
                "generation": generations[item.event.key].number,
                "tenant_id": item.event.key.tenant_id,
                "artifact_id": item.event.key.artifact_id,
                "version": item.place.ord,
                "own_clock": item.place.own_clock,
                "epoch": epoch,
            }
            for item in embed
        ],
    )
    return [replace(item, generation=generations.get(item.event.key)) for item in judged]


_PENDING_OF = pending.c.generation.in_(bindparam("generations", expanding=True))
_HOLD_PENDING = select(pending.c.generation).where(_PENDING_OF).with_for_update(read=True)
_TAKE_PENDING = delete(pending).where(_PENDING_OF).returning(pending.c.generation)
_MEASURE = (
    update(documents)
    .where(documents.c.generation == bindparam("b_generation"))
    .values(
        chunk_count=bindparam("b_chunks"),
        token_count=bindparam("b_tokens"),
        embedding_model=bindparam("b_model"),
    )
)


async def write_chunk_rows(
    database: Database, written: Mapping[Generation, Sequence[Chunk]], *, embedding_model: str
) -> None:
    """V3, the ledger's half: the text of pending generations.

    One that is not pending any more will never be shown. Its text must not come either: the sweep may have forgotten
    the document by which it finds what is left of a generation.
    """
    async with database.writing() as connection:
        held = await connection.execute(_HOLD_PENDING, {"generations": [generation.number for generation in written]})
        still_pending = set(held.scalars())
        written = {generation: cut for generation, cut in written.items() if generation.number in still_pending}
        if not written:
            return
        now = await database.now(connection)
        rows = [
            row
            for generation, cut in written.items()
            for row in _chunk_rows(generation, cut, embedding_model=embedding_model, now=now)
        ]
        for part in slices(rows):
            await connection.execute(insert_new(chunks, connection), part)
        await connection.execute(
            _MEASURE,
            [
                {
                    "b_generation": generation.number,
                    "b_chunks": len(cut),
                    "b_tokens": sum(chunk.token_count for chunk in cut),
                    "b_model": embedding_model,
                }
                for generation, cut in written.items()
            ],
        )


def _chunk_rows(
    generation: Generation, cut: Sequence[Chunk], *, embedding_model: str, now: int
) -> list[dict[str, Any]]:
    metadata = generation.metadata
    shared: dict[str, Any] = {
        "generation": generation.number,
        "document_id": generation.key.document_id,
        "tenant_id": generation.key.tenant_id,
        "user_id": metadata.user_id,
        "project_id": metadata.project_id,
        "scope": metadata.scope.value,
        "embedding_model": embedding_model,
        "created_at": now,
    }
    return [
        {
            **shared,
            "chunk_index": chunk.index,
            "chunk_text": chunk.text,
            "chunk_hash": chunk.chunk_hash,
            "token_count": chunk.token_count,
            "char_start": chunk.char_start,
            "char_end": chunk.char_end,
            **location_columns(chunk.location),
        }
        for chunk in cut
    ]


async def abandon_generations(database: Database, generations: Sequence[int]) -> None:
    """Take away the pending rows that protect generations which will never be flipped."""
    async with database.writing() as connection:
        await connection.execute(delete(pending).where(pending.c.generation.in_(generations)))


async def flip_generations(database: Database, admissions: Sequence[Admission], *, epoch: int) -> list[FlipVerdict]:
    """V4: from the commit of this transaction on, readers see the new generations."""
    generations = [_generation(item).number for item in admissions]
    if len({item.event.key for item in admissions}) != len(admissions):
        raise ValueError("one call may flip one generation of an artifact: their order matters")
    async with database.writing() as connection:
        await require_epoch(connection, epoch)
        states = await lock_states(connection, [item.event.key for item in admissions])
        taken = await connection.execute(_TAKE_PENDING, {"generations": generations})
        had_pending = set(taken.scalars())
        now = await database.now(connection)
        verdicts = []
        for item in admissions:
            verdict, reason = flip(
                states.get(item.event.key, ArtifactState()),  # none in a ledger that was put back: nothing is pending
                item.place,
                content_hash=item.event.content_hash,
                pending=_generation(item).number in had_pending,
            )
            if reason is not None:
                await put_in_quarantine(connection, item.event, item.place, reason, now=now)
            verdicts.append(verdict)
        live = [item for item, verdict in zip(admissions, verdicts, strict=True) if verdict is FlipVerdict.LIVE]
        if live:
            await _make_live(connection, live, now=now)
        return verdicts


def _generation(item: Admission) -> Generation:
    if item.generation is None:
        raise ValueError("only events admitted with the verdict EMBED have a generation to flip")
    return item.generation


_MAKE_LIVE = (
    update(artifacts)
    .where(artifacts.c.tenant_id == bindparam("b_tenant"), artifacts.c.artifact_id == bindparam("b_artifact"))
    .values(
        live_generation=bindparam("b_generation"),
        version=bindparam("b_version"),
        version_own_clock=bindparam("b_own"),
        content_hash=bindparam("b_hash"),
    )
)
_CHUNK_COUNTS = (
    select(chunks.c.generation, func.count().label("chunk_count"))
    .where(chunks.c.generation.in_(bindparam("generations", expanding=True)))
    .group_by(chunks.c.generation)
)


async def _make_live(connection: AsyncConnection, live: Sequence[Admission], *, now: int) -> None:
    await connection.execute(
        _MAKE_LIVE,
        [
            {
                "b_tenant": item.event.key.tenant_id,
                "b_artifact": item.event.key.artifact_id,
                "b_generation": _generation(item).number,
                "b_version": item.place.ord,
                "b_own": item.place.own_clock,
                "b_hash": item.event.content_hash,
            }
            for item in live
        ],
    )
    await _resolve_quarantine(connection, live, now=now)
    rows = await connection.execute(_CHUNK_COUNTS, {"generations": [_generation(item).number for item in live]})
    counts = {row.generation: row.chunk_count for row in rows}
    announced = [
        _completed(
            item.event.key,
            item.place,
            _generation(item).number,
            chunks=counts.get(_generation(item).number, 0),
            status="indexed",
            now=now,
        )
        for item in live
    ]
    await enqueue(connection, announced, now=now, traces=[item.event.trace for item in live])


_RESOLVE = (
    update(quarantine)
    .where(
        quarantine.c.tenant_id == bindparam("b_tenant"),
        quarantine.c.artifact_id == bindparam("b_artifact"),
        quarantine.c.version <= bindparam("b_version"),
        quarantine.c.resolved_at.is_(None),
    )
    .values(resolved_at=bindparam("b_now"))
)


async def _resolve_quarantine(connection: AsyncConnection, live: Sequence[Admission], *, now: int) -> None:
    """What is live from now on answers the question that older quarantined versions had left open."""
    await connection.execute(
        _RESOLVE,
        [
            {
                "b_tenant": item.event.key.tenant_id,
                "b_artifact": item.event.key.artifact_id,
                "b_version": item.place.ord,
                "b_now": now,
            }
            for item in live
        ],
    )
