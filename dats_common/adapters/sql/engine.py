"""Opening the ledger's database: pragmas, durability checks, migrations, and the translation of driver errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from alembic import command
from alembic.config import Config
from sqlalchemy import URL, Connection, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from dats_common.errors import ConfigurationError, LedgerUnavailable

MIGRATIONS = Path(__file__).parent / "migrations"
# Any constant: it only has to be the same in every process that migrates the same Postgres database.
_MIGRATION_LOCK = 0x0DA7_5A6E


def unix_microseconds() -> int:
    """The machine's clock as an ORD."""
    return time.time_ns() // 1000


@dataclass
class Database:
    """One database, with every wait bounded and every driver error translated at this rim.

    Attributes:
        clock: the ledger's clock on SQLite; Postgres asks the server.
        new_id: names an event that nobody else has named.
    """

    engine: AsyncEngine
    timeout_s: float
    clock: Callable[[], int] = unix_microseconds
    new_id: Callable[[], str] = lambda: str(uuid4())
    _sqlite_writes: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_sqlite(self) -> bool:
        """Whether this is the embedded engine: one writer at a time, the clock is this machine's."""
        return self.engine.dialect.name == "sqlite"

    @asynccontextmanager
    async def reading(self, tenant_id: str | None = None) -> AsyncIterator[AsyncConnection]:
        """A read transaction on behalf of a tenant, or of nobody. Raises: LedgerUnavailable."""
        async with self._bounded(), self.engine.connect() as connection:
            yield connection

    @asynccontextmanager
    async def writing(self, tenant_id: str | None = None) -> AsyncIterator[AsyncConnection]:
        """A write transaction on behalf of a tenant, or of nobody; committed at the end of the block.

        Raises: LedgerUnavailable.
        """
        async with self._bounded():
            if not self.is_sqlite:
                async with self.engine.begin() as connection:
                    yield connection
                return
            # SQLite lets one writer in and has the others poll; waiting here is fair and wakes at once.
            async with self._sqlite_writes, self.engine.connect() as connection:
                await connection.execution_options(sqlite_begin="BEGIN IMMEDIATE")
                async with connection.begin():
                    yield connection

    @asynccontextmanager
    async def _bounded(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self.timeout_s):
                yield
        except TimeoutError as error:
            raise LedgerUnavailable(f"the ledger did not answer within {self.timeout_s} s") from error
        except (OSError, DBAPIError, OperationalError) as error:
            raise LedgerUnavailable(f"the ledger is away: {_brief(error)}") from error
        except SQLAlchemyError as error:
            raise LedgerUnavailable(f"the ledger refused: {_brief(error)}") from error

    async def now(self, connection: AsyncConnection) -> int:
        """The ledger's clock as an ORD."""
        if self.is_sqlite:
            return self.clock()
        row = await connection.execute(text("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"))
        return int(row.scalar_one())


def _brief(error: Exception) -> str:
    """A driver's message without the statement and its parameters: those hold content."""
    original = getattr(error, "orig", None) or error
    return f"{type(original).__name__}: {str(original).splitlines()[0] if str(original) else ''}"[:300]


@asynccontextmanager
async def open_database(
    url: str,
    *,
    timeout_s: float = 10.0,
    pool_size: int = 8,
    clock: Callable[[], int] = unix_microseconds,
) -> AsyncIterator[Database]:
    """Connect, check what the promise needs, and bring the schema up to date.

    Args:
        url: `sqlite:///PATH` or `postgresql://...`; the async driver is chosen here.
        timeout_s: bound of every transaction.

    Raises:
        ConfigurationError: the URL is unusable, the path cannot be written, or the server would lose commits.
        LedgerUnavailable: the server does not answer.
    """
    engine = _engine(url, pool_size=pool_size, timeout_s=timeout_s)
    database = Database(engine, timeout_s=timeout_s, clock=clock)
    try:
        await _check_durability(database)
        await _migrate(database)
        yield database
    finally:
        await engine.dispose()


def _engine(url: str, *, pool_size: int, timeout_s: float) -> AsyncEngine:
    try:
        parsed = make_url(url)
    except SQLAlchemyError as error:
        raise ConfigurationError(
            "DATS_SQL_URL is not a database URL; use sqlite:///PATH or postgresql://..."
        ) from error
    if parsed.get_backend_name() == "sqlite":
        if not parsed.database or parsed.database == ":memory:":
            raise ConfigurationError("the ledger needs a file: sqlite:///PATH (a memory database would lose it)")
        _require_writable(Path(parsed.database))
        return build_sqlite_engine(parsed.database, pool_size=pool_size, timeout_s=timeout_s)
    if parsed.get_backend_name() == "postgresql":
        return create_async_engine(
            parsed.set(drivername="postgresql+asyncpg"),
            pool_size=pool_size,
            pool_timeout=timeout_s,
            pool_pre_ping=True,
            connect_args={
                "timeout": timeout_s,
                "command_timeout": timeout_s,
                "server_settings": _server_side_bounds(timeout_s),
            },
        )
    raise ConfigurationError(f"DATS_SQL_URL names {parsed.get_backend_name()!r}; SQLite and PostgreSQL are supported")


def build_sqlite_engine(
    path: str, *, pool_size: int, timeout_s: float, connect: Callable[..., Any] | None = None
) -> AsyncEngine:
    """The engine on a database file.

    Args:
        connect: opens a connection as `aiosqlite.connect` does, which is what None means; a simulation brings one that
            needs no thread.
    """
    engine = create_async_engine(
        URL.create("sqlite+aiosqlite", database=path),
        pool_size=pool_size,
        connect_args={"timeout": timeout_s},
        **({} if connect is None else {"async_creator": connect}),
    )
    event.listen(engine.sync_engine, "connect", _sqlite_pragmas)
    event.listen(engine.sync_engine, "begin", _sqlite_begin)
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


def _sqlite_begin(connection: Connection) -> None:
    # IMMEDIATE for writes: a read that turns into a write could otherwise fail with SQLITE_BUSY half-way.
    connection.exec_driver_sql(connection.get_execution_options().get("sqlite_begin", "BEGIN"))


async def _check_durability(database: Database) -> None:
    async with database.reading() as connection:
        if database.is_sqlite:
            mode = (await connection.exec_driver_sql("PRAGMA journal_mode")).scalar_one()
            level = (await connection.exec_driver_sql("PRAGMA synchronous")).scalar_one()
            if mode != "wal" or level != 2:
                raise ConfigurationError(
                    f"the ledger needs WAL and synchronous=FULL, but this file system gives {mode}/{level}; "
                    "put the data directory on a local disk"
                )
            return
        level = (await connection.exec_driver_sql("SHOW synchronous_commit")).scalar_one()
        if level == "off":
            raise ConfigurationError(
                "PostgreSQL runs with synchronous_commit=off: an acknowledged taint could be lost; switch it on"
            )


async def _migrate(database: Database) -> None:
    async with database.writing() as connection:
        if not database.is_sqlite:
            await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
        await connection.run_sync(_upgrade)


def _upgrade(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
