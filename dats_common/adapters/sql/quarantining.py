"""What operators do with the quarantine: look at it, and show a version again."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from sqlalchemy import func, null, select, update

from dats_common.adapters.sql.engine import Database
from dats_common.adapters.sql.rows import key_of, lock_states
from dats_common.adapters.sql.tables import quarantine
from dats_common.domain.model import EventTime, Scope, SourceMetadata, Validated
from dats_common.domain.taint import Readmission, readmit
from dats_common.errors import NotFound, Refused
from dats_common.records import Quarantined

_FIELDS = frozenset(each.name for each in fields(SourceMetadata))


async def open_entries(database: Database, *, limit: int, after: int, with_content: bool) -> list[Quarantined]:
    """Open entries in the order of their ids."""
    content = quarantine.c.body if with_content else null().label("body")
    async with database.reading() as connection:
        now = await database.now(connection)
        rows = await connection.execute(
            select(
                quarantine.c.id,
                quarantine.c.tenant_id,
                quarantine.c.artifact_id,
                quarantine.c.version,
                quarantine.c.reason,
                quarantine.c.event_id,
                quarantine.c.created_at,
                func.length(quarantine.c.body).label("size"),
                content,
            )
            .where(quarantine.c.id > after, quarantine.c.resolved_at.is_(None))
            .order_by(quarantine.c.id)
            .limit(limit)
        )
        return [
            Quarantined(
                entry_id=row.id,
                key=key_of(row),
                version=row.version,
                reason=row.reason,
                event_id=row.event_id,
                age_s=max(0.0, (now - row.created_at) / 1e6),
                size_chars=row.size,
                content=row.body,
            )
            for row in rows
        ]


async def readmitted_event(database: Database, entry_id: int) -> Validated:
    """The entry's content as a version of this moment, judged under the artifact's lock.

    A taint that is committed later is judged again at V1 and V4, like any other.
    """
    async with database.writing() as connection:
        rows = await connection.execute(
            select(quarantine).where(quarantine.c.id == entry_id, quarantine.c.resolved_at.is_(None))
        )
        entry = rows.one_or_none()
        if entry is None:
            raise NotFound(f"no open quarantine entry {entry_id}")
        key = key_of(entry)
        state = (await lock_states(connection, [key]))[key]
        now = await database.now(connection)
        verdict = readmit(state, version=entry.version, now=now)
        if verdict is not Readmission.GRANTED:
            raise Refused(f"entry {entry_id}: {verdict.value}")
        time = EventTime(claimed=now, own_clock=True)
        return Validated(key, entry.body, _metadata(entry.source_metadata), time, f"readmit-{entry_id}")


def _metadata(stored: dict[str, Any]) -> SourceMetadata:
    known = {name: value for name, value in stored.items() if name in _FIELDS}
    return SourceMetadata(**{**known, "scope": Scope(stored["scope"]), "tags": tuple(stored["tags"])})


async def resolve_entry(database: Database, entry_id: int) -> None:
    """Close an entry that is open."""
    async with database.writing() as connection:
        now = await database.now(connection)
        await connection.execute(
            update(quarantine)
            .where(quarantine.c.id == entry_id, quarantine.c.resolved_at.is_(None))
            .values(resolved_at=now)
        )
