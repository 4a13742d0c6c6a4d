"""Real SQLite under the real SQLAlchemy, without the driver's thread: statements run in line, at points of the seed.

What is replaced is only the hand-over. Files, WAL, locks and transactions are SQLite's own; a lock that another
connection holds is waited for as SQLite's busy handler does it, in virtual time.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy.ext.asyncio import AsyncEngine

from dats_common.adapters.sql import sqlite_driver
from dats_common.adapters.sql.connecting import build_sqlite_engine
from dats_common.adapters.sql.ledger import open_ledger

TIMEOUT_S = 5.0
_BUSY_PAUSE_S = 0.004


class Host(Protocol):
    """The simulated process that a connection belongs to."""

    database: Path
    connections: list[Connection]

    def pause(self, statement: str) -> Awaitable[None]:
        """Where others may run before the statement does."""

    def after_commit(self) -> Awaitable[None]:
        """Where a commit has happened and nobody was told."""


class Connection(sqlite_driver.Connection):
    """The production driver's connection, with a point of the seed where it would have handed over or waited."""

    def __init__(self, host: Host) -> None:
        raw = sqlite3.connect(host.database, timeout=0.0, isolation_level=None, check_same_thread=False)
        super().__init__(raw, ThreadPoolExecutor(max_workers=1), busy_timeout_s=0.0)
        self._host = host
        host.connections.append(self)

    async def run(self, statement: str, call: Callable[[], Any]) -> None:
        """Execute once the lock that it needs is free. Raises: sqlite3.OperationalError: not within the timeout."""
        await self._host.pause(statement)
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + TIMEOUT_S
        while True:
            try:
                call()
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or loop.time() >= give_up_at:
                    raise
                await asyncio.sleep(_BUSY_PAUSE_S)
            else:
                return

    async def commit(self) -> None:
        if self.raw.in_transaction:
            await self.run("COMMIT", self.raw.commit)
            await self._host.after_commit()

    async def rollback(self) -> None:
        with suppress(sqlite3.ProgrammingError):  # the process is dead, and SQLite has rolled back
            self.raw.rollback()

    async def close(self) -> None:
        self.stop()

    def stop(self) -> None:
        """As the kernel does it for a killed process: whatever was not committed is gone."""
        self.raw.close()
        if self in self._host.connections:
            self._host.connections.remove(self)


class EngineSlot:
    """A SQLAlchemy engine that outlives the runs, for its compiled statements; the connections do not."""

    def __init__(self) -> None:
        self.host: Host | None = None
        self.engine: AsyncEngine = build_sqlite_engine(self._connect, pool_size=8)

    async def _connect(self) -> Connection:
        if self.host is None:
            raise sqlite3.OperationalError("no active connection")
        return Connection(self.host)

    async def let(self, host: Host | None) -> None:
        """From now on the engine is this process'; the pool of the one before is forgotten with it."""
        self.host = host
        await self.engine.dispose(close=False)


class _Opening:
    """Nobody's process, while an engine learns which SQLite it is on: that must not be part of the first run."""

    def __init__(self, database: Path) -> None:
        self.database = database
        self.connections: list[Connection] = []

    async def pause(self, statement: str) -> None:
        return

    async def after_commit(self) -> None:
        return


class Slots:
    """An engine for each process name."""

    def __init__(self, *names: str) -> None:
        self._slots = {name: EngineSlot() for name in names}
        asyncio.run(self._open(template()))

    async def _open(self, database: Path) -> None:
        for slot in self._slots.values():
            opening = _Opening(database)
            await slot.let(opening)
            async with slot.engine.connect() as connection:
                await connection.exec_driver_sql("SELECT 1")
            await slot.engine.dispose()

    def __getitem__(self, name: str) -> EngineSlot:
        return self._slots[name]


@lru_cache(maxsize=1)
def scratch() -> Path:
    """A directory of this program, in memory where the system has such a place; the system removes it at its end."""
    memory = Path("/dev/shm")
    directory = tempfile.TemporaryDirectory(prefix="dats-sim-", dir=memory if memory.is_dir() else None)
    _KEPT.append(directory)
    return Path(directory.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


@lru_cache(maxsize=1)
def template() -> Path:
    """An empty ledger with its schema, made by the production code."""
    path = scratch() / "template.db"

    async def migrate() -> None:
        async with open_ledger(f"sqlite:///{path}"):
            pass

    asyncio.run(migrate())
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return path


def fresh_database(name: str) -> Path:
    """A ledger of its own for a run."""
    path = scratch() / f"{name}.db"
    remove_database(path)
    shutil.copyfile(template(), path)
    return path


def remove_database(path: Path) -> None:
    """With what SQLite keeps beside it."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
