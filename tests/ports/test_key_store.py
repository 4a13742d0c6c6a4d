"""Keys and the audit on both databases: of a secret only its hash, and what is revoked is gone at once."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import asyncpg
import pytest
from ledgers import Writer, tainted, validated

from dats_common.adapters.sql.identity import MOST_IDS_KEPT, open_key_store
from dats_common.adapters.sql.ledger import open_ledger
from dats_common.domain.keys import ENTROPY_BYTES, PlainKey, make_key
from dats_common.domain.model import EventTime, Taint
from dats_common.errors import LedgerUnavailable
from dats_common.ports import KeyStore, Ledger
from dats_common.records import StoredKey


@pytest.fixture
async def keys(ledger_url: str) -> AsyncIterator[KeyStore]:
    async with open_key_store(ledger_url) as opened:
        yield opened


def new() -> tuple[PlainKey, StoredKey]:
    """A key with everything that can be said of one."""
    key = make_key(secrets.token_bytes(ENTROPY_BYTES))
    return key, StoredKey(
        key_id=key.key_id,
        secret_hash=key.secret_hash,
        name="worker pool",
        tenant_ids=("acme", "other"),
        roles=frozenset({"service", "ingest"}),
        user_id="alice",
        project_ids=frozenset({"p", "q"}),
        tags=frozenset(),
        requests_per_minute=7,
    )


async def test_a_key_is_found_as_it_was_made(keys: KeyStore) -> None:
    _, wanted = new()
    made = await keys.create(wanted, valid_s=3600, actor="cli:me")
    assert made.created_at > 0
    assert made.expires_at == made.created_at + 3_600_000_000
    assert await keys.find(wanted.key_id) == made
    assert replace(made, created_at=0, expires_at=None) == wanted


async def test_no_limits_at_all_are_kept_apart_from_none_given(keys: KeyStore) -> None:
    _, wanted = new()
    wide = replace(wanted, project_ids=None, tags=None, user_id=None, requests_per_minute=None)
    await keys.create(wide, valid_s=None, actor="cli:me")
    found = await keys.find(wide.key_id)
    assert found is not None
    assert (found.project_ids, found.tags, found.expires_at) == (None, None, None)


async def test_an_unknown_key_is_none(keys: KeyStore) -> None:
    assert await keys.find("nobody") is None


async def test_a_revoked_key_is_revoked_for_every_other_store_at_once(keys: KeyStore, ledger_url: str) -> None:
    _, wanted = new()
    await keys.create(wanted, valid_s=None, actor="cli:me")
    async with open_key_store(ledger_url) as other:
        before = await other.find(wanted.key_id)
        assert await keys.revoke(wanted.key_id, actor="cli:me")
        after = await other.find(wanted.key_id)
    assert before is not None
    assert after is not None
    assert (before.state, after.state) == ("good", "revoked")


async def test_revoking_twice_changes_nothing_and_an_unknown_key_is_told(keys: KeyStore) -> None:
    _, wanted = new()
    await keys.create(wanted, valid_s=None, actor="cli:me")
    assert await keys.revoke(wanted.key_id, actor="cli:me")
    first = await keys.find(wanted.key_id)
    assert await keys.revoke(wanted.key_id, actor="cli:you")
    assert await keys.find(wanted.key_id) == first
    assert not await keys.revoke("nobody", actor="cli:me")
    assert [entry.action for entry in await keys.audit(limit=9)] == ["key_revoked", "key_created"]


async def test_a_key_expires_by_the_ledgers_clock(keys: KeyStore) -> None:
    _, wanted = new()
    await keys.create(wanted, valid_s=0.0, actor="cli:me")
    found = await keys.find(wanted.key_id)
    assert found is not None
    assert found.state == "expired"


async def test_keys_are_listed_oldest_first_with_their_last_use(keys: KeyStore) -> None:
    made = [await keys.create(new()[1], valid_s=None, actor="cli:me") for _ in range(3)]
    await keys.touch(made[1].key_id)
    listed = await keys.list_keys()
    assert [each.key_id for each in listed] == [each.key_id for each in made]
    used = [each.last_used_at for each in listed]
    assert used[0] is used[2] is None
    assert (used[1] or 0) >= made[1].created_at


async def test_the_database_holds_no_secret(keys: KeyStore, ledger_url: str, tmp_path: Path) -> None:
    key, wanted = new()
    await keys.create(wanted, valid_s=None, actor="cli:me")
    await keys.touch(key.key_id)
    await keys.record_refusal(key.key_id, reason="wrong_secret")
    if ledger_url.startswith("sqlite"):
        raw = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    else:
        connection = await asyncpg.connect(ledger_url, timeout=10)
        try:
            names = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
            rows = [await connection.fetch(f'SELECT t::text FROM "{name[0]}" t') for name in names]
        finally:
            await connection.close()
        raw = repr(rows).encode()
    assert key.key_id.encode() in raw, "this is where it would be"
    assert key.secret_hash.encode() in raw
    assert key.secret.encode() not in raw


# ------------------------------------------------------------------------------------------------------------- audit


async def as_owner(ledger_url: str, statement: str) -> None:
    if ledger_url.startswith("sqlite"):
        with closing(sqlite3.connect(ledger_url.removeprefix("sqlite:///"))) as file:
            file.execute(statement)
            return
    connection = await asyncpg.connect(ledger_url, timeout=10)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def test_a_taint_is_audited_with_who_and_how_many(keys: KeyStore, ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    await writer.publish(validated("a", at_s=1))
    ids = ("a", *(f"b{number}" for number in range(MOST_IDS_KEPT + 5)))
    taint = Taint("default", ids, EventTime(), "casc-1", "hallucinated", actor="key:abc")
    await ledger.taint(taint, skew_s=60.0)
    (entry,) = await keys.audit(limit=9)
    assert (entry.action, entry.actor, entry.tenant_id) == ("taint", "key:abc", "default")
    assert (entry.artifact_count, entry.chunks_removed, entry.cascade_id) == (len(ids), 2, "casc-1")
    assert (entry.artifact_ids, entry.reason) == (ids[:MOST_IDS_KEPT], "hallucinated")


async def test_a_taint_of_the_bus_in_every_tenant_is_audited_as_that(keys: KeyStore, ledger: Ledger) -> None:
    await ledger.taint(tainted("a", tenant_id=None), skew_s=60.0)
    (entry,) = await keys.audit(limit=9)
    assert (entry.actor, entry.tenant_id) == ("bus", None)


async def test_a_taint_that_cannot_be_audited_is_not_committed(ledger: Ledger, ledger_url: str) -> None:
    """One transaction: without the audit's table neither the tombstone nor the event is there."""
    await as_owner(ledger_url, "ALTER TABLE rag_audit RENAME TO rag_audit_away")
    with pytest.raises(LedgerUnavailable):
        await ledger.taint(tainted("a", at_s=1), skew_s=60.0)
    counts = await ledger.counts()
    assert (counts.tainted_artifacts, counts.unsent_events) == (0, 0)


async def test_the_newest_entries_come_first_and_survive_a_restart(keys: KeyStore, ledger_url: str) -> None:
    for number in range(3):
        await keys.record_refusal("k", reason=f"reason {number}")
    async with open_ledger(ledger_url), open_key_store(ledger_url) as again:
        assert [entry.reason for entry in await again.audit(limit=2)] == ["reason 2", "reason 1"]
