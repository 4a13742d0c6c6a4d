"""Opening the ledger's database: pragmas, durability and role checks, and the translation of driver errors."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import groupby
from uuid import uuid4

from asyncpg.exceptions import InternalClientError
from sqlalchemy import URL, BigInteger, ColumnElement, literal_column, select
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from dats_common.adapters.sql.connecting import WRITES, build_postgres_engine, open_file, parse_url
from dats_common.adapters.sql.row_security import AS_WRITER, Access, act_for, require_bound, require_membership
from dats_common.adapters.sql.schema import is_known, may_run_on, newest_version, upgrade, version_of
from dats_common.domain.model import ArtifactKey
from dats_common.errors import ConfigurationError, LedgerUnavailable, LoginRefused, StorageFailed

_SERVER_CLOCK = literal_column("(extract(epoch FROM clock_timestamp()) * 1000000)::bigint", BigInteger)
_ASK_SERVER_CLOCK = select(_SERVER_CLOCK)


def unix_microseconds() -> int:
    """The machine's clock as an ORD."""
    return time.time_ns() // 1000


@dataclass
class Database:
    """One database, with every wait bounded and every driver error translated at this rim.

    Attributes:
        clock: the ledger's clock on SQLite; Postgres asks the server.
        sees_one_tenant: every transaction sees the tenant that it acts for and no other: a replica on Postgres.
        new_id: names an event that nobody else has named.
    """

    engine: AsyncEngine
    timeout_s: float
    clock: Callable[[], int] = unix_microseconds
    new_id: Callable[[], str] = lambda: str(uuid4())
    sees_one_tenant: bool = False
    _sqlite_writes: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_sqlite(self) -> bool:
        """Whether this is the embedded engine: one writer at a time, the clock is this machine's."""
        return self.engine.dialect.name == "sqlite"

    @asynccontextmanager
    async def reading(self, tenant_id: str | None = None) -> AsyncIterator[AsyncConnection]:
        """A read transaction on behalf of a tenant, or of nobody. Raises: LedgerUnavailable."""
        async with self._bounded(), self.engine.connect() as connection:
            await self._act_for(connection, tenant_id)
            yield connection

    @asynccontextmanager
    async def writing(self, tenant_id: str | None = None) -> AsyncIterator[AsyncConnection]:
        """A write transaction on behalf of a tenant, or of nobody; committed at the end of the block.

        Raises: LedgerUnavailable.
        """
        async with self._bounded():
            if not self.is_sqlite:
                async with self.engine.begin() as connection:
                    await self._act_for(connection, tenant_id)
                    yield connection
                return
            # SQLite lets one writer in and has the others poll; within one process, waiting is fair and wakes at once.
            async with self._sqlite_writes, self.engine.connect() as connection:
                await connection.execution_options(**{WRITES: True})
                async with connection.begin():
                    yield connection

    async def _act_for(self, connection: AsyncConnection, tenant_id: str | None) -> None:
        if self.sees_one_tenant and tenant_id is not None:
            await act_for(connection, tenant_id)

    def shares(self, keys: Sequence[ArtifactKey]) -> Iterator[tuple[str | None, Sequence[ArtifactKey]]]:
        """Parts of `keys` that one transaction sees in full, each with the tenant to act for."""
        if not self.sees_one_tenant:
            yield None, keys
            return
        for tenant_id, part in groupby(sorted(keys), key=lambda key: key.tenant_id):
            yield tenant_id, list(part)

    @asynccontextmanager
    async def _bounded(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self.timeout_s):
                yield
        except TimeoutError as error:
            raise LedgerUnavailable(f"the ledger did not answer within {self.timeout_s} s") from error
        except (OSError, DBAPIError, OperationalError, InternalClientError) as error:
            raise _kind_of(error)(f"the ledger {_WORDS[_kind_of(error)]}: {_brief(error)}") from error
        except SQLAlchemyError as error:
            raise LedgerUnavailable(f"the ledger refused: {_brief(error)}") from error

    async def now(self, connection: AsyncConnection) -> int:
        """The ledger's clock as an ORD."""
        if self.is_sqlite:
            return self.clock()
        return int((await connection.execute(_ASK_SERVER_CLOCK)).scalar_one())

    def now_inline(self) -> int | ColumnElement[int]:
        """The same as a value within a statement, for whom a round trip is too much and who need not know it."""
        return self.clock() if self.is_sqlite else _SERVER_CLOCK


_WORDS: dict[type[LedgerUnavailable], str] = {
    LedgerUnavailable: "is away",
    LoginRefused: "refused the login of DATS_SQL_URL",
    StorageFailed: "cannot write",
}


def _kind_of(error: Exception) -> type[LedgerUnavailable]:
    """What a driver's error means for whoever called."""
    original = getattr(error, "orig", None)
    # Classes of SQLSTATE: PostgreSQL's manual, appendix A. SQLite: the low byte of its result codes.
    sqlstate = str(getattr(original, "sqlstate", None) or "")
    code = getattr(original, "sqlite_errorcode", 0) & 0xFF
    if sqlstate.startswith("28"):
        return LoginRefused
    if sqlstate == "53100" or sqlstate.startswith("58") or code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        return StorageFailed
    return LedgerUnavailable


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
    access: Access = AS_WRITER,
) -> AsyncIterator[Database]:
    """Connect, check what the promise needs, and bring the schema up to date.

    Args:
        url: `sqlite:///PATH` or `postgresql://...`; the async driver is chosen here.
        timeout_s: bound of every transaction.
        access: on PostgreSQL, as whom.

    Raises:
        ConfigurationError: the URL is unusable, the path cannot be written, the server would lose commits, or row
            level security would not bind this process.
        LedgerUnavailable: the server does not answer.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        database = Database(open_file(parsed, pool_size=pool_size, timeout_s=timeout_s), timeout_s, clock)
    else:
        await migrate(access.migration_url or url, timeout_s=timeout_s)
        async with _as_login(parsed, timeout_s=timeout_s) as login, login.writing() as connection:
            await require_membership(connection, access)
        engine = build_postgres_engine(parsed, timeout_s=timeout_s, role=access.role, pool_size=pool_size)
        database = Database(engine, timeout_s, sees_one_tenant=access.acting == "query")
    try:
        if database.is_sqlite:
            await _prepare(database)
        else:
            async with database.reading() as connection:
                await require_bound(connection, access)
        yield database
    finally:
        await database.engine.dispose()


async def migrate(url: str, *, timeout_s: float = 10.0) -> str:
    """Bring the schema at `url` up to date, and on PostgreSQL the roles. Returns the version that it has then, which is
    newer than this release's where a newer one was there before.

    Raises:
        ConfigurationError: the login may not do it, or the server would lose commits.
        LedgerUnavailable: the server does not answer.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        async with open_database(url, timeout_s=timeout_s) as database:
            return await _version(database)
    async with _as_login(parsed, timeout_s=timeout_s) as database:
        await _prepare(database)
        return await _version(database)


async def _version(database: Database) -> str:
    async with database.reading() as connection:
        return str(await version_of(connection))


async def _prepare(database: Database) -> None:
    await _check_durability(database)
    async with database.reading() as connection:
        found, needed = await version_of(connection), newest_version()
    if found == needed:
        return  # a login that may read the version need not be one that may change the schema
    if found is not None and not is_known(found):
        if may_run_on(found, own=needed):
            return
        raise ConfigurationError(
            f"the schema is at version {found}, which is newer than this release and no longer for it (it knows "
            f"{needed}). Start a newer release; the schema is not taken back"
        )
    try:
        async with database.writing() as connection:
            await upgrade(connection)
    except LedgerUnavailable as error:
        if getattr(getattr(error.__cause__, "orig", None), "sqlstate", None) != _INSUFFICIENT_PRIVILEGE:
            raise
        raise ConfigurationError(
            f"the schema is at version {found} and this release needs {needed}, but {error}. Run `dats-rag migrate` "
            "with DATS_SQL_MIGRATION_URL, the URL of a login that owns the tables and may create roles"
        ) from error


_INSUFFICIENT_PRIVILEGE = "42501"  # Source: PostgreSQL manual, appendix A


@asynccontextmanager
async def _as_login(url: URL, *, timeout_s: float) -> AsyncIterator[Database]:
    """The database as the login itself, for the checks and the migrations before a process takes its role."""
    engine = build_postgres_engine(url, timeout_s=timeout_s)
    try:
        yield Database(engine, timeout_s=timeout_s)
    finally:
        await engine.dispose()


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
