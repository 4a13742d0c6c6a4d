"""Values to rows and back, and the statements that several steps share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import zip_longest
from typing import Any, TypeVar

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Insert,
    Table,
    Text,
    and_,
    any_,
    bindparam,
    collate,
    delete,
    false,
    func,
    or_,
    select,
    tuple_,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from dats_common.adapters.sql.tables import artifacts, chunks, documents, outbox, quarantine, wildcards
from dats_common.contracts.events import build_quarantined
from dats_common.domain.model import NEVER, ArtifactKey, Location, Scope, SourceMetadata, Validated
from dats_common.domain.taint import ArtifactState, Place, QuarantineReason, Tombstone
from dats_common.trace_context import TraceContext, current_trace

_T = TypeVar("_T")

# Below SQLite's 32,766 and PostgreSQL's 32,767 bound parameters for every statement here.
SLICE = 500
# Keys of one tenant for which PostgreSQL finds a list cheaper than a join, statistics or not.
_FEW = 50

_PLAIN_FIELDS = (
    "project_id",
    "provenance_id",
    "task_id",
    "domain",
    "doc_type",
    "verified",
    "user_id",
    "title",
    "language",
    "source_type",
    "source_id",
    "source_uri",
    "source_updated_at",
    "extra",
)


def insert(table: Table, connection: AsyncConnection) -> sqlite.Insert | postgresql.Insert:
    """An INSERT that knows ON CONFLICT in the connection's dialect."""
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)


def insert_new(table: Table, connection: AsyncConnection) -> Insert:
    """INSERT ... ON CONFLICT DO NOTHING, and nothing returned: who may add a row need not be one who may read it."""
    return insert(table, connection).on_conflict_do_nothing().inline()


def slices(items: Sequence[_T], size: int = SLICE) -> Iterable[Sequence[_T]]:
    """Consecutive parts of at most `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def metadata_columns(metadata: SourceMetadata) -> dict[str, Any]:
    """A document row's columns of the producer's metadata."""
    plain = {name: getattr(metadata, name) for name in _PLAIN_FIELDS}
    return {**plain, "scope": metadata.scope.value, "tags": list(metadata.tags)}


def metadata_of(row: Sequence[Any]) -> SourceMetadata:
    """The producer's metadata of a row that ends with `DOCUMENT_FIELDS`, by place: by name it takes four times as long,
    and a query reads a hundred rows."""
    *plain, scope, tags = row[-len(_PLAIN_FIELDS) - 2 :]
    return SourceMetadata(**dict(zip(_PLAIN_FIELDS, plain, strict=True)), scope=Scope(scope), tags=tuple(tags))


LOCATION_FIELDS = [chunks.c[name] for name in ("heading_path", "line_start", "line_end", "page", "anchor")]


def location_columns(location: Location) -> dict[str, Any]:
    """A chunk row's columns of where it stands."""
    return {
        "heading_path": "\n".join(location.heading_path),
        "line_start": location.line_start,
        "line_end": location.line_end,
        "page": location.page,
        "anchor": location.anchor,
    }


def location_of(row: Any) -> Location:
    """The reverse of `location_columns`, of a row with `LOCATION_FIELDS`."""
    headings = tuple(row.heading_path.split("\n")) if row.heading_path else ()
    return Location(headings, row.line_start, row.line_end, row.page, row.anchor)


def key_of(row: Any) -> ArtifactKey:
    """The artifact a row belongs to."""
    return ArtifactKey(row.tenant_id, row.artifact_id)


def is_any_of(on: AsyncConnection | AsyncEngine, table: Table, keys: Sequence[ArtifactKey]) -> ColumnElement[bool]:
    """`(tenant_id, artifact_id) IN keys`, as an index lookup for each key.

    A literal list of pairs would be a scan on both: SQLite uses no index for it, PostgreSQL makes an OR for each pair.
    """
    if on.dialect.name == "sqlite":
        return or_(false(), *_lists(table, keys))
    if len({key.tenant_id for key in keys}) == 1 and len(keys) <= _FEW:
        ids = bindparam(None, [key.artifact_id for key in keys], type_=ARRAY(Text), unique=True)
        return and_(table.c.tenant_id == keys[0].tenant_id, table.c.artifact_id == any_(ids))
    # Two arrays are a relation, which it joins; of a long list it scans a tenant until statistics are there.
    tenants = bindparam(None, [key.tenant_id for key in keys], type_=ARRAY(Text), unique=True)
    ids = bindparam(None, [key.artifact_id for key in keys], type_=ARRAY(Text), unique=True)
    named = func.unnest(tenants, ids).table_valued("tenant_id", "artifact_id", name="keys").render_derived()
    return tuple_(table.c.tenant_id, table.c.artifact_id).in_(select(named.c.tenant_id, named.c.artifact_id))


def _lists(table: Table, keys: Sequence[ArtifactKey]) -> list[ColumnElement[bool]]:
    """Equality on one column and a list for the other, the way round that gives the fewer of them."""
    ids_of: dict[str, list[str]] = {}
    tenants_of: dict[str, list[str]] = {}
    for key in keys:
        ids_of.setdefault(key.tenant_id, []).append(key.artifact_id)
        tenants_of.setdefault(key.artifact_id, []).append(key.tenant_id)
    if len(ids_of) <= len(tenants_of):
        return [and_(table.c.tenant_id == one, table.c.artifact_id.in_(many)) for one, many in ids_of.items()]
    return [and_(table.c.artifact_id == one, table.c.tenant_id.in_(many)) for one, many in tenants_of.items()]


def lock_order(dialect: str) -> list[ColumnElement[str]]:
    """Artifact keys by their bytes, as Python sorts them: another collation would order within a slice otherwise than
    between slices, and two transactions could wait for each other. (SQLite has one writer and sorts by bytes.)
    """
    columns: list[ColumnElement[str]] = [artifacts.c.tenant_id, artifacts.c.artifact_id]
    return columns if dialect == "sqlite" else [collate(column, "C") for column in columns]


def tombstone_of(row: Any) -> Tombstone:
    """The taint bounds of an artifact or wildcard row."""
    return Tombstone(at=row.tainted_at, through=row.tainted_through, through_own=row.tainted_through_own)


def tombstone_columns(tombstone: Tombstone) -> dict[str, int]:
    """The reverse of `tombstone_of`."""
    return {
        "tainted_at": tombstone.at,
        "tainted_through": tombstone.through,
        "tainted_through_own": tombstone.through_own,
    }


def covers(table: Table) -> ColumnElement[bool]:
    """Whether the taint bounds of `table`'s row reach the version of the artifact row in the same statement."""
    return or_(
        and_(artifacts.c.version_own_clock, artifacts.c.version <= table.c.tainted_through_own),
        and_(~artifacts.c.version_own_clock, artifacts.c.version <= table.c.tainted_through),
    )


def not_covered_by_a_wildcard() -> ColumnElement[bool]:
    """The guard's second look: a taint without tenant may have missed an artifact row that was being inserted."""
    missed = select(wildcards.c.artifact_id).where(
        wildcards.c.artifact_id == artifacts.c.artifact_id, covers(wildcards)
    )
    return ~missed.correlate(artifacts).exists()


async def make_rows(connection: AsyncConnection, keys: Sequence[ArtifactKey]) -> None:
    """A row for each artifact that has none, in the order in which `lock_states` locks. They stay for ever."""
    for part in slices(sorted(keys)):
        await connection.execute(
            insert_new(artifacts, connection),
            [{"tenant_id": key.tenant_id, "artifact_id": key.artifact_id} for key in part],
        )


async def lock_states(connection: AsyncConnection, keys: Sequence[ArtifactKey]) -> dict[ArtifactKey, ArtifactState]:
    """Lock the rows of artifacts that have one, in key order so that no two transactions wait for each other, and read
    them.

    PostgreSQL reads a locked row again after waiting; the wildcards come in a second statement for the same reason.
    """
    states: dict[ArtifactKey, ArtifactState] = {}
    for part in slices(sorted(keys)):
        rows = await connection.execute(
            select(artifacts)
            .where(is_any_of(connection, artifacts, part))
            .order_by(*lock_order(connection.dialect.name))
            .with_for_update()
        )
        found = {key_of(row): row for row in rows}
        by_id = await wildcard_tombstones(connection, [key.artifact_id for key in part])
        for key, row in found.items():
            states[key] = ArtifactState(
                tombstone=tombstone_of(row).merge(by_id.get(key.artifact_id, Tombstone())),
                version=row.version,
                live_generation=row.live_generation,
                content_hash=row.content_hash,
            )
    return states


async def lock_wildcards(connection: AsyncConnection, artifact_ids: Sequence[str]) -> None:
    """Lock the rows of taints without tenant, those also that are not there yet: these are made, and cover nothing."""
    statement = insert(wildcards, connection).values([{"artifact_id": each} for each in sorted(artifact_ids)])
    unchanged = {"artifact_id": statement.excluded.artifact_id}
    await connection.execute(statement.on_conflict_do_update(index_elements=["artifact_id"], set_=unchanged))


async def wait_for_wildcards(connection: AsyncConnection, artifact_ids: Sequence[str]) -> None:
    """Let taints without tenant that are being committed come first.

    Such a taint locks no row of an artifact that it cannot see yet; its own row is where to meet it. One that comes
    later waits for us in turn, and then sees the artifact. On SQLite writers take turns anyway.
    """
    if connection.dialect.name == "sqlite":
        return
    for part in slices(sorted(set(artifact_ids))):
        rows = [{"artifact_id": artifact_id} for artifact_id in part]
        await connection.execute(insert_new(wildcards, connection), rows)
        await connection.execute(
            delete(wildcards).where(wildcards.c.artifact_id.in_(part), wildcards.c.tainted_at == NEVER)
        )


_WILDCARDS = select(wildcards).where(wildcards.c.artifact_id.in_(bindparam("artifact_ids", expanding=True)))


async def wildcard_tombstones(connection: AsyncConnection, artifact_ids: Sequence[str]) -> dict[str, Tombstone]:
    """Taints without tenant that cover these ids."""
    rows = await connection.execute(_WILDCARDS, {"artifact_ids": artifact_ids})
    return {row.artifact_id: tombstone_of(row) for row in rows}


async def enqueue(
    connection: AsyncConnection,
    envelopes: Sequence[Mapping[str, Any]],
    *,
    now: int,
    traces: Sequence[TraceContext | None] = (),
) -> None:
    """Put events into the outbox, once for each event id.

    Args:
        traces: whose work each of them tells of, where that may differ; None, and without `traces`: the task's own.
    """
    if not envelopes:
        return
    here = current_trace()
    rows = []
    for event, trace in zip_longest(envelopes, traces):
        of = trace or here
        rows.append(
            {
                "event_id": event["id"],
                "routing_key": event["type"],
                "body": dict(event),
                "created_at": now,
                "traceparent": of and of.traceparent,
            }
        )
    await connection.execute(insert_new(outbox, connection), rows)


async def put_in_quarantine(
    connection: AsyncConnection, event: Validated, at: Place, reason: QuarantineReason, *, now: int
) -> None:
    """Keep an event that cannot be ordered safely: stored whole, invisible, reported."""
    await connection.execute(
        insert_new(quarantine, connection),
        [
            {
                "tenant_id": event.key.tenant_id,
                "artifact_id": event.key.artifact_id,
                "version": at.ord,
                "content_hash": event.content_hash,
                "event_id": event.event_id,
                "reason": reason.value,
                "body": event.content,
                "source_metadata": asdict(event.metadata),
                "created_at": now,
            }
        ],
    )
    report = build_quarantined(
        event_id=f"quarantined:{event.key.document_id}:{at.ord}:{event.content_hash}",
        at=now,
        key=event.key,
        version=at.ord,
        reason=reason.value,
    )
    await enqueue(connection, [report], now=now, traces=[event.trace])


def document_row(event: Validated, at: Place, *, now: int) -> dict[str, Any]:
    """The row of a new generation; its number comes from the database."""
    return {
        "tenant_id": event.key.tenant_id,
        "artifact_id": event.key.artifact_id,
        "document_id": event.key.document_id,
        "version": at.ord,
        "own_clock": at.own_clock,
        "event_id": event.event_id,
        "source_hash": event.content_hash,
        "body": event.content,
        "created_at": now,
        "updated_at": now,
        **metadata_columns(event.metadata),
    }


DOCUMENT_FIELDS = [documents.c.generation, *(documents.c[name] for name in (*_PLAIN_FIELDS, "scope", "tags"))]
