"""The SQLite driver beyond what the ledger's own tests see: the loop stays free, nothing leaks."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dats_common.adapters.sql.ledger import open_ledger
from dats_common.adapters.sql.sqlite_driver import BEGIN_READING, BEGIN_WRITING, Connection, open_connection

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


@pytest.fixture
async def connection(tmp_path: Path) -> AsyncIterator[Connection]:
    connection = await open_connection(tmp_path / "ledger.db", timeout_s=5)
    await connection.cursor().execute("CREATE TABLE t (x)")
    yield connection
    await connection.close()


async def count(connection: Connection) -> int:
    cursor = await connection.cursor().execute("SELECT count(*) FROM t")
    ((number,),) = await cursor.fetchall()
    return int(number)


async def test_a_commit_is_there_for_others_and_a_rollback_is_not(connection: Connection, tmp_path: Path) -> None:
    for end, expected in ((connection.rollback, 0), (connection.commit, 1)):
        await connection.cursor().execute(BEGIN_WRITING)
        cursor = await connection.cursor().execute("INSERT INTO t VALUES (?)", (1,))
        assert (cursor.rowcount, cursor.lastrowid, cursor.description) == (1, 1, None)
        await end()
        other = await open_connection(tmp_path / "ledger.db", timeout_s=5)
        assert await count(other) == expected
        await other.close()


async def test_it_is_durable_and_begins_no_transaction_by_itself(connection: Connection) -> None:
    for pragma, expected in (("journal_mode", "wal"), ("synchronous", 2)):
        cursor = await connection.cursor().execute(f"PRAGMA {pragma}")
        assert await cursor.fetchall() == [(expected,)]
    await connection.cursor().executemany("INSERT INTO t VALUES (?)", [(1,), (2,)])
    assert not connection.raw.in_transaction


async def test_a_long_read_leaves_the_loop_free_and_ends_when_nobody_waits_for_it(connection: Connection) -> None:
    await connection.cursor().execute(BEGIN_READING)
    reading = asyncio.create_task(connection.cursor().execute(ENDLESS))
    await asyncio.sleep(0.05)  # the loop runs meanwhile
    assert not reading.done()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(reading, 5)
    await connection.rollback()
    assert await count(connection) == 0, "the connection is usable"


async def test_the_write_lock_is_waited_for_without_blocking_the_loop(connection: Connection, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    beginning = asyncio.create_task(connection.cursor().execute(BEGIN_WRITING))
    await asyncio.sleep(0.05)  # the loop runs meanwhile
    assert not beginning.done()
    other.execute("COMMIT")
    await asyncio.wait_for(beginning, 5)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("PRAGMA busy_timeout=0").connection.execute("BEGIN IMMEDIATE")
    await connection.commit()
    other.execute("BEGIN IMMEDIATE").connection.close()


async def test_who_stops_waiting_for_the_write_lock_never_takes_it(connection: Connection, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await connection.cursor().execute(BEGIN_WRITING)
    other.execute("COMMIT")
    other.execute("BEGIN IMMEDIATE")
    other.close()
    cursor = await connection.cursor().execute("PRAGMA busy_timeout")
    assert await cursor.fetchall() == [(5000,)], "reads are patient again"


async def test_an_error_that_is_not_about_locks_is_told(connection: Connection) -> None:
    await connection.cursor().execute(BEGIN_WRITING)
    with pytest.raises(sqlite3.OperationalError, match="within a transaction"):
        await connection.cursor().execute(BEGIN_WRITING)
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        await connection.cursor().execute("SELECT * FROM missing")


async def test_closing_ends_the_thread_also_where_nobody_waits(tmp_path: Path) -> None:
    def ours() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("sqlite")}

    before = ours()
    closed, stopped = [await open_connection(tmp_path / "ledger.db", timeout_s=5) for _ in range(2)]
    started = ours() - before
    assert len(started) == 2
    await closed.close()
    await closed.close()
    closed.stop()
    stopped.stop()
    stopped.stop()
    for thread in started:
        await asyncio.to_thread(thread.join, 5)
    assert not ours() & started


async def test_a_second_opening_in_one_process_leaves_the_locks_of_the_first(tmp_path: Path) -> None:
    """Without its locks another process that closes would take the write-ahead log away from under it."""
    path = tmp_path / "ledger.db"
    url = f"sqlite:///{path}"
    log = path.with_name("ledger.db-wal")
    async with open_ledger(url) as ledger:
        before = await ledger.activate("one")
        async with open_ledger(url):
            inode = log.stat().st_ino
            visit = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT * FROM rag_tags').fetchall()"
            await asyncio.to_thread(subprocess.run, [sys.executable, "-c", visit, path], check=True, timeout=60)
            assert log.exists()
            assert log.stat().st_ino == inode
            assert await ledger.activate("two") == before + 1
