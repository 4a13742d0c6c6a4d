"""PostgreSQL's half of the guard: as which role a process acts, on behalf of whom, and whether that binds it.

The policies are in the migrations. SQLite has neither roles nor policies: there the guard's code judges alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from dats_common.adapters.sql.tables import metadata
from dats_common.errors import ConfigurationError

Acting = Literal["query", "writer"]
ROLE_OF: dict[Acting, str] = {"query": "dats_rag_query", "writer": "dats_rag_writer"}
"""`query` sees one tenant and what is public; `writer` sees all tenants. Neither can log in."""


@dataclass(frozen=True, slots=True)
class Access:
    """As whom a process comes to a ledger on PostgreSQL.

    Attributes:
        migration_url: of the login that owns the tables; None: the ledger's URL does that too.
        login_may_own: the login behind the role may be above row level security, which then binds only the role. It is
            the way with one URL, for one machine: who can make the service run SQL of his own could leave the role.
    """

    acting: Acting = "writer"
    migration_url: str | None = None
    login_may_own: bool = True

    @property
    def role(self) -> str:
        return ROLE_OF[self.acting]


AS_WRITER = Access()

_ACT_FOR = text("SELECT set_config('dats.tenant_id', :tenant_id, true)")

_HOW = 'docs/security.md, "PostgreSQL", has the statements'


async def act_for(connection: AsyncConnection, tenant_id: str) -> None:
    """What the policies call the transaction's tenant, until the transaction ends."""
    await connection.execute(_ACT_FOR, {"tenant_id": tenant_id})


async def require_membership(login: AsyncConnection, access: Access) -> None:
    """Whether the login may act so; one that may own takes the role itself, if it can. Raises: ConfigurationError."""
    member = text(_MEMBER)
    if (await login.execute(member, {"role": access.role})).scalar_one():
        return
    if access.login_may_own:
        await login.execute(text(_TAKE_ROLE.format(role=access.role)))
        if (await login.execute(member, {"role": access.role})).scalar_one():
            return
    user = (await login.execute(text("SELECT session_user"))).scalar_one()
    raise ConfigurationError(
        f"the login {user!r} of DATS_SQL_URL may not act as {access.role}; "
        f'have an administrator run: GRANT {access.role} TO "{user}"'
    )


# Since version 16 a member may lack the right to become what it is a member of.
_MEMBER = """
    SELECT coalesce(bool_and(pg_has_role(session_user, oid,
        CASE WHEN current_setting('server_version_num')::int < 160000 THEN 'MEMBER' ELSE 'SET' END)), false)
    FROM pg_roles WHERE rolname = :role
"""
_TAKE_ROLE = """
    DO $$ BEGIN GRANT {role} TO SESSION_USER; EXCEPTION WHEN insufficient_privilege THEN NULL; END $$
"""


async def require_bound(connection: AsyncConnection, access: Access) -> None:
    """Whether the policies bind this process: it is what it claims to be, and nobody who is above them.

    Raises: ConfigurationError.
    """
    tables = sorted(metadata.tables)
    roles = await connection.execute(_ROLES, {"tables": tables})
    for row in roles:
        if access.login_may_own and not row.is_acting:
            continue
        above = "is a superuser" if row.rolsuper else "has BYPASSRLS" if row.rolbypassrls else ""
        above = above or ("owns the tables, or may become who does" if row.owns else "")
        if above:
            raise ConfigurationError(
                f"the PostgreSQL {'role' if row.is_acting else 'login'} {row.rolname!r} {above}: row level security "
                f"would not bind the service. Give it a login of its own; {_HOW}"
            )
    acts = (await connection.execute(_ACTING)).one()
    if acts.current_user != access.role or (access.acting == "query" and acts.is_writer):
        raise ConfigurationError(
            f"the session acts as {acts.current_user!r}, and not as a plain {access.role!r}; {_HOW}"
        )
    open_tables = (await connection.execute(_UNFORCED, {"tables": tables})).scalars().all()
    if open_tables:
        raise ConfigurationError(
            f"row level security is not forced on {', '.join(open_tables)}; "
            "run ALTER TABLE ... ENABLE ROW LEVEL SECURITY and FORCE ROW LEVEL SECURITY"
        )


_OURS = "relnamespace = current_schema()::regnamespace AND relname = ANY(CAST(:tables AS name[]))"
_ROLES = text(f"""
    SELECT rolname, rolsuper, rolbypassrls, rolname = current_user AS is_acting,
           EXISTS (SELECT FROM pg_class WHERE {_OURS} AND pg_has_role(pg_roles.oid, relowner, 'MEMBER')) AS owns
    FROM pg_roles WHERE rolname IN (current_user, session_user) ORDER BY is_acting DESC
""")  # noqa: S608
_ACTING = text("SELECT current_user, pg_has_role(current_user, 'dats_rag_writer', 'MEMBER') AS is_writer")
_UNFORCED = text(f"""
    SELECT relname FROM pg_class WHERE {_OURS} AND NOT (relrowsecurity AND relforcerowsecurity) ORDER BY relname
""")  # noqa: S608
