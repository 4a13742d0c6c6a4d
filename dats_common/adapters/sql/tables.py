"""The ledger's tables. Times and versions are ORDs: microseconds since 1970 UTC, as BIGINT.

`rag_documents` and `rag_chunks` carry the columns of spec 4 from the start; a document row is one generation.
The names are prefixed because the database may be shared with other services.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
    true,
)

from dats_common.domain.model import NEVER

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite counts rows up by itself only for INTEGER keys; everywhere else a generation needs 64 bits.
_Counter = BigInteger().with_variant(Integer, "sqlite")
_NEVER = text(str(NEVER))


def _tombstone() -> list[Column[int]]:
    return [
        Column("tainted_at", BigInteger, nullable=False, server_default=_NEVER),
        Column("tainted_through", BigInteger, nullable=False, server_default=_NEVER),
        Column("tainted_through_own", BigInteger, nullable=False, server_default=_NEVER),
    ]


def _location() -> list[Column[Any]]:
    """Where a chunk stands in its source; NULL or empty where that is not known."""
    return [
        Column("heading_path", Text, nullable=False, server_default=""),  # one heading a line
        Column("line_start", Integer),
        Column("line_end", Integer),
        Column("page", Integer),
        Column("anchor", Text),
    ]


artifacts = Table(
    "rag_artifacts",
    metadata,
    Column("tenant_id", String(256), primary_key=True),
    Column("artifact_id", String(256), primary_key=True),
    *_tombstone(),
    Column("version", BigInteger, nullable=False, server_default=_NEVER),
    Column("version_own_clock", Boolean, nullable=False, server_default=false()),
    Column("live_generation", BigInteger),
    Column("content_hash", String(64)),
    Index("uq_rag_artifacts_live_generation", "live_generation", unique=True),
    Index("ix_rag_artifacts_artifact_id", "artifact_id"),
)

wildcards = Table(
    "rag_wildcards",
    metadata,
    Column("artifact_id", String(256), primary_key=True),
    *_tombstone(),
    comment="Taints that named no tenant: they cover the id in every tenant, also in those that show it later",
)

documents = Table(
    "rag_documents",
    metadata,
    Column("generation", _Counter, primary_key=True, autoincrement=True),
    Column("tenant_id", String(256), nullable=False),
    Column("artifact_id", String(256), nullable=False),
    Column("document_id", String(36), nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("own_clock", Boolean, nullable=False, server_default=false()),
    Column("event_id", String(600), nullable=False),
    Column("user_id", String(256)),
    Column("project_id", String(256), nullable=False),
    Column("scope", String(16), nullable=False),
    Column("tags", JSON, nullable=False),
    Column("domain", String(256), nullable=False),
    Column("doc_type", String(256), nullable=False),
    Column("verified", Boolean, nullable=False, server_default=true()),
    Column("provenance_id", String(256), nullable=False),
    Column("task_id", String(256), nullable=False),
    Column("source_type", String(256), nullable=False),
    Column("source_id", String(512), nullable=False),
    Column("source_uri", Text, nullable=False),
    Column("source_hash", String(64), nullable=False),
    Column("source_updated_at", String(64), nullable=False),
    Column("language", String(64), nullable=False),
    Column("title", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("extra", Text, nullable=False),
    Column("embedding_model", String(256)),
    Column("chunk_count", Integer, nullable=False, server_default="0"),
    Column("token_count", Integer, nullable=False, server_default="0"),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Index("ix_rag_documents_tenant_id_artifact_id", "tenant_id", "artifact_id"),
    Index("ix_rag_documents_artifact_id", "artifact_id"),
    sqlite_autoincrement=True,  # a generation's number is never used twice, also not after its row was deleted
)

chunks = Table(
    "rag_chunks",
    metadata,
    Column("generation", BigInteger, primary_key=True),
    Column("chunk_index", Integer, primary_key=True),
    Column("document_id", String(36), nullable=False),
    Column("tenant_id", String(256), nullable=False),
    Column("user_id", String(256)),
    Column("project_id", String(256), nullable=False),
    Column("scope", String(16), nullable=False),
    Column("chunk_text", Text, nullable=False),
    Column("chunk_hash", String(64), nullable=False),
    Column("token_count", Integer, nullable=False),
    Column("char_start", Integer, nullable=False),
    Column("char_end", Integer, nullable=False),
    *_location(),
    Column("embedding_model", String(256), nullable=False),
    Column("created_at", BigInteger, nullable=False),
)

pending = Table(
    "rag_pending",
    metadata,
    Column("generation", BigInteger, primary_key=True),
    Column("tenant_id", String(256), nullable=False),
    Column("artifact_id", String(256), nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("own_clock", Boolean, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Index("ix_rag_pending_artifact_id", "artifact_id"),
    comment="Generations being written: invisible, and kept by the sweep",
)

receipts = Table(
    "rag_receipts",
    metadata,
    Column("tenant_id", String(256), primary_key=True),
    Column("artifact_id", String(256), primary_key=True),
    Column("content_hash", String(64), primary_key=True),
    Column("claimed", BigInteger, primary_key=True),
    Column("placed", BigInteger, nullable=False),
    comment="Where an event was placed when it was first received; claimed is NEVER for a bare message",
)

taint_receipts = Table(
    "rag_taint_receipts",
    metadata,
    Column("identity", String(64), primary_key=True),
    Column("placed", BigInteger, nullable=False),
)

quarantine = Table(
    "rag_quarantine",
    metadata,
    Column("id", _Counter, primary_key=True, autoincrement=True),
    Column("tenant_id", String(256), nullable=False),
    Column("artifact_id", String(256), nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("content_hash", String(64), nullable=False),
    Column("event_id", String(600), nullable=False),
    Column("reason", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("source_metadata", JSON, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("resolved_at", BigInteger),
    UniqueConstraint("tenant_id", "artifact_id", "version", "content_hash"),
)

outbox = Table(
    "rag_outbox",
    metadata,
    Column("id", _Counter, primary_key=True, autoincrement=True),
    Column("event_id", String(600), nullable=False),
    Column("routing_key", String(128), nullable=False),
    Column("body", JSON, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("claimed_until", BigInteger, nullable=False, server_default="0"),
    Column("sent_at", BigInteger),
    Column("traceparent", String(55)),
    UniqueConstraint("event_id"),
    Index(
        "ix_rag_outbox_unsent",
        "id",
        sqlite_where=text("sent_at IS NULL"),
        postgresql_where=text("sent_at IS NULL"),
    ),
    sqlite_autoincrement=True,
)

writer_epoch = Table(
    "rag_writer_epoch",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
)

writers = Table(
    "rag_writers",
    metadata,
    Column("writer_id", String(256), primary_key=True),
    Column("state", String(16), nullable=False),
    Column("pending", Integer, nullable=False),
    Column("processing", Integer, nullable=False),
    Column("model", String(256), nullable=False),
    Column("backend", String(256), nullable=False),
    Column("beat_at", BigInteger, nullable=False),
)

users = Table(
    "rag_users",
    metadata,
    Column("tenant_id", String(256), primary_key=True),
    Column("user_id", String(256), primary_key=True),
    Column("email", String(320), nullable=False),
    Column("name", Text, nullable=False, server_default=""),
    Column("is_admin", Boolean, nullable=False, server_default=false()),
)

tags = Table(
    "rag_tags",
    metadata,
    Column("tenant_id", String(256), primary_key=True),
    Column("name", String(128), primary_key=True),
    Column("owner_user_id", String(256)),
    Column("description", Text, nullable=False, server_default=""),
)

answers = Table(
    "rag_answers",
    metadata,
    Column("answer_id", String(64), primary_key=True),
    Column("tenant_id", String(256), nullable=False),
    Column("actor", String(600), nullable=False),
    Column("user_id", String(256)),
    Column("asker_project_ids", JSON(none_as_null=True)),
    Column("asker_tags", JSON(none_as_null=True)),
    Column("question", Text, nullable=False),
    Column("model", String(256), nullable=False),
    Column("prompt_hash", String(64), nullable=False),
    Column("counted_tokens", Integer, nullable=False),
    Column("counted_by", String(256), nullable=False),
    Column("prompt_tokens", Integer),
    Column("response_tokens", Integer),
    Column("confidence", Integer, nullable=False),
    Column("action", String(16), nullable=False),
    Column("body", JSON, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("recalled_at", BigInteger),
    Index("ix_rag_answers_created_at", "created_at"),
    comment="Every answer, of the tenant that asked. recalled_at: nobody is told to rely on it any more",
)

answer_sources = Table(
    "rag_answer_sources",
    metadata,
    Column("answer_id", String(64), primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("asker_tenant_id", String(256), nullable=False),
    Column("tenant_id", String(256), nullable=False),
    Column("artifact_id", String(256), nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("chunk_index", Integer, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("own_clock", Boolean, nullable=False),
    Column("fell", Boolean, nullable=False, server_default=false()),
    Index("ix_rag_answer_sources_tenant_id_artifact_id", "tenant_id", "artifact_id"),
    Index(
        "ix_rag_answer_sources_foreign",
        "tenant_id",
        "artifact_id",
        sqlite_where=text("tenant_id <> asker_tenant_id"),
        postgresql_where=text("tenant_id <> asker_tenant_id"),
    ),
    comment="What each answer stands on; tenant_id is the artifact's. version: under which it was shown",
)

# No tenant_id: a key is looked up before anybody's tenant is known, and may have several.
keys = Table(
    "rag_keys",
    metadata,
    Column("key_id", String(32), primary_key=True),
    Column("secret_hash", String(64), nullable=False),
    Column("name", String(256), nullable=False),
    Column("tenant_ids", JSON, nullable=False),
    Column("roles", JSON, nullable=False),
    Column("project_ids", JSON(none_as_null=True)),
    Column("tags", JSON(none_as_null=True)),
    Column("user_id", String(256)),
    Column("requests_per_minute", Integer),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("last_used_at", BigInteger),
    Column("revoked_at", BigInteger),
    comment="API keys; of the secret only its hash. NULL projects or tags mean all of the tenant's",
)

audit = Table(
    "rag_audit",
    metadata,
    Column("id", _Counter, primary_key=True, autoincrement=True),
    Column("at", BigInteger, nullable=False),
    Column("action", String(32), nullable=False),
    Column("actor", String(600), nullable=False),
    Column("tenant_id", String(256)),
    Column("key_id", String(32)),
    Column("artifact_count", Integer, nullable=False, server_default="0"),
    Column("artifact_ids", JSON, nullable=False),
    Column("chunks_removed", Integer, nullable=False, server_default="0"),
    Column("cascade_id", String(256)),
    Column("reason", Text, nullable=False, server_default=""),
    Index("ix_rag_audit_actor", "actor"),
    Index("ix_rag_audit_at", "at"),
    sqlite_autoincrement=True,
    comment="Who tainted, and what became of keys; never a secret. NULL tenant: all tenants, or none concerned",
)
