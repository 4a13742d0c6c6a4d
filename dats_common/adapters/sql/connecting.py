"""From a URL to an engine: drivers, bounds, pragmas."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool
from sqlalchemy.util import await_only

from dats_common.errors import ConfigurationError

WRITES = "dats_writes"
"""Execution option of a connection whose next transaction writes; SQLite has to know before it begins."""

WRITE_LOCK_LOOK_S = 0.003


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
    _require_writable(Path(url.database))
    return build_sqlite_engine(url, pool_size=pool_size, timeout_s=timeout_s)


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
    return create_async_engine(
        url.set(drivername="postgresql+asyncpg"),
        connect_args={"timeout": timeout_s, "command_timeout": timeout_s, "server_settings": settings},
        **(
            {"poolclass": NullPool}
            if pool_size is None
            else {"pool_size": pool_size, "pool_timeout": timeout_s, "pool_pre_ping": True}
        ),
    )


def build_sqlite_engine(
    url: URL, *, pool_size: int, timeout_s: float, connect: Callable[..., Any] | None = None
) -> AsyncEngine:
    """The engine on a database file.

    Args:
        connect: opens a connection as `aiosqlite.connect` does, which is what None means; a simulation brings one that
            needs no thread.
    """
    engine = create_async_engine(
        url.set(drivername="sqlite+aiosqlite"),
        pool_size=pool_size,
        connect_args={"timeout": timeout_s},
        **({} if connect is None else {"async_creator": connect}),
    )
    event.listen(engine.sync_engine, "connect", _sqlite_pragmas)
    event.listen(engine.sync_engine, "begin", partial(_sqlite_begin, patience_ms=round(timeout_s * 1000)))
    return engine


def _server_side_bounds(timeout_s: float) -> dict[str, str]:
    """A process that hangs, or whose host is gone, must not hold an artifact's lock: taints would wait behind it."""
    bound_ms = str(max(1, round(timeout_s * 1000)))
    return {"statement_timeout": bound_ms, "idle_in_transaction_session_timeout": bound_ms}


def _require_writable(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab"):
            pass
    except OSError as error:
        raise ConfigurationError(f"cannot write the ledger at {path}: {error.strerror}") from error


def _sqlite_pragmas(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver must not begin transactions of its own: see _sqlite_begin
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    # FULL: an acknowledged commit survives power loss; in WAL mode NORMAL would not promise that.
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA wal_autocheckpoint=4000")
    cursor.close()


def _sqlite_begin(connection: Connection, *, patience_ms: int) -> None:
    if connection.get_execution_options().get(WRITES, False):
        _begin_writing(connection, patience_ms=patience_ms)
    else:
        connection.exec_driver_sql("BEGIN")


def _begin_writing(connection: Connection, *, patience_ms: int) -> None:
    """Take SQLite's one write lock; the caller bounds the wait. Everything else waits as SQLite does.

    IMMEDIATE: a read that turns into a write could otherwise fail with SQLITE_BUSY half-way. SQLite itself would look
    ever less often, every 100 ms in the end, and a busy writer leaves gaps of a few: a taint lost against it again and
    again and waited for a second. Looking every few milliseconds takes the first gap.
    Source: sqliteDefaultBusyCallback in SQLite's main.c.
    """
    connection.exec_driver_sql("PRAGMA busy_timeout=0")
    try:
        while not _has_begun(connection):
            await_only(asyncio.sleep(WRITE_LOCK_LOOK_S))
    finally:
        connection.exec_driver_sql(f"PRAGMA busy_timeout={patience_ms}")


def _has_begun(connection: Connection) -> bool:
    try:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    except OperationalError as error:
        # The low byte tells the kind; SQLITE_BUSY_RECOVERY and the like are as passing.
        if getattr(error.orig, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
            return False
        raise
    return True
