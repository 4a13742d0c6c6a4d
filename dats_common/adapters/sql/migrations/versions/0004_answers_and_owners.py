"""Every answer with what it stands on; and replicas may keep the owners of tags, which admins change through them."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

# As in 0003: a replica does what it does for the tenant that its transaction names.
TENANT = "NULLIF(current_setting('dats.tenant_id', true), '')"

# table: the column that says whose row it is, and what a replica may do with it. It keeps and recalls answers, and
# never changes what one said or stood on.
ANSWERS = {
    "rag_answers": ("tenant_id", "SELECT, INSERT, UPDATE (recalled_at)"),
    # tenant_id is the artifact's here, which may be another tenant's public one.
    "rag_answer_sources": ("asker_tenant_id", "SELECT, INSERT, UPDATE (fell)"),
}
OWNERS = ("rag_users", "rag_tags")


def upgrade() -> None:
    op.create_table(
        "rag_answers",
        sa.Column("answer_id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=256), nullable=False),
        sa.Column("actor", sa.String(length=600), nullable=False),
        sa.Column("user_id", sa.String(length=256), nullable=True),
        sa.Column("asker_project_ids", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("asker_tags", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("question", sa.Text(), nullable=False),
        sa.Column("model", sa.String(length=256), nullable=False),
        sa.Column("prompt_hash", sa.String(length=64), nullable=False),
        sa.Column("counted_tokens", sa.Integer(), nullable=False),
        sa.Column("counted_by", sa.String(length=256), nullable=False),
        sa.Column("prompt_tokens", sa.Integer(), nullable=True),
        sa.Column("response_tokens", sa.Integer(), nullable=True),
        sa.Column("confidence", sa.Integer(), nullable=False),
        sa.Column("action", sa.String(length=16), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("recalled_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("answer_id", name=op.f("pk_rag_answers")),
        comment="Every answer, of the tenant that asked. recalled_at: nobody is told to rely on it any more",
    )
    op.create_table(
        "rag_answer_sources",
        sa.Column("answer_id", sa.String(length=64), nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("asker_tenant_id", sa.String(length=256), nullable=False),
        sa.Column("tenant_id", sa.String(length=256), nullable=False),
        sa.Column("artifact_id", sa.String(length=256), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("chunk_index", sa.Integer(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("own_clock", sa.Boolean(), nullable=False),
        sa.Column("fell", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.PrimaryKeyConstraint("answer_id", "position", name=op.f("pk_rag_answer_sources")),
        comment="What each answer stands on; tenant_id is the artifact's. version: under which it was shown",
    )
    op.create_index(
        "ix_rag_answer_sources_tenant_id_artifact_id", "rag_answer_sources", ["tenant_id", "artifact_id"], unique=False
    )
    of_other_tenants = sa.text("tenant_id <> asker_tenant_id")
    op.create_index(
        "ix_rag_answer_sources_foreign",
        "rag_answer_sources",
        ["tenant_id", "artifact_id"],
        unique=False,
        sqlite_where=of_other_tenants,
        postgresql_where=of_other_tenants,
    )
    if op.get_bind().dialect.name == "postgresql":
        _grant()


def _grant() -> None:
    for table, (whose, grants) in ANSWERS.items():
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        op.execute(f"CREATE POLICY writer ON {table} TO dats_rag_writer USING (true) WITH CHECK (true)")
        op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO dats_rag_writer")
        op.execute(f"GRANT {grants} ON {table} TO dats_rag_query")
        mine = f"{whose} = {TENANT}"
        op.execute(f"CREATE POLICY own_tenant ON {table} FOR ALL TO dats_rag_query USING ({mine}) WITH CHECK ({mine})")
    for table in OWNERS:
        # Their policies are there since 0003.
        op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO dats_rag_query")


def downgrade() -> None:
    raise NotImplementedError("what answers stood on would be lost: restore a backup instead")
