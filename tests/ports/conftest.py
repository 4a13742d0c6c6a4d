"""The ledger on both databases; SQLite's clock is a test's to move, PostgreSQL's is the server's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from ledgers import Clock, fresh_database, open_as_a_fleet

from dats_common.adapters.sql.ledger import open_ledger
from dats_common.ports import Ledger


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def database(request: pytest.FixtureRequest) -> str:
    """Which database; for a server, its URL."""
    return "sqlite" if request.param == "sqlite" else request.getfixturevalue("postgres").url


@pytest.fixture
async def ledger_url(database: str, tmp_path: Path) -> AsyncIterator[str]:
    """An empty database."""
    if database == "sqlite":
        yield f"sqlite:///{tmp_path / 'ledger.db'}"
    else:
        async with fresh_database(database) as url:
            yield url


@pytest.fixture
async def ledger(ledger_url: str) -> AsyncIterator[Ledger]:
    """A ledger in an empty database, on the real clock; on PostgreSQL each call under the role that makes it."""
    async with open_as_a_fleet(ledger_url) as opened:
        yield opened


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def timed(tmp_path: Path, clock: Clock) -> AsyncIterator[Ledger]:
    """A ledger that reads the test's clock."""
    async with open_ledger(f"sqlite:///{tmp_path / 'timed.db'}", clock=clock) as opened:
        yield opened
