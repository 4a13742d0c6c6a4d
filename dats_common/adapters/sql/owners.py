"""Tags and the users who own them, over SQLAlchemy in the ledger's database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import Select, and_, delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from dats_common.adapters.sql.engine import Database, open_database
from dats_common.adapters.sql.identity import record
from dats_common.adapters.sql.row_security import AS_WRITER, Access
from dats_common.adapters.sql.rows import insert, slices
from dats_common.adapters.sql.tables import tags, users
from dats_common.errors import InvalidInput
from dats_common.ports import Owners
from dats_common.records import AuditEntry, TagOwner, User

_CONNECTIONS = 2
_SHOWN_TAGS = 3


@asynccontextmanager
async def open_owners(url: str, *, timeout_s: float = 10.0, access: Access = AS_WRITER) -> AsyncIterator[Owners]:
    """The owners in the ledger at `url`, its schema up to date. Raises: ConfigurationError, LedgerUnavailable."""
    async with open_database(url, timeout_s=timeout_s, pool_size=_CONNECTIONS, access=access) as database:
        yield SqlOwners(database)


class SqlOwners:
    """`ports.Owners`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def owner_of(self, tag: str, *, tenant_id: str) -> TagOwner | None:
        async with self._database.reading(tenant_id) as connection:
            row = (await connection.execute(_tags_of(tenant_id).where(tags.c.name == tag))).one_or_none()
            return None if row is None else _tag(row)

    async def list_tags(self, *, tenant_id: str) -> list[TagOwner]:
        async with self._database.reading(tenant_id) as connection:
            rows = await connection.execute(_tags_of(tenant_id))
            return sorted(map(_tag, rows), key=lambda tag: tag.tag)

    async def list_users(self, *, tenant_id: str) -> list[User]:
        async with self._database.reading(tenant_id) as connection:
            rows = await connection.execute(select(users).where(users.c.tenant_id == tenant_id))
            return sorted((User(row.user_id, row.email, row.name) for row in rows), key=lambda user: user.user_id)

    async def put(self, users: Sequence[User], tags: Sequence[TagOwner], *, tenant_id: str, actor: str) -> None:
        async with self._database.writing(tenant_id) as connection:
            await _put_users(connection, users, tenant_id)
            await _require_owners(connection, tags, tenant_id)
            await _put_tags(connection, tags, tenant_id)
            await self._audit(connection, f"{len(users)} users and {len(tags)} tags set", tenant_id, actor)

    async def remove_tag(self, tag: str, *, tenant_id: str, actor: str) -> bool:
        async with self._database.writing(tenant_id) as connection:
            done = await connection.execute(delete(tags).where(tags.c.tenant_id == tenant_id, tags.c.name == tag))
            if done.rowcount:
                await self._audit(connection, f"tag {tag!r} removed", tenant_id, actor)
            return bool(done.rowcount)

    async def remove_user(self, user_id: str, *, tenant_id: str, actor: str) -> bool:
        async with self._database.writing(tenant_id) as connection:
            of_this = (users.c.tenant_id == tenant_id, users.c.user_id == user_id)
            done = await connection.execute(delete(users).where(*of_this))
            if done.rowcount:
                await self._audit(connection, f"user {user_id!r} removed", tenant_id, actor)
            return bool(done.rowcount)

    async def _audit(self, connection: AsyncConnection, what: str, tenant_id: str, actor: str) -> None:
        now = await self._database.now(connection)
        await record(connection, AuditEntry(now, "owners_changed", actor, tenant_id=tenant_id, reason=what))


async def _put_users(connection: AsyncConnection, wanted: Sequence[User], tenant_id: str) -> None:
    # By id, so that two calls lock in one order.
    rows = [
        {"tenant_id": tenant_id, "user_id": user.user_id, "email": user.email, "name": user.name}
        for user in sorted(wanted, key=lambda user: user.user_id)
    ]
    if rows:
        statement = insert(users, connection)
        replaced = {name: statement.excluded[name] for name in ("email", "name")}
        await connection.execute(
            statement.on_conflict_do_update(index_elements=["tenant_id", "user_id"], set_=replaced), rows
        )


async def _require_owners(connection: AsyncConnection, wanted: Sequence[TagOwner], tenant_id: str) -> None:
    named = sorted({tag.user_id for tag in wanted if tag.user_id is not None})
    known: set[str] = set()
    for part in slices(named):
        found = await connection.execute(
            select(users.c.user_id).where(users.c.tenant_id == tenant_id, users.c.user_id.in_(part))
        )
        known |= set(found.scalars())
    orphans = [
        f"tag {tag.tag!r}: there is no user {tag.user_id!r}" for tag in wanted if tag.user_id not in {None, *known}
    ]
    if orphans:
        more = [f"and {len(orphans) - _SHOWN_TAGS} more"] if len(orphans) > _SHOWN_TAGS else []
        raise InvalidInput("; ".join([*orphans[:_SHOWN_TAGS], *more]))


async def _put_tags(connection: AsyncConnection, wanted: Sequence[TagOwner], tenant_id: str) -> None:
    rows = [
        {"tenant_id": tenant_id, "name": tag.tag, "owner_user_id": tag.user_id, "description": tag.description}
        for tag in sorted(wanted, key=lambda tag: tag.tag)
    ]
    if rows:
        statement = insert(tags, connection)
        replaced = {name: statement.excluded[name] for name in ("owner_user_id", "description")}
        await connection.execute(
            statement.on_conflict_do_update(index_elements=["tenant_id", "name"], set_=replaced), rows
        )


def _tags_of(tenant_id: str) -> Select[Any]:
    owner = and_(users.c.tenant_id == tags.c.tenant_id, users.c.user_id == tags.c.owner_user_id)
    return select(tags, users.c.email).outerjoin(users, owner).where(tags.c.tenant_id == tenant_id)


def _tag(row: Any) -> TagOwner:
    return TagOwner(row.name, row.owner_user_id, row.email, row.description)
