"""API keys and the audit over SQLAlchemy, in the ledger's database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from dats_common.adapters.sql.engine import Database, open_database
from dats_common.adapters.sql.row_security import AS_WRITER, Access
from dats_common.adapters.sql.tables import audit, keys
from dats_common.domain.model import Taint
from dats_common.ports import KeyStore
from dats_common.records import AuditEntry, StoredKey

MOST_IDS_KEPT = 100
"""Of one taint's artifact ids: a cascade of ten thousand must not make a row of megabytes."""
_LOOKUPS = 4
"""Connections of its own, so that authenticating does not wait behind long reads."""


@asynccontextmanager
async def open_key_store(url: str, *, timeout_s: float = 10.0, access: Access = AS_WRITER) -> AsyncIterator[KeyStore]:
    """The keys of the ledger at `url`, its schema up to date. Raises: ConfigurationError, LedgerUnavailable."""
    async with open_database(url, timeout_s=timeout_s, pool_size=_LOOKUPS, access=access) as database:
        yield SqlKeyStore(database)


class SqlKeyStore:
    """`ports.KeyStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, key: StoredKey, *, valid_s: float | None, actor: str) -> StoredKey:
        async with self._database.writing() as connection:
            now = await self._database.now(connection)
            expires_at = None if valid_s is None else now + round(valid_s * 1e6)
            made = replace(key, created_at=now, expires_at=expires_at)
            await connection.execute(insert(keys).values(_row(made)))
            await record(connection, AuditEntry(now, "key_created", actor, key_id=key.key_id))
        return made

    async def find(self, key_id: str) -> StoredKey | None:
        async with self._database.reading() as connection:
            row = (await connection.execute(select(keys).where(keys.c.key_id == key_id))).one_or_none()
            return None if row is None else _key(row, now=await self._database.now(connection))

    async def list_keys(self) -> list[StoredKey]:
        async with self._database.reading() as connection:
            now = await self._database.now(connection)
            rows = await connection.execute(select(keys).order_by(keys.c.created_at, keys.c.key_id))
            return [_key(row, now=now) for row in rows]

    async def revoke(self, key_id: str, *, actor: str) -> bool:
        async with self._database.writing() as connection:
            now = await self._database.now(connection)
            row = (await connection.execute(select(keys).where(keys.c.key_id == key_id))).one_or_none()
            if row is None or row.revoked_at is not None:
                return row is not None
            await connection.execute(update(keys).where(keys.c.key_id == key_id).values(revoked_at=now))
            await record(connection, AuditEntry(now, "key_revoked", actor, key_id=key_id))
        return True

    async def touch(self, key_id: str) -> None:
        async with self._database.writing() as connection:
            now = await self._database.now(connection)
            await connection.execute(update(keys).where(keys.c.key_id == key_id).values(last_used_at=now))

    async def record_refusal(self, key_id: str, *, reason: str) -> None:
        async with self._database.writing() as connection:
            now = await self._database.now(connection)
            entry = AuditEntry(now, "key_refused", f"key:{key_id}", key_id=key_id, reason=reason)
            await record(connection, entry)

    async def audit(self, *, limit: int) -> list[AuditEntry]:
        async with self._database.reading() as connection:
            rows = await connection.execute(select(audit).order_by(audit.c.id.desc()).limit(limit))
            return [_entry(row) for row in rows]


async def record(connection: AsyncConnection, entry: AuditEntry) -> None:
    """Write an entry in the caller's transaction: what is audited and what was done stand or fall together."""
    await connection.execute(
        insert(audit).values(
            at=entry.at,
            action=entry.action,
            actor=entry.actor,
            tenant_id=entry.tenant_id,
            key_id=entry.key_id,
            artifact_count=entry.artifact_count,
            artifact_ids=list(entry.artifact_ids),
            chunks_removed=entry.chunks_removed,
            cascade_id=entry.cascade_id,
            reason=entry.reason,
        )
    )


def taint_entry(taint: Taint, *, at: int, chunks_removed: int) -> AuditEntry:
    """What the audit keeps of a committed taint."""
    return AuditEntry(
        at,
        "taint",
        taint.actor,
        tenant_id=taint.tenant_id,
        artifact_count=len(taint.artifact_ids),
        artifact_ids=taint.artifact_ids[:MOST_IDS_KEPT],
        chunks_removed=chunks_removed,
        cascade_id=taint.cascade_id,
        reason=taint.reason or "",
    )


def _row(key: StoredKey) -> Mapping[str, Any]:
    return {
        "key_id": key.key_id,
        "secret_hash": key.secret_hash,
        "name": key.name,
        "tenant_ids": list(key.tenant_ids),
        "roles": sorted(key.roles),
        "project_ids": None if key.project_ids is None else sorted(key.project_ids),
        "tags": None if key.tags is None else sorted(key.tags),
        "user_id": key.user_id,
        "requests_per_minute": key.requests_per_minute,
        "created_at": key.created_at,
        "expires_at": key.expires_at,
    }


def _key(row: Any, *, now: int) -> StoredKey:
    expired = row.expires_at is not None and row.expires_at <= now
    return StoredKey(
        key_id=row.key_id,
        secret_hash=row.secret_hash,
        name=row.name,
        tenant_ids=tuple(row.tenant_ids),
        roles=frozenset(row.roles),
        user_id=row.user_id,
        project_ids=None if row.project_ids is None else frozenset(row.project_ids),
        tags=None if row.tags is None else frozenset(row.tags),
        requests_per_minute=row.requests_per_minute,
        created_at=row.created_at,
        expires_at=row.expires_at,
        last_used_at=row.last_used_at,
        revoked_at=row.revoked_at,
        state="revoked" if row.revoked_at is not None else "expired" if expired else "good",
    )


def _entry(row: Any) -> AuditEntry:
    return AuditEntry(
        at=row.at,
        action=row.action,
        actor=row.actor,
        tenant_id=row.tenant_id,
        key_id=row.key_id,
        artifact_count=row.artifact_count,
        artifact_ids=tuple(row.artifact_ids),
        chunks_removed=row.chunks_removed,
        cascade_id=row.cascade_id,
        reason=row.reason,
    )
