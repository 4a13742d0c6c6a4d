"""PostgreSQL keeps tenants apart by itself: what the guard's code forgets, the server still refuses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import asyncpg
import pytest
from ledgers import Writer, fresh_database, key, metadata, open_as_a_fleet, refs_of, tainted, text_of, validated
from logins import fresh_login, owned_database
from servers import PostgresServer
from sqlalchemy import select

from dats_common.adapters.sql.engine import migrate, open_database
from dats_common.adapters.sql.evidence import open_evidence
from dats_common.adapters.sql.identity import open_key_store
from dats_common.adapters.sql.ledger import open_ledger
from dats_common.adapters.sql.row_security import Access
from dats_common.adapters.sql.tables import chunks
from dats_common.adapters.sql.tables import metadata as tables
from dats_common.domain.access import LAPTOP
from dats_common.domain.model import ArtifactKey, ChunkRef, Scope
from dats_common.records import AnswerRecord, StoredKey

pytestmark = pytest.mark.postgres

REPLICA, WRITER = Access("query"), Access("writer")
OF_A_TENANT = sorted(name for name, table in tables.tables.items() if "tenant_id" in table.c)
NOT_FOR_REPLICAS = {"rag_receipts", "rag_writer_epoch"}
DENIED = asyncpg.exceptions.InsufficientPrivilegeError


@pytest.fixture
async def url(postgres: PostgresServer) -> AsyncIterator[str]:
    """A database with the newest schema and nothing in it."""
    async with fresh_database(postgres.url) as fresh:
        await migrate(fresh)
        yield fresh


@pytest.fixture
async def filled(url: str) -> str:
    """Two tenants with something in every table: live, public, tainted, quarantined, being written, answered."""
    async with open_as_a_fleet(url) as ledger, open_key_store(url) as keys, open_evidence(url) as evidence:
        writer = await Writer.of(ledger)
        for tenant_id in ("mine", "yours"):
            for name, scope in (("private", Scope.PROJECT), ("public", Scope.PUBLIC), ("gone", Scope.PUBLIC)):
                event = validated(
                    key(name, tenant_id), f"{name} of {tenant_id}", at_s=100, source=metadata(scope=scope)
                )
                generation = await writer.publish(event)
                if name != "gone":
                    await evidence.keep(answer(f"{name} of {tenant_id}", tenant_id, *refs_of(generation)))
            await ledger.taint(tainted("gone", at_s=90, tenant_id=tenant_id), skew_s=60)  # by the skew: quarantined
            await writer.prepare(validated(key("coming", tenant_id), at_s=1))
        stored = StoredKey("k", "hash", "a key", ("mine", "yours"), frozenset({"service"}))
        await keys.create(stored, valid_s=None, actor="cli")
        await keys.record_refusal("k", reason="wrong secret")
    async with connected(url) as owner:
        for tenant_id in ("mine", "yours"):
            await owner.execute("INSERT INTO rag_users VALUES ($1, 'u', 'u@example.org')", tenant_id)
            await owner.execute("INSERT INTO rag_tags VALUES ($1, 'red')", tenant_id)
    return url


def answer(answer_id: str, tenant_id: str, *refs: ChunkRef) -> AnswerRecord:
    return AnswerRecord(
        answer_id=answer_id,
        tenant_id=tenant_id,
        actor="key:k",
        user_id=None,
        project_ids=None,
        tags=None,
        question="What?",
        model="m",
        prompt_hash="p",
        counted_tokens=1,
        counted_by="c",
        prompt_tokens=None,
        response_tokens=None,
        confidence=1,
        action="CITE",
        refs=refs,
        body={"answer": f"of {tenant_id}"},
    )


@asynccontextmanager
async def connected(url: str, role: str = "none", *, tenant_id: str | None = None) -> AsyncIterator[asyncpg.Connection]:
    """A connection of one's own, in a transaction that is rolled back; without a role as the fixture's superuser."""
    connection = await asyncpg.connect(url.replace("+asyncpg", ""), timeout=10, server_settings={"role": role})
    try:
        if tenant_id is not None:
            await connection.execute("SELECT set_config('dats.tenant_id', $1, false)", tenant_id)
        yield connection
    finally:
        await connection.close(timeout=10)


def as_replica(url: str, tenant_id: str | None = None) -> Any:
    return connected(url, "dats_rag_query", tenant_id=tenant_id)


async def rows(connection: asyncpg.Connection, table: str) -> list[tuple[str, ...]]:
    """Tenant and artifact of every row that shows, without any condition."""
    columns = [name for name in ("tenant_id", "artifact_id") if name in tables.tables[table].c]
    if table == "rag_chunks":
        columns.append("chunk_text")
    return [tuple(row) for row in await connection.fetch(f"SELECT {', '.join(columns)} FROM {table}")]


# --------------------------------------------------------------------------------------------------------- a replica


async def test_a_replica_that_acts_for_nobody_sees_no_row_of_any_tenant(filled: str) -> None:
    async with connected(filled) as owner, as_replica(filled) as replica:
        for table in OF_A_TENANT:
            assert {row[0] for row in await rows(owner, table)} >= {"mine", "yours"}, table
            if table in NOT_FOR_REPLICAS or table == "rag_audit":
                with pytest.raises(DENIED):
                    await rows(replica, table)
            else:
                assert await rows(replica, table) == [], table
        assert await replica.fetchval("SELECT count(id) FROM rag_audit") == 2  # a key made, a key refused: of no tenant


@pytest.mark.parametrize("tenant_id", ["mine", "yours"])
async def test_a_replica_sees_the_tenant_it_acts_for_and_what_is_public(filled: str, tenant_id: str) -> None:
    async with as_replica(filled, tenant_id) as replica:
        other = {"mine": "yours", "yours": "mine"}[tenant_id]
        own = {(tenant_id, name) for name in ("private", "public", "gone", "coming")}
        assert set(await rows(replica, "rag_artifacts")) == own | {(other, "public")}
        assert set(await rows(replica, "rag_documents")) == own | {(other, "public"), (other, "gone")}
        assert set(await rows(replica, "rag_pending")) == {(tenant_id, "coming")}
        assert set(await rows(replica, "rag_quarantine")) == {(tenant_id, "gone")}
        texts = "".join(text for _, text in await rows(replica, "rag_chunks"))
        assert f"private of {tenant_id}" in texts
        assert f"public of {other}" in texts
        assert f"private of {other}" not in texts


async def test_a_replica_sees_the_answers_and_owners_of_the_tenant_it_acts_for(filled: str) -> None:
    async with as_replica(filled, "mine") as replica:
        found = await replica.fetch("SELECT answer_id FROM rag_answers UNION SELECT answer_id FROM rag_answer_sources")
        assert {row[0] for row in found} == {"private of mine", "public of mine"}
        for table in ("rag_users", "rag_tags"):
            assert await rows(replica, table) == [("mine",)]
            assert await replica.execute(f"DELETE FROM {table}") == "DELETE 1"
    async with connected(filled) as owner:
        assert len(await rows(owner, "rag_tags")) == 1


async def test_an_answer_on_another_tenants_work_is_seen_by_who_asked_and_not_by_who_wrote_it(filled: str) -> None:
    theirs = key("public", "yours")
    async with (
        open_evidence(filled, access=REPLICA) as replica,
        open_evidence(filled, access=WRITER) as writer,
        open_as_a_fleet(filled) as ledger,
    ):
        async with connected(filled) as owner:
            number = await owner.fetchval(
                "SELECT live_generation FROM rag_artifacts WHERE artifact_id = 'public' AND tenant_id = 'yours'"
            )
        assert await replica.keep(answer("across", "mine", ChunkRef(theirs, number, 0))) == ()
        async with as_replica(filled, "yours") as author:
            found = await author.fetch("SELECT answer_id FROM rag_answer_sources WHERE artifact_id = 'public'")
            assert {row[0] for row in found} == {"public of yours"}
        receipt = await ledger.taint(tainted("public", at_s=200, tenant_id="yours"), skew_s=0)
        assert await replica.recall(receipt.fallen) == 1, "a replica recalls what it sees: the tainting tenant's own"
        assert await replica.recall() == 0, "over all tenants it acts for nobody"
        assert await writer.recall(receipt.fallen) == 1


async def test_what_is_no_tenants_name_shows_no_tenants_rows(filled: str) -> None:
    async with as_replica(filled) as replica:
        for name in ("", "nobody's", "mine' OR 'a'='a", "%", "MINE", "mine ", "mine,yours"):
            await replica.execute("SELECT set_config('dats.tenant_id', $1, false)", name)
            for table in ("rag_artifacts", "rag_documents", "rag_pending", "rag_quarantine"):
                assert {row[1] for row in await rows(replica, table)} <= {"public", "gone"}, (name, table)


async def test_a_tenant_ends_with_its_transaction(filled: str) -> None:
    everything = select(chunks.c.chunk_text)
    async with open_database(filled, access=REPLICA, pool_size=1) as database:
        async with database.reading("mine") as connection:
            assert len((await connection.execute(everything)).all()) > 0
        async with database.reading() as connection:
            assert (await connection.execute(everything)).all() == []
        async with database.writing("mine") as connection:
            assert len((await connection.execute(everything)).all()) > 0
        async with database.writing() as connection:
            assert (await connection.execute(everything)).all() == []


async def test_a_guard_that_forgets_whose_question_it_is_leaks_nothing(filled: str) -> None:
    # The worst bug there can be: every text, whoever asks, live or not.
    everything = select(chunks.c.tenant_id, chunks.c.scope)
    async with open_database(filled, access=WRITER) as database, database.reading("mine") as connection:
        assert ("yours", "project") in {tuple(row) for row in await connection.execute(everything)}
    async with open_database(filled, access=REPLICA) as database, database.reading("mine") as connection:
        seen = {tuple(row) for row in await connection.execute(everything)}
    assert seen == {("mine", "project"), ("mine", "public"), ("yours", "public")}


async def test_a_replica_changes_nothing_of_another_tenant(filled: str) -> None:
    async with as_replica(filled, "mine") as replica:
        for table in ("rag_chunks", "rag_documents", "rag_pending"):
            assert await replica.execute(f"DELETE FROM {table} WHERE tenant_id = 'yours'") == "DELETE 0"
        raise_bound = "UPDATE rag_artifacts SET tainted_through = 1, live_generation = NULL WHERE tenant_id = "
        assert await replica.execute(f"{raise_bound}'yours'") == "UPDATE 0"
        assert await replica.fetch("SELECT FROM rag_artifacts WHERE tenant_id = 'yours' FOR UPDATE") == []
        for statement in (
            "INSERT INTO rag_artifacts (tenant_id, artifact_id) VALUES ('yours', 'new')",
            "UPDATE rag_artifacts SET tenant_id = 'yours' WHERE artifact_id = 'private'",
            "INSERT INTO rag_quarantine (tenant_id, artifact_id, version, content_hash, event_id, reason, body, "
            "source_metadata, created_at) VALUES ('yours', 'a', 1, 'h', 'e', 'r', 'b', '{}', 1)",
            "INSERT INTO rag_audit (at, action, actor, tenant_id, artifact_ids) "
            "VALUES (1, 'taint', 'me', 'yours', '[]')",
            "INSERT INTO rag_answer_sources (answer_id, position, asker_tenant_id, tenant_id, artifact_id, generation, "
            "chunk_index, version, own_clock) VALUES ('private of yours', 9, 'yours', 'mine', 'a', 1, 0, 1, false)",
            "INSERT INTO rag_tags VALUES ('yours', 'blue')",
        ):
            with pytest.raises(DENIED, match="row-level security"):
                await replica.execute(statement)


NO_RIGHT_TO = [
    "INSERT INTO rag_documents (tenant_id) VALUES ('mine')",
    "INSERT INTO rag_chunks (tenant_id) VALUES ('mine')",
    "INSERT INTO rag_pending (tenant_id) VALUES ('mine')",
    "UPDATE rag_documents SET body = ''",
    "UPDATE rag_writer_epoch SET epoch = 99",
    "DELETE FROM rag_artifacts",
    "DELETE FROM rag_outbox",
    "DELETE FROM rag_quarantine",
    "INSERT INTO rag_wildcards (artifact_id) VALUES ('a')",
    "INSERT INTO rag_keys (key_id) VALUES ('mine')",
    "UPDATE rag_keys SET revoked_at = NULL",
    "UPDATE rag_keys SET secret_hash = ''",
    "UPDATE rag_audit SET actor = 'somebody else'",
    "DELETE FROM rag_audit",
    "UPDATE rag_answers SET body = '{}'",
    "UPDATE rag_answer_sources SET generation = 1",
    "DELETE FROM rag_answers",
    "DELETE FROM rag_answer_sources",
    "ALTER TABLE rag_chunks NO FORCE ROW LEVEL SECURITY",
    "DROP POLICY own_tenant ON rag_chunks",
    "SET ROLE dats_rag_writer",
]


async def outcome(connection: asyncpg.Connection, statement: str) -> object:
    """What the server says: its answer, or the class of its error."""
    try:
        return await connection.execute(statement)
    except asyncpg.PostgresError as error:
        return type(error)


async def test_a_replica_has_only_the_rights_that_it_needs(url: str) -> None:
    async with (
        fresh_login(url, member_of="dats_rag_query") as login,
        connected(login, "dats_rag_query", tenant_id="mine") as replica,
    ):
        for statement in NO_RIGHT_TO:
            assert await outcome(replica, statement) is DENIED, statement


async def test_keys_and_events_of_all_tenants_show_only_to_who_acts_for_nobody(filled: str) -> None:
    async with as_replica(filled) as errand, as_replica(filled, "mine") as query:
        assert await errand.fetchval("SELECT count(*) FROM rag_keys") == 1
        assert await errand.fetchval("SELECT count(*) FROM rag_outbox") > 0
        assert await query.fetchval("SELECT count(*) FROM rag_keys") == 0
        assert await query.fetchval("SELECT count(*) FROM rag_outbox") == 0


async def test_replicas_count_over_all_tenants_and_see_nothing_of_them(filled: str) -> None:
    async with open_ledger(filled, access=WRITER) as writer, open_ledger(filled, access=REPLICA) as replica:
        counts = await replica.counts()
        assert (counts.live_artifacts, counts.live_chunks) == (4, 8)
        assert (counts.tainted_artifacts, counts.quarantined) == (2, 2)
        assert {**vars_of(counts), "oldest_unsent_s": 0} == {**vars_of(await writer.counts()), "oldest_unsent_s": 0}
    async with as_replica(filled) as connection:
        # What lets the owner count is not for others to switch on.
        await connection.execute("SELECT set_config('dats.counting', 'on', false)")
        assert await rows(connection, "rag_artifacts") == []


def vars_of(counts: Any) -> dict[str, Any]:
    return {name: getattr(counts, name) for name in counts.__slots__}


async def test_a_replicas_sweep_never_takes_for_dead_what_it_may_not_see(filled: str) -> None:
    keys = [ArtifactKey(tenant_id, name) for tenant_id in ("mine", "yours") for name in ("private", "coming", "gone")]
    async with open_ledger(filled, access=WRITER) as writer, open_ledger(filled, access=REPLICA) as replica:
        kept = await replica.kept(keys)
        assert kept == await writer.kept(keys)
        assert {key.artifact_id for key, generations in kept.items() if not generations} == {"gone"}
        assert kept.keys() == set(keys), "what it may not see is known to it all the same, or its points would stay"
        await replica.forget(keys)
        assert await replica.kept(keys) == kept
        refs = [ChunkRef(one, number, 0) for one, numbers in kept.items() for number in numbers]
        read = await replica.read(refs, replace(LAPTOP, tenant_id="yours"))
    assert {ref.key for ref in read.passages} == {ArtifactKey("yours", "private")}


async def test_the_writer_sees_and_changes_every_tenant(filled: str) -> None:
    async with connected(filled, "dats_rag_writer") as writer:
        for table in OF_A_TENANT:
            assert {row[0] for row in await rows(writer, table)} >= {"mine", "yours"}, table
        assert await writer.execute("UPDATE rag_artifacts SET content_hash = NULL") == "UPDATE 8"
        for statement in ("UPDATE rag_audit SET actor = 'x'", "DELETE FROM rag_audit", "TRUNCATE rag_audit"):
            with pytest.raises(DENIED):
                await writer.execute(statement)


async def test_even_the_owner_is_bound(postgres: PostgresServer) -> None:
    async with owned_database(postgres.url) as (owner, administrator):
        await migrate(owner)
        async with open_as_a_fleet(administrator) as ledger:
            refs = refs_of(await (await Writer.of(ledger)).publish(validated(at_s=1)))
            assert await text_of(ledger, refs) == "one content"
            assert (await ledger.counts()).live_artifacts == 1  # counted by a function that acts as the owner
        async with connected(owner) as connection:
            for table in OF_A_TENANT:
                assert await rows(connection, table) == [], table
