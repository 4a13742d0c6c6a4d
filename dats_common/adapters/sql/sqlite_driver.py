"""SQLite under SQLAlchemy's async engine, handing over to a thread only what may block.

A hand-over costs more than most statements do, and aiosqlite needs four for each. Reads need one here, for they may be
long; a write transaction needs one, for its commit, which waits for the disk. Whoever holds SQLite's one write lock
runs its statements in line: they are short, nothing can make them wait, and the lock is free sooner.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

T = TypeVar("T")

BEGIN_READING = "BEGIN"
BEGIN_WRITING = "BEGIN IMMEDIATE"
"""IMMEDIATE: a read that turns into a write could otherwise fail with SQLITE_BUSY half-way."""

WRITE_LOCK_LOOK_S = 0.003

_PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    # FULL: an acknowledged commit survives power loss; in WAL mode NORMAL would not promise that.
    "PRAGMA synchronous=FULL",
    "PRAGMA wal_autocheckpoint=4000",
)


class Connection:
    """What SQLAlchemy's `aiosqlite` dialect uses of `aiosqlite.Connection`; one task uses it at a time."""

    def __init__(self, raw: sqlite3.Connection, thread: ThreadPoolExecutor, *, busy_timeout_s: float) -> None:
        self.raw = raw
        self._thread = thread
        self._busy_timeout_s = busy_timeout_s
        self._holds_write_lock = False

    @property
    def _connection(self) -> sqlite3.Connection:
        """By which the dialect tells an open connection from a closed one."""
        return self.raw

    def cursor(self) -> Cursor:
        """A cursor of its own for each statement, as SQLAlchemy wants it."""
        return Cursor(self, self.raw.cursor())

    async def create_function(self, *args: Any, **kwargs: Any) -> None:
        """For the dialect's REGEXP."""
        self.raw.create_function(*args, **kwargs)

    async def run(self, statement: str, call: Callable[[], None]) -> None:
        """Execute a statement, in line if it cannot block. Raises: sqlite3.Error."""
        if self._holds_write_lock or statement == BEGIN_READING:
            call()
        elif statement == BEGIN_WRITING:
            await self._take_write_lock(call)
        else:
            await self._in_thread(call)

    async def _take_write_lock(self, begin: Callable[[], None]) -> None:
        """The caller bounds the wait.

        SQLite itself would look ever less often, every 100 ms in the end, and a busy writer leaves gaps of a few: a
        taint lost against it again and again and waited for a second. Looking every few milliseconds takes the first
        gap. Source: sqliteDefaultBusyCallback in SQLite's main.c.
        """
        self._wait_for_locks(0)
        try:
            while not self._holds_write_lock:
                try:
                    begin()
                    self._holds_write_lock = True
                except sqlite3.OperationalError as error:
                    # The low byte tells the kind; SQLITE_BUSY_RECOVERY and the like are as passing.
                    if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY:
                        raise
                    await asyncio.sleep(WRITE_LOCK_LOOK_S)
        finally:
            self._wait_for_locks(self._busy_timeout_s)

    def _wait_for_locks(self, seconds: float) -> None:
        self.raw.execute(f"PRAGMA busy_timeout={round(seconds * 1000)}")

    async def commit(self) -> None:
        """End the transaction; what it wrote is on the disk then. Raises: sqlite3.Error."""
        if not self._holds_write_lock:
            self.raw.commit()
            return
        await self._in_thread(self.raw.commit)
        self._holds_write_lock = False

    async def rollback(self) -> None:
        """End the transaction without a trace. Raises: sqlite3.Error."""
        self.raw.rollback()
        self._holds_write_lock = False

    async def close(self) -> None:
        """The last one to close the file writes its log back, which takes its time."""
        try:
            with suppress(RuntimeError):  # closed before: the thread takes nothing more
                await self._in_thread(self.raw.close)
        finally:
            self._thread.shutdown(wait=False)

    def stop(self) -> None:
        """Close without waiting, for a connection that nobody holds any more."""
        self._interrupt()
        with suppress(RuntimeError):
            self._thread.submit(self.raw.close)
        self._thread.shutdown(wait=False)

    def _interrupt(self) -> None:
        with suppress(sqlite3.ProgrammingError):  # closed: nothing runs
            self.raw.interrupt()

    async def _in_thread(self, call: Callable[[], T]) -> T:
        running = asyncio.get_running_loop().run_in_executor(self._thread, call)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            # Whoever leaves a long statement ends it: the connection is not free before. A commit cannot be ended.
            self._interrupt()
            await asyncio.wait([running])
            running.exception()  # marked as seen
            raise


class Cursor:
    """What SQLAlchemy uses of `aiosqlite.Cursor`; executing fetches the rows too, while the thread is at it."""

    arraysize = 1

    def __init__(self, connection: Connection, raw: sqlite3.Cursor) -> None:
        self._connection = connection
        self._raw = raw
        self._rows: list[Any] = []

    async def __aenter__(self) -> Self:
        return self

    @property
    def description(self) -> Any:
        """The columns, as DB-API has them; None after a statement without rows."""
        return self._raw.description

    @property
    def rowcount(self) -> int:
        """Rows that were changed."""
        return self._raw.rowcount

    @property
    def lastrowid(self) -> int | None:
        """The key of the row that was inserted last."""
        return self._raw.lastrowid

    async def execute(self, statement: str, parameters: Any = ()) -> Self:
        """Raises: sqlite3.Error."""

        def call() -> None:
            self._rows = self._raw.execute(statement, parameters).fetchall()

        await self._connection.run(statement, call)
        return self

    async def executemany(self, statement: str, parameters: Any) -> Self:
        """Raises: sqlite3.Error."""

        def call() -> None:
            self._raw.executemany(statement, parameters)

        await self._connection.run(statement, call)
        return self

    async def fetchall(self) -> list[Any]:
        """All rows, once."""
        rows, self._rows = self._rows, []
        return rows

    async def close(self) -> None:
        """Raises: sqlite3.Error."""
        self._raw.close()


async def open_connection(path: Path, *, timeout_s: float) -> Connection:
    """Open a database file with the durability that the ledger needs. Raises: sqlite3.Error."""

    def opened() -> sqlite3.Connection:
        # No isolation level: the driver must not begin transactions of its own.
        raw = sqlite3.connect(path, timeout=timeout_s, isolation_level=None, check_same_thread=False)
        for pragma in _PRAGMAS:
            raw.execute(pragma)
        return raw

    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sqlite")
    raw = await asyncio.get_running_loop().run_in_executor(thread, opened)
    return Connection(raw, thread, busy_timeout_s=timeout_s)
