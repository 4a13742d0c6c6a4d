"""Which releases run on which schema, as processes start and end in any order during an upgrade."""

from __future__ import annotations

import pytest
from ledgers import Writer, key, open_as_a_fleet, refs_of, tainted, text_of, validated
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from dats_common.adapters.sql.connecting import WRITES, build_postgres_engine, open_file, parse_url
from dats_common.adapters.sql.engine import migrate
from dats_common.adapters.sql.ledger import open_ledger
from dats_common.adapters.sql.schema import is_known, may_run_on, newest_version
from dats_common.errors import ConfigurationError


@pytest.mark.parametrize(
    ("found", "own", "may"),
    [
        ("0007_from_0006", "0006", True),
        ("0009_from_0006", "0007_from_0006", True),
        ("0009_from_0008", "0007_from_0006", False),
        ("0009_from_0008", "0008_from_0006", True),
        ("0007", "0006", False),
        ("0005_from_0003", "0006", False),
        ("somebody else's", "0006", False),
    ],
)
def test_a_process_runs_on_a_newer_schema_that_names_it(found: str, own: str, may: bool) -> None:
    assert may_run_on(found, own=own) is may


def test_every_revision_of_this_release_is_known_and_a_newer_one_is_not() -> None:
    assert is_known("0001")
    assert is_known(newest_version())
    assert not is_known("9999_from_0006")


async def brought_to(url: str, version: str) -> None:
    """What a newer release does: it adds, and names its revision."""
    engine: AsyncEngine = (
        open_file(parse_url(url), pool_size=1, timeout_s=10)
        if url.startswith("sqlite")
        else build_postgres_engine(parse_url(url), timeout_s=10)
    )
    async with engine.connect() as connection:
        await connection.execution_options(**{WRITES: True})
        async with connection.begin():
            await connection.execute(text("ALTER TABLE rag_chunks ADD COLUMN colour VARCHAR(16)"))
            await connection.execute(text("ALTER TABLE rag_artifacts ADD COLUMN weight INTEGER DEFAULT 1 NOT NULL"))
            await connection.execute(text("CREATE TABLE rag_later (id INTEGER PRIMARY KEY)"))
            await connection.execute(text("UPDATE alembic_version SET version_num = :version"), {"version": version})
    await engine.dispose()


async def test_a_process_of_this_release_starts_and_works_on_the_next_ones_schema(ledger_url: str) -> None:
    async with open_ledger(ledger_url):
        pass
    newer = f"9999_from_{newest_version()[:4]}"
    await brought_to(ledger_url, newer)
    assert await migrate(ledger_url) == newer
    async with open_as_a_fleet(ledger_url) as ledger:
        refs = refs_of(await (await Writer.of(ledger)).publish(validated(at_s=1)))
        assert await text_of(ledger, refs) == "one content"
        await ledger.taint(tainted(key().artifact_id, at_s=2), skew_s=0)
        assert await text_of(ledger, refs) is None


async def test_a_process_is_refused_where_the_schema_no_longer_has_what_it_needs(ledger_url: str) -> None:
    async with open_ledger(ledger_url):
        pass
    await brought_to(ledger_url, "9999_from_9998")
    with pytest.raises(ConfigurationError, match=f"9999_from_9998, which is newer .* knows {newest_version()}\\)"):
        async with open_ledger(ledger_url):
            pass
