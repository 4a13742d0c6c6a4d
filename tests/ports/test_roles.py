"""Whom PostgreSQL's row level security binds: the catalogue as migrated, and the starts that are refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from urllib.parse import urlsplit

import asyncpg
import pytest
from ledgers import Writer, fresh_database, refs_of, tainted, text_of, validated
from logins import fresh_login, owned_database
from servers import PostgresServer

from dats_common.adapters.sql.connecting import is_local
from dats_common.adapters.sql.engine import migrate
from dats_common.adapters.sql.ledger import open_ledger
from dats_common.adapters.sql.row_security import ROLE_OF, Access
from dats_common.adapters.sql.schema import newest_version
from dats_common.adapters.sql.tables import metadata
from dats_common.errors import ConfigurationError

pytestmark = pytest.mark.postgres

REPLICA, WRITER = Access("query", login_may_own=False), Access("writer", login_may_own=False)
SHARED = {
    "rag_outbox",  # the relay's; its ids and reasons are of all tenants, so only for who acts for nobody
    "rag_keys",  # a key is looked up before anybody's tenant is known
    "rag_wildcards",  # taints that name no tenant
    "rag_taint_receipts",  # hashes
    "rag_writers",  # heartbeats
    "rag_writer_epoch",
}
"""Tables without a tenant. Whoever adds one decides who may read it, and says why here."""


@pytest.fixture
async def url(postgres: PostgresServer) -> AsyncIterator[str]:
    """A database with the newest schema."""
    async with fresh_database(postgres.url) as fresh:
        await migrate(fresh)
        yield fresh


@pytest.fixture
async def catalogue(url: str) -> AsyncIterator[asyncpg.Connection]:
    """The migrated database, seen by its administrator."""
    connection = await asyncpg.connect(url, timeout=10)
    yield connection
    await connection.close()


# ------------------------------------------------------------------------------------------------------- the catalogue


async def uncovered(catalogue: asyncpg.Connection) -> dict[str, str]:
    """Every table, view or function of the schema that could show rows past the policies, and why."""
    found: dict[str, str] = {}
    policies: dict[str, list[asyncpg.Record]] = {}
    for policy in await catalogue.fetch("SELECT * FROM pg_policies WHERE schemaname = current_schema()"):
        policies.setdefault(policy["tablename"], []).append(policy)
    relations = await catalogue.fetch(
        "SELECT relname, relkind::text, relrowsecurity AND relforcerowsecurity AS forced, "
        "coalesce('security_invoker=true' = ANY(reloptions), false) AS as_invoker, EXISTS ("
        "SELECT FROM pg_attribute WHERE attrelid = pg_class.oid AND attname = 'tenant_id') AS of_a_tenant "
        "FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind = ANY('{r,p,f,v,m}')"
    )
    for relation in relations:
        name = relation["relname"]
        if relation["relkind"] == "v":
            found |= {} if relation["as_invoker"] else {name: "a view that sees as its owner"}
        elif relation["relkind"] not in "rp":
            found[name] = "no policy can be put on it"
        elif name != "alembic_version" and (reason := _hole(relation, policies.get(name, []))):
            found[name] = reason
    for name in await catalogue.fetch(
        "SELECT proname FROM pg_proc WHERE pronamespace = current_schema()::regnamespace AND prosecdef "
        "AND (proname <> 'rag_counts' OR NOT coalesce('search_path=public, pg_temp' = ANY(proconfig), false) "
        "OR EXISTS (SELECT FROM aclexplode(proacl) WHERE grantee = 0))"
    ):
        found[name["proname"]] = "a function that sees as its owner"
    return found


def _hole(table: asyncpg.Record, policies: list[asyncpg.Record]) -> str | None:
    if not table["forced"]:
        return "row level security is not forced"
    if not table["of_a_tenant"] and table["relname"] not in SHARED:
        return "neither of a tenant nor listed as shared"
    if ["dats_rag_writer"] not in [policy["roles"] for policy in policies]:
        return "no policy of the writer"
    for policy in policies:
        if policy["roles"] == ["dats_rag_query"] and table["of_a_tenant"]:
            for rule in filter(None, (policy["qual"], policy["with_check"])):
                public = policy["cmd"] == "SELECT" and "'public'" in rule
                if "current_setting('dats.tenant_id'" not in rule and not public:
                    return f"{policy['policyname']} does not ask whose row it is"
        elif policy["roles"] not in (["dats_rag_query"], ["dats_rag_writer"]) and policy["policyname"] != "counting":
            return f"{policy['policyname']} is for {policy['roles']}"
    return None


async def test_every_table_is_forced_and_every_policy_asks_whose_row_it_is(catalogue: asyncpg.Connection) -> None:
    assert await uncovered(catalogue) == {}
    names = await catalogue.fetch("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
    assert {row["tablename"] for row in names} == {*metadata.tables, "alembic_version"}
    assert {name for name, table in metadata.tables.items() if "tenant_id" not in table.c} == SHARED


LEFT_OPEN = [
    ("CREATE TABLE rag_later (tenant_id text)", "rag_later"),
    ("CREATE TABLE rag_later (id int); ALTER TABLE rag_later ENABLE ROW LEVEL SECURITY", "rag_later"),
    ("ALTER TABLE rag_chunks NO FORCE ROW LEVEL SECURITY", "rag_chunks"),
    ("DROP POLICY writer ON rag_chunks", "rag_chunks"),
    ("CREATE POLICY everything ON rag_chunks TO dats_rag_query USING (true)", "rag_chunks"),
    ("ALTER POLICY own_tenant ON rag_chunks WITH CHECK (true)", "rag_chunks"),
    ("CREATE POLICY everyone ON rag_outbox USING (true)", "rag_outbox"),
    ("CREATE VIEW rag_texts AS SELECT * FROM rag_chunks", "rag_texts"),
    ("CREATE MATERIALIZED VIEW rag_texts AS SELECT * FROM rag_chunks", "rag_texts"),
    ("CREATE FUNCTION rag_texts() RETURNS bigint LANGUAGE sql SECURITY DEFINER AS 'SELECT 1::bigint'", "rag_texts"),
    ("GRANT EXECUTE ON FUNCTION rag_counts() TO PUBLIC", "rag_counts"),
    ("ALTER FUNCTION rag_counts() RESET search_path", "rag_counts"),
]


async def test_what_a_later_change_leaves_open_is_found(catalogue: asyncpg.Connection) -> None:
    for statement, name in LEFT_OPEN:
        change = catalogue.transaction()
        await change.start()
        await catalogue.execute(statement)
        assert set(await uncovered(catalogue)) == {name}, statement
        await change.rollback()


async def test_a_view_may_see_as_who_asks(catalogue: asyncpg.Connection) -> None:
    await catalogue.execute("CREATE VIEW rag_texts WITH (security_invoker=true) AS SELECT * FROM rag_chunks")
    assert await uncovered(catalogue) == {}


async def test_the_roles_own_nothing_and_may_do_nothing_else(catalogue: asyncpg.Connection) -> None:
    for role in await catalogue.fetch("SELECT * FROM pg_roles WHERE rolname = ANY($1)", list(ROLE_OF.values())):
        flags = ("rolsuper", "rolbypassrls", "rolcanlogin", "rolcreaterole", "rolcreatedb", "rolreplication")
        assert not any(role[flag] for flag in flags), role["rolname"]
    assert (
        await catalogue.fetchval(
            "SELECT count(*) FROM pg_class JOIN pg_roles ON pg_roles.oid = relowner WHERE rolname = ANY($1)",
            list(ROLE_OF.values()),
        )
        == 0
    )
    assert not await catalogue.fetchval("SELECT pg_has_role('dats_rag_query', 'dats_rag_writer', 'MEMBER')")


# ----------------------------------------------------------------------------------------------------------- the start


async def refusal(url: str, access: Access) -> str:
    """Why a process does not start."""
    with pytest.raises(ConfigurationError) as caught:
        async with open_ledger(url, access=access):
            pass
    return str(caught.value)


@pytest.mark.parametrize(
    ("statement", "undone", "reason"),
    [
        ("ALTER ROLE dats_rag_query SUPERUSER", "ALTER ROLE dats_rag_query NOSUPERUSER", "is a superuser"),
        ("ALTER ROLE dats_rag_query BYPASSRLS", "ALTER ROLE dats_rag_query NOBYPASSRLS", "has BYPASSRLS"),
        ("ALTER TABLE rag_chunks OWNER TO dats_rag_query", None, "owns the tables"),
        ("GRANT dats_rag_writer TO dats_rag_query", "REVOKE dats_rag_writer FROM dats_rag_query", "not as a plain"),
        ("ALTER TABLE rag_chunks NO FORCE ROW LEVEL SECURITY", None, "not forced on rag_chunks;"),
        ("ALTER TABLE rag_keys DISABLE ROW LEVEL SECURITY", None, "not forced on rag_keys;"),
    ],
    ids=["superuser", "bypass", "owner", "both", "unforced", "disabled"],
)
async def test_a_role_that_would_not_be_bound_is_refused(
    url: str, catalogue: asyncpg.Connection, statement: str, undone: str | None, reason: str
) -> None:
    lenient = replace(REPLICA, login_may_own=True)
    async with open_ledger(url, access=lenient) as ledger:
        await ledger.ping()
    await catalogue.execute(statement)
    try:
        assert reason in await refusal(url, lenient)
    finally:
        if undone:
            await catalogue.execute(undone)  # roles are the whole server's


@pytest.mark.parametrize("access", [REPLICA, WRITER], ids=lambda access: access.acting)
async def test_a_login_that_could_leave_its_role_is_refused_unless_allowed(url: str, access: Access) -> None:
    assert f"{_user_of(url)!r} is a superuser" in await refusal(url, access)
    async with fresh_login(url, can="BYPASSRLS", member_of=access.role) as above:
        assert "has BYPASSRLS" in await refusal(above, access)
    async with fresh_login(url, member_of=access.role) as plain, open_ledger(plain, access=access) as ledger:
        await ledger.ping()


async def test_an_owner_is_refused_and_its_plain_logins_start(postgres: PostgresServer) -> None:
    async with owned_database(postgres.url) as (owner, administrator):
        assert await migrate(owner) == newest_version()
        async with (
            fresh_login(administrator, member_of=REPLICA.role) as replica_login,
            fresh_login(administrator, member_of=WRITER.role) as writer_login,
        ):
            for access in (REPLICA, WRITER):
                told = replace(access, migration_url=owner)
                assert "GRANT" in await refusal(owner, access)
                assert "GRANT" in await refusal(writer_login if access is REPLICA else replica_login, told)
            connection = await asyncpg.connect(administrator, timeout=10)
            await connection.execute(f"GRANT {REPLICA.role} TO {_user_of(owner)}")
            await connection.close()
            assert "owns the tables" in await refusal(owner, REPLICA)
            async with (
                open_ledger(writer_login, access=WRITER) as writer,
                open_ledger(replica_login, access=REPLICA) as replica,
            ):
                refs = refs_of(await (await Writer.of(writer)).publish(validated(at_s=1)))
                assert await text_of(replica, refs) == "one content"
                await replica.taint(tainted("a", at_s=2), skew_s=0)
                assert await text_of(replica, refs) is None


async def test_one_url_of_an_owner_does_for_everything_on_one_machine(postgres: PostgresServer) -> None:
    async with (
        owned_database(postgres.url) as (owner, _),
        open_ledger(owner, access=replace(WRITER, login_may_own=True)) as writer,
        open_ledger(owner, access=replace(REPLICA, login_may_own=True)) as replica,
    ):
        refs = refs_of(await (await Writer.of(writer)).publish(validated(at_s=1)))
        assert await text_of(replica, refs) == "one content"
        assert await text_of(replica, refs, tenant_id="foreign") is None


async def test_a_schema_that_the_login_cannot_bring_up_to_date_is_refused(postgres: PostgresServer) -> None:
    async with fresh_database(postgres.url) as url:
        async with fresh_login(url) as plain:
            said = await refusal(plain, REPLICA)
            assert f"is at version None and this release needs {newest_version()}" in said
            assert "dats-rag migrate" in said
        async with fresh_login(url) as plain:
            await migrate(url)
            assert 'GRANT dats_rag_query TO "login_' in await refusal(plain, REPLICA)


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("postgresql://u:p@localhost/db", True),
        ("postgresql://u:p@127.0.0.1:5433/db", True),
        ("postgresql+asyncpg://u:p@[::1]/db", True),
        ("postgresql:///db?host=/var/run/postgresql", True),
        ("postgresql://u:p@db.example.org/db", False),
        ("postgresql:///db?host=db.example.org", False),
        ("postgresql://u:p@localhost/db?host=db.example.org", False),
        ("postgresql://u:p@localhost.example.org/db", False),
    ],
)
def test_only_this_machine_is_local(url: str, local: bool) -> None:
    assert is_local(url) is local


def _user_of(url: str) -> str:
    return urlsplit(url).username or ""
