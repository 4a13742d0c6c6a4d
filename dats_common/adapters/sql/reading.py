"""The guard and everything else that readers ask: text can be had only from here, and only while it is live."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Integer,
    Select,
    and_,
    bindparam,
    case,
    func,
    select,
    text,
    tuple_,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from dats_common.adapters.sql.engine import Database
from dats_common.adapters.sql.rows import (
    DOCUMENT_FIELDS,
    LOCATION_FIELDS,
    is_any_of,
    key_of,
    location_of,
    metadata_of,
    not_covered_by_a_wildcard,
    slices,
    tombstone_of,
    wildcard_tombstones,
)
from dats_common.adapters.sql.tables import artifacts, chunks, documents, outbox, quarantine, writers
from dats_common.domain.access import Principal, may_see
from dats_common.domain.model import NEVER, ArtifactKey, Chunk, ChunkRef, Generation, SourceMetadata
from dats_common.domain.taint import Tombstone
from dats_common.records import (
    HEARTBEAT_STALE_S,
    ArtifactOutcome,
    GuardedRead,
    Heartbeat,
    LedgerCounts,
    LiveGeneration,
    Passage,
)

_PAGE = 100
_MOST_CHUNKS = 2**20  # Of a generation: more than a document of 1 MB has characters.
_FRESH_US = round(HEARTBEAT_STALE_S * 1e6)


def _passages(are_named: ColumnElement[bool]) -> Select[Any]:
    """Text and metadata of chunks while they are live, in one statement, so that the two cannot disagree."""
    return (
        select(
            artifacts.c.tenant_id,
            artifacts.c.artifact_id,
            artifacts.c.version,
            chunks.c.chunk_index,
            chunks.c.chunk_text,
            chunks.c.token_count,
            *LOCATION_FIELDS,
            *DOCUMENT_FIELDS,
        )
        .join(documents, documents.c.generation == artifacts.c.live_generation)
        .join(chunks, chunks.c.generation == artifacts.c.live_generation)
        .where(are_named, not_covered_by_a_wildcard())
    )


_NAMED = (
    func.unnest(bindparam("generations", type_=ARRAY(BigInteger)), bindparam("indexes", type_=ARRAY(Integer)))
    .table_valued("generation", "chunk_index", name="named")
    .render_derived()
)
# Built once, because every query asks one of them. Each chunk is a lookup by index: of lists PostgreSQL would scan all
# documents until statistics are there, but two arrays are a relation, which it joins.
_PASSAGES_BY_DIALECT = {
    "postgresql": _passages(
        and_(chunks.c.generation == _NAMED.c.generation, chunks.c.chunk_index == _NAMED.c.chunk_index)
    ),
    "sqlite": _passages(
        and_(
            artifacts.c.live_generation.in_(bindparam("generations", expanding=True)),
            chunks.c.chunk_index.in_(bindparam("indexes", expanding=True)),
            # The two lists above find rows by index, every index of every generation; this keeps the pairs.
            (chunks.c.generation * _MOST_CHUNKS + chunks.c.chunk_index).in_(bindparam("pairs", expanding=True)),
        )
    ),
}


def _named(connection: AsyncConnection, refs: Sequence[ChunkRef]) -> dict[str, list[int]]:
    generations, indexes = [ref.generation for ref in refs], [ref.chunk_index for ref in refs]
    if connection.dialect.name != "sqlite":
        return {"generations": generations, "indexes": indexes}
    pairs = [ref.generation * _MOST_CHUNKS + ref.chunk_index for ref in refs]
    return {"generations": sorted(set(generations)), "indexes": sorted(set(indexes)), "pairs": pairs}


async def read_passages(database: Database, refs: Sequence[ChunkRef], principal: Principal) -> GuardedRead:
    """Q2. What decides liveness hands out the text."""
    wanted = {(ref.generation, ref.chunk_index): ref for ref in refs}
    passages: dict[ChunkRef, Passage] = {}
    missing: set[ArtifactKey] = set()
    async with database.reading(principal.tenant_id) as connection:
        statement = _PASSAGES_BY_DIALECT[connection.dialect.name]
        for part in slices(list(wanted.values())):
            for row in await connection.execute(statement, _named(connection, part)):
                ref = wanted.get((row.generation, row.chunk_index))
                metadata = metadata_of(row)
                if ref is not None and ref.key == key_of(row) and _visible(principal, ref.key, metadata):
                    passages[ref] = Passage(
                        ref, row.chunk_text, row.token_count, metadata, row.version, location_of(row)
                    )
            missing |= {ref.key for ref in part if ref not in passages}
        superseded = await _replaced(connection, missing, refs)
    return GuardedRead(passages, superseded)


def _visible(principal: Principal, key: ArtifactKey, metadata: SourceMetadata) -> bool:
    return may_see(
        principal,
        tenant_id=key.tenant_id,
        scope=metadata.scope,
        user_id=metadata.user_id,
        project_id=metadata.project_id,
        tags=metadata.tags,
    )


async def _replaced(
    connection: AsyncConnection, missing: set[ArtifactKey], refs: Sequence[ChunkRef]
) -> frozenset[ArtifactKey]:
    proposed: dict[ArtifactKey, set[int]] = defaultdict(set)
    for ref in refs:
        proposed[ref.key].add(ref.generation)
    found: set[ArtifactKey] = set()
    for part in slices(sorted(missing)):
        rows = await connection.execute(
            select(artifacts.c.tenant_id, artifacts.c.artifact_id, artifacts.c.live_generation).where(
                is_any_of(connection, artifacts, part), artifacts.c.live_generation.is_not(None)
            )
        )
        found |= {key_of(row) for row in rows if row.live_generation not in proposed[key_of(row)]}
    return frozenset(found)


_LIVE = select(artifacts.c.tenant_id, artifacts.c.artifact_id, artifacts.c.live_generation).where(
    artifacts.c.live_generation.in_(bindparam("generations", expanding=True)), not_covered_by_a_wildcard()
)


async def live_refs(database: Database, refs: Sequence[ChunkRef], principal: Principal) -> frozenset[ChunkRef]:
    """Q3: the last look before anything leaves."""
    live: set[tuple[ArtifactKey, int]] = set()
    async with database.reading(principal.tenant_id) as connection:
        for part in slices(sorted({ref.generation for ref in refs})):
            rows = await connection.execute(_LIVE, {"generations": part})
            live |= {(key_of(row), row.live_generation) for row in rows}
    return frozenset(ref for ref in refs if (ref.key, ref.generation) in live)


async def outcome_of(database: Database, key: ArtifactKey, at: int) -> ArtifactOutcome:
    """What became of the event placed at `at`, for a sender who waits for it."""
    async with database.reading(key.tenant_id) as connection:
        rows = await connection.execute(
            select(
                artifacts.c.version,
                documents.c.version.label("written_version"),
                artifacts.c.live_generation,
                artifacts.c.tainted_at,
                artifacts.c.tainted_through,
                artifacts.c.tainted_through_own,
                documents.c.chunk_count,
                documents.c.token_count,
            )
            .outerjoin(documents, documents.c.generation == artifacts.c.live_generation)
            .where(is_any_of(connection, artifacts, [key]))
        )
        row = rows.one_or_none()
        if row is None:
            return ArtifactOutcome("pending")
        if row.live_generation is not None and row.version >= at:
            return ArtifactOutcome(_shown_as(row, at), row.live_generation, row.chunk_count, row.token_count)
        held = await connection.execute(
            select(func.count()).where(
                is_any_of(connection, quarantine, [key]), quarantine.c.version == at, quarantine.c.resolved_at.is_(None)
            )
        )
        if held.scalar_one():
            return ArtifactOutcome("quarantined")
        # A row that came after a taint without tenant does not carry it.
        everywhere = (await wildcard_tombstones(connection, [key.artifact_id])).get(key.artifact_id, Tombstone())
        bound = tombstone_of(row).merge(everywhere).bound(own_clock=True)
        return ArtifactOutcome("tainted" if bound >= at else "pending")


def _shown_as(row: Any, at: int) -> Literal["indexed", "unchanged", "superseded"]:
    if row.version > at:
        return "superseded"
    # The same content again only moves the artifact's version: what is live was written for an older one.
    return "indexed" if row.written_version == at else "unchanged"


async def latest_heartbeat(database: Database) -> Heartbeat | None:
    """The newest heartbeat; while it is fresh, an active writer's before a standby's.

    A writer that was killed stays `active` in its row for ever: without a bound it would hide the ones that live.
    """
    async with database.reading() as connection:
        now = await database.now(connection)
        is_active = (writers.c.state == "active") & (writers.c.beat_at > now - _FRESH_US)
        rows = await connection.execute(
            select(writers).order_by(case((is_active, 0), else_=1), writers.c.beat_at.desc()).limit(1)
        )
        row = rows.one_or_none()
        return None if row is None else _heartbeat(row, now=now)


async def all_heartbeats(database: Database) -> list[Heartbeat]:
    """The newest first."""
    async with database.reading() as connection:
        now = await database.now(connection)
        rows = await connection.execute(select(writers).order_by(writers.c.beat_at.desc()))
        return [_heartbeat(row, now=now) for row in rows]


def _heartbeat(row: Any, *, now: int) -> Heartbeat:
    return Heartbeat(
        writer_id=row.writer_id,
        state=row.state,
        pending=row.pending,
        processing=row.processing,
        model=row.model,
        backend=row.backend,
        age_s=max(0.0, (now - row.beat_at) / 1e6),
    )


async def count_all(database: Database) -> LedgerCounts:
    """Figures for health and metrics."""
    async with database.reading() as connection:
        # Who sees one tenant at a time has a function that counts them all.
        over_all = text("SELECT * FROM rag_counts()") if database.sees_one_tenant else _count_over_all()
        counted = (await connection.execute(over_all)).one()
        unsent = (
            await connection.execute(
                select(func.count(), func.min(outbox.c.created_at)).where(outbox.c.sent_at.is_(None))
            )
        ).one()
        now = await database.now(connection)
        return LedgerCounts(
            live_artifacts=counted.live_artifacts,
            live_chunks=int(counted.live_chunks),
            tainted_artifacts=counted.tainted_artifacts,
            quarantined=counted.quarantined,
            unsent_events=unsent[0],
            oldest_unsent_s=0.0 if unsent[1] is None else max(0.0, (now - unsent[1]) / 1e6),
        )


def _count_over_all() -> Select[Any]:
    live = (
        select(
            func.count().label("live_artifacts"),
            func.coalesce(func.sum(documents.c.chunk_count), 0).label("live_chunks"),
        )
        .select_from(artifacts.join(documents, documents.c.generation == artifacts.c.live_generation))
        .subquery()
    )
    tainted = (artifacts.c.live_generation.is_(None), artifacts.c.tainted_through > NEVER)
    return select(
        live,
        select(func.count()).where(*tainted).scalar_subquery().label("tainted_artifacts"),
        select(func.count()).where(quarantine.c.resolved_at.is_(None)).scalar_subquery().label("quarantined"),
    )


async def page_of_live(database: Database, *, limit: int, after: ArtifactKey | None) -> list[LiveGeneration]:
    """What is live behind `after`, in the order of the keys, with the number of its chunk rows."""
    rows_of = select(func.count()).where(chunks.c.generation == artifacts.c.live_generation).scalar_subquery()
    statement = (
        select(artifacts.c.tenant_id, artifacts.c.artifact_id, artifacts.c.live_generation, rows_of.label("chunks"))
        .where(artifacts.c.live_generation.is_not(None))
        .order_by(artifacts.c.tenant_id, artifacts.c.artifact_id)
        .limit(limit)
    )
    if after is not None:
        position = tuple_(artifacts.c.tenant_id, artifacts.c.artifact_id)
        statement = statement.where(position > tuple_(after.tenant_id, after.artifact_id))
    async with database.reading() as connection:
        return [
            LiveGeneration(key_of(row), row.live_generation, row.chunks) for row in await connection.execute(statement)
        ]


async def iterate_live(
    database: Database, after: ArtifactKey | None
) -> AsyncIterator[tuple[Generation, Sequence[Chunk]]]:
    """Every live artifact with its chunks, in key order, a page at a time so that no transaction stays open."""
    while True:
        async with database.reading() as connection:
            statement = (
                select(
                    artifacts.c.tenant_id,
                    artifacts.c.artifact_id,
                    artifacts.c.version,
                    *DOCUMENT_FIELDS,
                )
                .join(documents, documents.c.generation == artifacts.c.live_generation)
                .order_by(artifacts.c.tenant_id, artifacts.c.artifact_id)
                .limit(_PAGE)
            )
            if after is not None:
                position = tuple_(artifacts.c.tenant_id, artifacts.c.artifact_id)
                statement = statement.where(position > tuple_(after.tenant_id, after.artifact_id))
            page = (await connection.execute(statement)).all()
            rows = await connection.execute(
                select(chunks)
                .where(chunks.c.generation.in_([row.generation for row in page]))
                .order_by(chunks.c.generation, chunks.c.chunk_index)
            )
            by_generation: dict[int, list[Chunk]] = defaultdict(list)
            for row in rows:
                by_generation[row.generation].append(
                    Chunk(
                        row.chunk_index,
                        row.chunk_text,
                        row.token_count,
                        row.char_start,
                        row.char_end,
                        location_of(row),
                    )
                )
        for row in page:
            key = key_of(row)
            yield Generation(row.generation, key, row.version, metadata_of(row)), by_generation[row.generation]
            after = key
        if len(page) < _PAGE:
            return
