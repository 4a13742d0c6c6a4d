"""API keys, and the audit of taints and keys."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "rag_keys",
        sa.Column("key_id", sa.String(length=32), nullable=False),
        sa.Column("secret_hash", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("tenant_ids", sa.JSON(), nullable=False),
        sa.Column("roles", sa.JSON(), nullable=False),
        sa.Column("project_ids", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("tags", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("user_id", sa.String(length=256), nullable=True),
        sa.Column("requests_per_minute", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("last_used_at", sa.BigInteger(), nullable=True),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("key_id", name=op.f("pk_rag_keys")),
        comment="API keys; of the secret only its hash. NULL projects or tags mean all of the tenant's",
    )
    op.create_table(
        "rag_audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("actor", sa.String(length=600), nullable=False),
        sa.Column("tenant_id", sa.String(length=256), nullable=True),
        sa.Column("key_id", sa.String(length=32), nullable=True),
        sa.Column("artifact_count", sa.Integer(), server_default="0", nullable=False),
        sa.Column("artifact_ids", sa.JSON(), nullable=False),
        sa.Column("chunks_removed", sa.Integer(), server_default="0", nullable=False),
        sa.Column("cascade_id", sa.String(length=256), nullable=True),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rag_audit")),
        sqlite_autoincrement=True,
        comment="Who tainted, and what became of keys; never a secret. NULL tenant: all tenants, or none concerned",
    )
    with op.batch_alter_table("rag_audit", schema=None) as batch_op:
        batch_op.create_index("ix_rag_audit_actor", ["actor"], unique=False)
        batch_op.create_index("ix_rag_audit_at", ["at"], unique=False)


def downgrade() -> None:
    raise NotImplementedError("keys would be lost: restore a backup instead")
