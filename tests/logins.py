"""Logins and databases of PostgreSQL as an administrator makes them; dropped afterwards."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import asyncpg


@asynccontextmanager
async def fresh_login(database_url: str, *, can: str = "", member_of: str = "") -> AsyncIterator[str]:
    """URL of the same database for a new login.

    Args:
        can: attributes, such as `CREATEROLE`.
        member_of: a role.
    """
    name, password = f"login_{uuid.uuid4().hex[:12]}", secrets.token_hex(16)
    administrator = await asyncpg.connect(database_url, timeout=10)
    try:
        await administrator.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{password}' {can}")
        if member_of:
            await administrator.execute(f"GRANT {member_of} TO {name}")
        address = urlsplit(database_url)
        yield address._replace(netloc=f"{name}:{password}@{address.hostname}:{address.port or 5432}").geturl()
        await administrator.execute(f"DROP ROLE {name}")
    finally:
        await administrator.close()


@asynccontextmanager
async def owned_database(server_url: str, *, can: str = "CREATEROLE") -> AsyncIterator[tuple[str, str]]:
    """A new database that belongs to a new login: its URL for the owner and for the administrator."""
    async with fresh_login(server_url, can=can) as owner:
        name = urlsplit(owner).username
        administrator = await asyncpg.connect(server_url, timeout=10)
        try:
            await administrator.execute(f"CREATE DATABASE {name} OWNER {name} TEMPLATE template0")
            yield (
                urlsplit(owner)._replace(path=f"/{name}").geturl(),
                urlsplit(server_url)._replace(path=f"/{name}").geturl(),
            )
            await administrator.execute(f"DROP DATABASE {name} WITH (FORCE)")
        finally:
            await administrator.close()
