"""Row level security on PostgreSQL: two roles, and what each may see and do. SQLite has no roles.

The tables' owner is bound too (FORCE): a later migration that changes rows must `SET LOCAL ROLE dats_rag_writer`, or it
would change none of them without a word. A later table needs its line in each list here, in a migration of its own;
the start is refused until it has one.
"""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

ROLES = ("dats_rag_query", "dats_rag_writer")

# NULLIF: once a transaction has set it, the session has '' afterwards and not NULL.
TENANT = "NULLIF(current_setting('dats.tenant_id', true), '')"
MINE = f"tenant_id = {TENANT}"
FOR_NOBODY = f"{TENANT} IS NULL"
PUBLIC = f"scope = 'public' AND {TENANT} IS NOT NULL"
# The scope is the live document's. CASE, because the order of policies is the planner's: only for rows of other tenants
# is the document looked up, by its key.
PUBLIC_ARTIFACT = f"""CASE WHEN {MINE} THEN true ELSE (
    SELECT d.scope FROM rag_documents d WHERE d.generation = rag_artifacts.live_generation
) = 'public' END"""  # noqa: S608

# table: what a replica may do with it. It searches, taints for one tenant, sweeps what it tainted, and relays events.
QUERY_GRANTS = {
    "rag_artifacts": "SELECT, INSERT, UPDATE",
    "rag_documents": "SELECT, DELETE",
    "rag_chunks": "SELECT, DELETE",
    "rag_pending": "SELECT, DELETE",
    "rag_quarantine": "SELECT, INSERT",
    "rag_receipts": "",
    "rag_users": "",
    "rag_tags": "",
    "rag_audit": "INSERT, SELECT (id)",
    "rag_outbox": "SELECT, INSERT, UPDATE",
    "rag_keys": "SELECT, UPDATE (last_used_at)",
    "rag_wildcards": "SELECT",
    "rag_taint_receipts": "SELECT, INSERT",
    "rag_writers": "SELECT",
    "rag_writer_epoch": "",
}
APPEND_ONLY = ("rag_audit",)

# (table, policy, command, rows it may see or touch, rows it may leave behind); the grants above narrow the commands.
QUERY_POLICIES = [
    ("rag_artifacts", "own_tenant", "ALL", MINE, MINE),
    ("rag_artifacts", "public_scope", "SELECT", PUBLIC_ARTIFACT, None),
    ("rag_documents", "own_tenant", "ALL", MINE, MINE),
    ("rag_documents", "public_scope", "SELECT", PUBLIC, None),
    ("rag_chunks", "own_tenant", "ALL", MINE, MINE),
    ("rag_chunks", "public_scope", "SELECT", PUBLIC, None),
    ("rag_pending", "own_tenant", "ALL", MINE, MINE),
    ("rag_quarantine", "own_tenant", "ALL", MINE, MINE),
    ("rag_receipts", "own_tenant", "ALL", MINE, MINE),
    ("rag_users", "own_tenant", "ALL", MINE, MINE),
    ("rag_tags", "own_tenant", "ALL", MINE, MINE),
    # What concerns no tenant, such as a refused key, is written on behalf of nobody.
    ("rag_audit", "own_tenant", "ALL", f"tenant_id IS NOT DISTINCT FROM {TENANT}", None),
    # Events and keys of all tenants: for the relay and the check of a key, which act for nobody; never for a query.
    ("rag_outbox", "queue", "INSERT", None, "true"),
    ("rag_outbox", "for_nobody", "ALL", FOR_NOBODY, FOR_NOBODY),
    ("rag_keys", "for_nobody", "ALL", FOR_NOBODY, FOR_NOBODY),
    # Ids, hashes and heartbeats, which belong to no tenant.
    ("rag_wildcards", "shared", "SELECT", "true", None),
    ("rag_taint_receipts", "shared", "ALL", "true", "true"),
    ("rag_writers", "shared", "SELECT", "true", None),
]


def upgrade() -> None:
    if op.get_bind().dialect.name != "postgresql":
        return
    for role in ROLES:
        _create_role(role)
    for table, grants in QUERY_GRANTS.items():
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        op.execute(f"CREATE POLICY writer ON {table} TO dats_rag_writer USING (true) WITH CHECK (true)")
        everything = "SELECT, INSERT" if table in APPEND_ONLY else "SELECT, INSERT, UPDATE, DELETE"
        op.execute(f"GRANT {everything} ON {table} TO dats_rag_writer")
        if grants:
            op.execute(f"GRANT {grants} ON {table} TO dats_rag_query")
    for table, name, command, using, check in QUERY_POLICIES:
        rows = f" USING ({using})" * (using is not None) + f" WITH CHECK ({check})" * (check is not None)
        op.execute(f"CREATE POLICY {name} ON {table} FOR {command} TO dats_rag_query{rows}")
    for sequence, roles in {
        "rag_documents_generation_seq": "dats_rag_writer",
        "rag_outbox_id_seq": "dats_rag_writer, dats_rag_query",
        "rag_quarantine_id_seq": "dats_rag_writer, dats_rag_query",
        "rag_audit_id_seq": "dats_rag_writer, dats_rag_query",
    }.items():
        op.execute(f"GRANT USAGE ON SEQUENCE {sequence} TO {roles}")
    # Every start compares the schema's version, before it acts as anybody.
    op.execute("GRANT SELECT ON alembic_version TO PUBLIC")
    _let_replicas_count()


def _create_role(role: str) -> None:
    """Roles belong to the whole server: another database of ours, or an administrator, may have made this one."""
    op.execute(f"""
        DO $$ BEGIN
            IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') THEN
                CREATE ROLE {role} NOLOGIN;
            END IF;
        EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;  -- made at this moment
        END $$
    """)
    op.execute(f"""
        DO $$ BEGIN
            IF NOT has_schema_privilege('{role}', current_schema(), 'USAGE') THEN
                EXECUTE format('GRANT USAGE ON SCHEMA %I TO {role}', current_schema());
            END IF;
        END $$
    """)


def _let_replicas_count() -> None:
    """Figures over all tenants for a replica's health, and nothing but figures.

    The function acts as the owner, whom FORCE binds; only inside of it the policies below let the owner see rows.
    """
    for table in ("rag_artifacts", "rag_documents", "rag_quarantine"):
        op.execute(
            f"CREATE POLICY counting ON {table} FOR SELECT TO CURRENT_USER "
            "USING (current_setting('dats.counting', true) = 'on')"
        )
    op.execute("""
        CREATE FUNCTION rag_counts()
        RETURNS TABLE (live_artifacts bigint, live_chunks bigint, tainted_artifacts bigint, quarantined bigint)
        LANGUAGE plpgsql SECURITY DEFINER
        AS $$ BEGIN
            PERFORM set_config('dats.counting', 'on', true);
            RETURN QUERY SELECT
                live.artifacts,
                live.chunks,
                (SELECT count(*) FROM rag_artifacts
                 WHERE live_generation IS NULL AND tainted_through > -4611686018427387904),
                (SELECT count(*) FROM rag_quarantine WHERE resolved_at IS NULL)
            FROM (
                SELECT count(*) AS artifacts, coalesce(sum(chunk_count), 0)::bigint AS chunks
                FROM rag_artifacts JOIN rag_documents ON generation = live_generation
            ) AS live;
            PERFORM set_config('dats.counting', '', true);
        END $$
    """)
    # Else a temporary table of the caller could stand in for one of ours, and its code run as the owner.
    op.execute("""
        DO $$ BEGIN
            EXECUTE format('ALTER FUNCTION rag_counts() SET search_path = %I, pg_temp', current_schema());
        END $$
    """)
    op.execute("REVOKE ALL ON FUNCTION rag_counts() FROM PUBLIC")
    op.execute("GRANT EXECUTE ON FUNCTION rag_counts() TO dats_rag_query, dats_rag_writer")


def downgrade() -> None:
    raise NotImplementedError("the tenants' separation is not taken away again")
