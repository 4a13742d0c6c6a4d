"""The ledger of the first release."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:

    op.create_table(
        "rag_artifacts",
        sa.Column("tenant_id", sa.String(length=256), nullable=False),
        sa.Column("artifact_id", sa.String(length=256), nullable=False),
        sa.Column("tainted_at", sa.BigInteger(), server_default=sa.text("(-4611686018427387904)"), nullable=False),
        sa.Column("tainted_through", sa.BigInteger(), server_default=sa.text("(-4611686018427387904)"), nullable=False),
        sa.Column(
            "tainted_through_own", sa.BigInteger(), server_default=sa.text("(-4611686018427387904)"), nullable=False
        ),
        sa.Column("version", sa.BigInteger(), server_default=sa.text("(-4611686018427387904)"), nullable=False),
        sa.Column("version_own_clock", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("live_generation", sa.BigInteger(), nullable=True),
        sa.Column("content_hash", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "artifact_id", name=op.f("pk_rag_artifacts")),
    )
    with op.batch_alter_table("rag_artifacts", schema=None) as batch_op:
        batch_op.create_index("ix_rag_artifacts_artifact_id", ["artifact_id"], unique=False)
        batch_op.create_index("uq_rag_artifacts_live_generation", ["live_generation"], unique=True)

    op.create_table(
        "rag_chunks",
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("chunk_index", sa.Integer(), nullable=False),
        sa.Column("document_id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=256), nullable=False),
        sa.Column("user_id", sa.String(length=256), nullable=True),
        sa.Column("project_id", sa.String(length=256), nullable=False),
        sa.Column("scope", sa.String(length=16), nullable=False),
        sa.Column("chunk_text", sa.Text(), nullable=False),
        sa.Column("chunk_hash", sa.String(length=64), nullable=False),
        sa.Column("token_count", sa.Integer(), nullable=False),
        sa.Column("char_start", sa.Integer(), nullable=False),
        sa.Column("char_end", sa.Integer(), nullable=False),
        sa.Column("embedding_model", sa.String(length=256), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("generation", "chunk_index", name=op.f("pk_rag_chunks")),
    )
    op.create_table(
        "rag_documents",
        sa.Column(
            "generation", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("tenant_id", sa.String(length=256), nullable=False),
        sa.Column("artifact_id", sa.String(length=256), nullable=False),
        sa.Column("document_id", sa.String(length=36), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("own_clock", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("event_id", sa.String(length=600), nullable=False),
        sa.Column("user_id", sa.String(length=256), nullable=True),
        sa.Column("project_id", sa.String(length=256), nullable=False),
        sa.Column("scope", sa.String(length=16), nullable=False),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("domain", sa.String(length=256), nullable=False),
        sa.Column("doc_type", sa.String(length=256), nullable=False),
        sa.Column("verified", sa.Boolean(), server_default=sa.true(), nullable=False),
        sa.Column("provenance_id", sa.String(length=256), nullable=False),
        sa.Column("task_id", sa.String(length=256), nullable=False),
        sa.Column("source_type", sa.String(length=256), nullable=False),
        sa.Column("source_id", sa.String(length=512), nullable=False),
        sa.Column("source_uri", sa.Text(), nullable=False),
        sa.Column("source_hash", sa.String(length=64), nullable=False),
        sa.Column("source_updated_at", sa.String(length=64), nullable=False),
        sa.Column("language", sa.String(length=64), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("extra", sa.Text(), nullable=False),
        sa.Column("embedding_model", sa.String(length=256), nullable=True),
        sa.Column("chunk_count", sa.Integer(), server_default="0", nullable=False),
        sa.Column("token_count", sa.Integer(), server_default="0", nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("generation", name=op.f("pk_rag_documents")),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("rag_documents", schema=None) as batch_op:
        batch_op.create_index("ix_rag_documents_artifact_id", ["artifact_id"], unique=False)
        batch_op.create_index("ix_rag_documents_tenant_id_artifact_id", ["tenant_id", "artifact_id"], unique=False)

    op.create_table(
        "rag_outbox",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("event_id", sa.String(length=600), nullable=False),
        sa.Column("routing_key", sa.String(length=128), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("claimed_until", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("sent_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rag_outbox")),
        sa.UniqueConstraint("event_id", name=op.f("uq_rag_outbox_event_id")),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("rag_outbox", schema=None) as batch_op:
        batch_op.create_index(
            "ix_rag_outbox_unsent",
            ["id"],
            unique=False,
            sqlite_where=sa.text("sent_at IS NULL"),
            postgresql_where=sa.text("sent_at IS NULL"),
        )

    op.create_table(
        "rag_pending",
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("tenant_id", sa.String(length=256), nullable=False),
        sa.Column("artifact_id", sa.String(length=256), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("own_clock", sa.Boolean(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("generation", name=op.f("pk_rag_pending")),
        comment="Generations being written: invisible, and kept by the sweep",
    )
    with op.batch_alter_table("rag_pending", schema=None) as batch_op:
        batch_op.create_index("ix_rag_pending_artifact_id", ["artifact_id"], unique=False)

    op.create_table(
        "rag_quarantine",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("tenant_id", sa.String(length=256), nullable=False),
        sa.Column("artifact_id", sa.String(length=256), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("content_hash", sa.String(length=64), nullable=False),
        sa.Column("event_id", sa.String(length=600), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("source_metadata", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("resolved_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rag_quarantine")),
        sa.UniqueConstraint(
            "tenant_id",
            "artifact_id",
            "version",
            "content_hash",
            name=op.f("uq_rag_quarantine_tenant_id_artifact_id_version_content_hash"),
        ),
    )
    op.create_table(
        "rag_receipts",
        sa.Column("tenant_id", sa.String(length=256), nullable=False),
        sa.Column("artifact_id", sa.String(length=256), nullable=False),
        sa.Column("content_hash", sa.String(length=64), nullable=False),
        sa.Column("claimed", sa.BigInteger(), nullable=False),
        sa.Column("placed", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "artifact_id", "content_hash", "claimed", name=op.f("pk_rag_receipts")),
        comment="Where an event was placed when it was first received; claimed is NEVER for a bare message",
    )
    op.create_table(
        "rag_tags",
        sa.Column("tenant_id", sa.String(length=256), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("owner_user_id", sa.String(length=256), nullable=True),
        sa.Column("description", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "name", name=op.f("pk_rag_tags")),
    )
    op.create_table(
        "rag_taint_receipts",
        sa.Column("identity", sa.String(length=64), nullable=False),
        sa.Column("placed", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("identity", name=op.f("pk_rag_taint_receipts")),
    )
    op.create_table(
        "rag_users",
        sa.Column("tenant_id", sa.String(length=256), nullable=False),
        sa.Column("user_id", sa.String(length=256), nullable=False),
        sa.Column("email", sa.String(length=320), nullable=False),
        sa.Column("name", sa.Text(), server_default="", nullable=False),
        sa.Column("is_admin", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "user_id", name=op.f("pk_rag_users")),
    )
    op.create_table(
        "rag_wildcards",
        sa.Column("artifact_id", sa.String(length=256), nullable=False),
        sa.Column("tainted_at", sa.BigInteger(), server_default=sa.text("(-4611686018427387904)"), nullable=False),
        sa.Column("tainted_through", sa.BigInteger(), server_default=sa.text("(-4611686018427387904)"), nullable=False),
        sa.Column(
            "tainted_through_own", sa.BigInteger(), server_default=sa.text("(-4611686018427387904)"), nullable=False
        ),
        sa.PrimaryKeyConstraint("artifact_id", name=op.f("pk_rag_wildcards")),
        comment="Taints that named no tenant: they cover the id in every tenant, also in those that show it later",
    )
    op.create_table(
        "rag_writer_epoch",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rag_writer_epoch")),
    )
    op.create_table(
        "rag_writers",
        sa.Column("writer_id", sa.String(length=256), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("pending", sa.Integer(), nullable=False),
        sa.Column("processing", sa.Integer(), nullable=False),
        sa.Column("model", sa.String(length=256), nullable=False),
        sa.Column("backend", sa.String(length=256), nullable=False),
        sa.Column("beat_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("writer_id", name=op.f("pk_rag_writers")),
    )


def downgrade() -> None:
    raise NotImplementedError("the first release has nothing before it")
