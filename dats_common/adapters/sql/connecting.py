"""From a URL to an engine: drivers and bounds."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from sqlalchemy import URL, AdaptedConnection, event
from sqlalchemy import Connection as SyncConnection
from sqlalchemy.engine import make_url
from sqlalchemy.exc import InvalidatePoolError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from dats_common.adapters.sql.sqlite_driver import BEGIN_READING, BEGIN_WRITING, Connection, open_connection
from dats_common.errors import ConfigurationError

WRITES = "dats_writes"
"""Execution option of a connection whose next transaction writes; SQLite has to know before it begins."""


def parse_url(url: str) -> URL:
    """Raises: ConfigurationError: not the URL of a database that can be a ledger."""
    try:
        parsed = make_url(url)
    except SQLAlchemyError as error:
        raise ConfigurationError(
            "DATS_SQL_URL is not a database URL; use sqlite:///PATH or postgresql://..."
        ) from error
    if (backend := parsed.get_backend_name()) not in ("sqlite", "postgresql"):
        raise ConfigurationError(f"DATS_SQL_URL names {backend!r}; SQLite and PostgreSQL are supported")
    return parsed


def is_local(url: str) -> bool:
    """Whether only this machine's processes can be on the other end."""
    parsed = parse_url(url)
    hosts = [parsed.host, *parsed.normalized_query.get("host", ())]
    return all(host is None or host.startswith("/") or host in ("localhost", "127.0.0.1", "::1") for host in hosts)


def open_file(url: URL, *, pool_size: int, timeout_s: float) -> AsyncEngine:
    """The engine on the SQLite file that `url` names. Raises: ConfigurationError: it cannot be written."""
    if not url.database or url.database == ":memory:":
        raise ConfigurationError("the ledger needs a file: sqlite:///PATH (a memory database would lose it)")
    path = Path(url.database)
    _require_writable(path)
    return build_sqlite_engine(partial(open_connection, path, timeout_s=timeout_s), pool_size=pool_size)


def build_postgres_engine(
    url: URL, *, timeout_s: float, role: str | None = None, pool_size: int | None = None
) -> AsyncEngine:
    """The engine on a server.

    Args:
        role: what every session acts as from its first moment, so that nothing has to be set or reset later; None: the
            login itself.
        pool_size: None: each connection is closed after its use.
    """
    settings = _server_side_bounds(timeout_s) | ({} if role is None else {"role": role})
    engine = create_async_engine(
        url.set(drivername="postgresql+asyncpg"),
        connect_args={"timeout": timeout_s, "command_timeout": timeout_s, "server_settings": settings},
        **({"poolclass": NullPool} if pool_size is None else {"pool_size": pool_size, "pool_timeout": timeout_s}),
    )
    event.listen(engine.sync_engine, "checkout", _replace_if_lost)
    return engine


def _replace_if_lost(connection: AdaptedConnection, *_: object) -> None:
    """Have the pool open new connections where this one is lost. One round trip; a pool's own check takes three."""
    try:
        if connection.driver_connection.is_in_transaction():
            raise InvalidatePoolError("somebody's transaction was left open")
        connection.run_async(lambda driver: driver.execute("SELECT"))
    except Exception as error:
        # Of whatever kind: a session that the server has ended can also show as the driver's own confusion.
        raise InvalidatePoolError from error


def build_sqlite_engine(connect: Callable[[], Awaitable[Connection]], *, pool_size: int) -> AsyncEngine:
    """The engine on the database file whose connections `connect` opens."""
    engine = create_async_engine("sqlite+aiosqlite:///file", pool_size=pool_size, async_creator=connect)
    event.listen(engine.sync_engine, "begin", _sqlite_begin)
    return engine


def _server_side_bounds(timeout_s: float) -> dict[str, str]:
    """A process that hangs, or whose host is gone, must not hold an artifact's lock: taints would wait behind it."""
    bound_ms = str(max(1, round(timeout_s * 1000)))
    return {"statement_timeout": bound_ms, "idle_in_transaction_session_timeout": bound_ms}


def _require_writable(path: Path) -> None:
    """Asked of the system, never tried: closing a file of our own would end the locks that this process' other
    connections hold on it, and the next process to close would take the write-ahead log away from under them.
    Source: sqlite.org/howtocorrupt.html, section 2.2.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"cannot write the ledger at {path}: {error.strerror}") from error
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigurationError(f"cannot write the ledger at {path}: it is a directory, or may not be written")


def _sqlite_begin(connection: SyncConnection) -> None:
    writes = connection.get_execution_options().get(WRITES, False)
    connection.exec_driver_sql(BEGIN_WRITING if writes else BEGIN_READING)
