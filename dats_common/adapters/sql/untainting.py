"""Taking back a wrong taint: the kept source comes again as a version behind it. The tombstone itself stays."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Row, Text, cast, exists, func, null, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from dats_common.adapters.sql.engine import Database
from dats_common.adapters.sql.identity import MOST_IDS_KEPT, record
from dats_common.adapters.sql.rows import DOCUMENT_FIELDS, lock_states, metadata_of
from dats_common.adapters.sql.tables import audit, documents, pending, quarantine
from dats_common.domain.model import ArtifactKey, EventTime, Validated
from dats_common.domain.taint import ArtifactState, Untaint, untaint
from dats_common.errors import NotFound, Refused
from dats_common.records import AuditEntry, Withdrawn


async def withdrawn_source(database: Database, key: ArtifactKey, *, with_content: bool) -> Withdrawn:
    """The newest source of what is withdrawn. Raises: NotFound."""
    body = documents.c.body if with_content else null().label("body")
    async with database.writing() as connection:  # the lock makes the row and its wildcard one state
        state = (await lock_states(connection, [key])).get(key, ArtifactState())
        if state.is_live or not state.tombstone.stands:
            raise NotFound(f"{key.artifact_id}: {Untaint.NOT_TAINTED.value}")
        size = func.length(documents.c.body).label("size")
        row = await _newest(connection, key, body, size, documents.c.title, documents.c.created_at)
        taints = await _taints(connection, key, since=row.created_at)
        return Withdrawn(key, state.tombstone.at, row.version, row.title, row.size, taints, row.body)


async def untainted_event(
    database: Database, key: ArtifactKey, *, tainted_at: int, taints: int, reason: str, actor: str
) -> Validated:
    """Judged under the artifact's lock, and audited with the judgement. Raises: NotFound; Refused."""
    async with database.writing() as connection:
        state = (await lock_states(connection, [key])).get(key, ArtifactState())
        now = await database.now(connection)
        row = await _newest(connection, key, documents.c.body, documents.c.created_at, *DOCUMENT_FIELDS)
        verdict, at = untaint(
            state,
            named=tainted_at,
            taints=await _taints(connection, key, since=row.created_at),
            agreed=taints,
            newer=await _is_newer(connection, key, row.version),
            now=now,
        )
        if verdict is not Untaint.GRANTED:
            raise Refused(f"{key.artifact_id}: {verdict.value}")
        entry = AuditEntry(
            now,
            "untaint",
            actor,
            tenant_id=key.tenant_id,
            artifact_count=1,
            artifact_ids=(key.artifact_id,),
            reason=reason,
        )
        await record(connection, entry)
        time = EventTime(claimed=at, own_clock=True)
        return Validated(key, row.body, metadata_of(row), time, f"untaint-{key.document_id}-{at}")


async def _newest(connection: AsyncConnection, key: ArtifactKey, *columns: Any) -> Row[Any]:
    """The source of the newest version. One that was on its way when the taint came was approved like any other."""
    rows = await connection.execute(
        select(documents.c.version, *columns)
        .where(documents.c.tenant_id == key.tenant_id, documents.c.artifact_id == key.artifact_id)
        .order_by(documents.c.version.desc(), documents.c.generation.desc())
        .limit(1)
    )
    row = rows.one_or_none()
    if row is None:
        raise NotFound(f"{key.artifact_id}: the ledger keeps no source of it; have it approved again")
    return row


async def _taints(connection: AsyncConnection, key: ArtifactKey, *, since: int) -> int:
    """How many were committed since then that cover it, by the audit; a large one, of which it keeps some ids, may."""
    named = cast(audit.c.artifact_ids, Text).contains(json.dumps(key.artifact_id), autoescape=True)
    counted = await connection.execute(
        select(func.count()).where(
            audit.c.action == "taint",
            audit.c.at >= since,
            or_(audit.c.tenant_id == key.tenant_id, audit.c.tenant_id.is_(None)),
            or_(named, audit.c.artifact_count > MOST_IDS_KEPT),
        )
    )
    return int(counted.scalar_one())


async def _is_newer(connection: AsyncConnection, key: ArtifactKey, version: int) -> bool:
    writing = exists().where(pending.c.tenant_id == key.tenant_id, pending.c.artifact_id == key.artifact_id)
    waiting = exists().where(
        quarantine.c.tenant_id == key.tenant_id,
        quarantine.c.artifact_id == key.artifact_id,
        quarantine.c.version >= version,
        quarantine.c.resolved_at.is_(None),
    )
    return bool((await connection.execute(select(writing | waiting))).scalar_one())
