"""HTTP requests and responses, for the service and its clients. Light to import: pydantic and the domain only.

Source: spec 1 "API Specification" and "Data Models"; what goes beyond it is optional.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from dats_common.contracts.fields import (
    MAX_TAGS,
    ArtifactId,
    FreeText,
    Identifier,
    Label,
    RequestedContent,
    Tag,
    TenantId,
    explain,
    unique,
    without_nul,
)
from dats_common.contracts.metadata import ArtifactMetadata

DEFAULT_MAX_TOKENS = 2000  # Source: spec 1, QueryRequest
DEFAULT_TOP_K = 10  # Source: spec 1, query.result_limit
MAX_QUERY_CHARS = 4096
CANARY_PROJECT = "dats-rag-verify"
"""Project of the canaries of `dats-rag verify`: queries for it are no questions of people."""
MAX_FILTER_IDS = 1000
MAX_BATCH_IDS = 10_000


class SearchMode(str, Enum):  # noqa: UP042  spec 1 declares it so; str() of a StrEnum would differ
    """Which legs a query uses."""

    VECTOR = "vector"
    KEYWORD = "keyword"
    HYBRID = "hybrid"


class Request(BaseModel):
    """What a caller sends; wrong types are refused, not converted."""

    # A misspelt key that narrows a search must not silently widen it: unknown keys are refused by name.
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)


class Result(BaseModel):
    """A typed answer that also reads as the dict of spec 1's example: `result["context"]`, `.get`, `in`, iteration.

    What a newer server adds is ignored.
    """

    model_config = ConfigDict(extra="ignore")

    def __getitem__(self, name: str) -> Any:
        if name not in type(self).model_fields:
            raise KeyError(name)
        return getattr(self, name)

    def get(self, name: str, default: Any = None) -> Any:
        """The field, or `default` where this answer has no such field."""
        return getattr(self, name) if name in type(self).model_fields else default

    def __contains__(self, name: object) -> bool:
        return name in type(self).model_fields

    def __iter__(self) -> Iterator[str]:  # type: ignore[override]
        return iter(type(self).model_fields)

    def __len__(self) -> int:
        return len(type(self).model_fields)

    def keys(self) -> list[str]:
        """Field names, in order."""
        return list(self)

    def values(self) -> list[Any]:
        """Field values, in order."""
        return [self[name] for name in self]

    def items(self) -> list[tuple[str, Any]]:
        """Field names and values, in order."""
        return [(name, self[name]) for name in self]


# ---------------------------------------------------------------------------------------------------------- query


def _null_is_empty(value: Any) -> Any:
    return {} if value is None else value


def _one_is_a_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


_DocTypes = Annotated[list[Label], Field(min_length=1, max_length=MAX_TAGS, description="one of these")]


class QueryFilters(Request):
    """Narrows a search. `null` for a key means its default."""

    verified_only: bool = True
    exclude_tainted: Annotated[bool, Field(description="only true: withdrawn content is never served")] = True
    tags: Annotated[list[Tag], Field(min_length=1, max_length=MAX_TAGS, description="any of these")] | None = None
    doc_type: Annotated[
        _DocTypes | None, BeforeValidator(_one_is_a_list, json_schema_input_type=Label | _DocTypes | None)
    ] = None
    artifact_ids: Annotated[list[ArtifactId], Field(min_length=1, max_length=MAX_FILTER_IDS)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _null_is_default(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: item for key, item in value.items() if item is not None or key not in cls.model_fields}

    @field_validator("exclude_tainted")
    @classmethod
    def _withdrawn_content_stays_away(cls, value: bool) -> bool:
        if not value:
            raise ValueError("withdrawn content is never served: exclude_tainted cannot be false")
        return value


class QueryRequest(Request):
    """Request for context retrieval."""

    query: Annotated[str, Field(min_length=1, max_length=MAX_QUERY_CHARS, description="Natural language query")]
    project_id: Identifier | None = None
    domain: Label | None = None
    max_tokens: Annotated[int, Field(ge=100, le=10_000)] = DEFAULT_MAX_TOKENS
    search_mode: Annotated[SearchMode, Field(strict=False)] = SearchMode.HYBRID
    filters: Annotated[QueryFilters, BeforeValidator(_null_is_empty, json_schema_input_type=QueryFilters | None)] = (
        QueryFilters()
    )
    tenant_id: TenantId | None = None
    user_id: Identifier | None = None
    user_tags: Annotated[list[Tag], Field(max_length=MAX_TAGS)] | None = None
    top_k: Annotated[int, Field(ge=1, le=100)] = DEFAULT_TOP_K
    rerank: Annotated[
        bool | None,
        Field(
            description="order by a cross-encoder where fusion is not certain; null: as query.reranking.domains has it "
            "for the domain"
        ),
    ] = None

    @field_validator("query")
    @classmethod
    def _asks_something(cls, query: str) -> str:
        if not query.strip():
            raise ValueError("must not be blank")
        return without_nul(query)


class SourceLocation(Result):
    """Where in its source a passage stands, as far as that is known."""

    heading_path: list[str] = Field(
        default_factory=list, description="headings above it, the outermost first; of code, the definitions around it"
    )
    line_start: int | None = None
    line_end: int | None = None
    page: int | None = None
    anchor: Annotated[str | None, Field(description="of an HTML page, the id to open")] = None
    uri: Annotated[str | None, Field(description="source_uri with the place in it, to be opened")] = None


class SourceReference(Result):
    """Reference to a source document."""

    artifact_id: str
    provenance_id: str
    relevance_score: Annotated[float, Field(description="cosine to the query, in [0, 1]; not what orders the sources")]
    snippet: str
    source_id: Annotated[str, Field(description="{document_id}:{chunk_index}, as citations name it")]
    chunk_index: int
    title: str | None = None
    source_uri: str | None = None
    location: SourceLocation | None = None


class QueryResponse(Result):
    """Response from context query."""

    id: str
    query: str
    context: str
    sources: list[SourceReference]
    tokens_used: int
    search_mode: SearchMode
    metadata: dict[str, Any] = Field(default_factory=dict)
    reranked: Annotated[bool, Field(description="the sources are in a cross-encoder's order")] = False
    rerank_reason: Annotated[str | None, Field(description="why they are not although that was wanted")] = None


# ---------------------------------------------------------------------------------------------------------- embed


class EmbedMetadata(ArtifactMetadata):
    """Required: artifact_id, project_id."""

    artifact_id: ArtifactId


class EmbedRequest(Request):
    """Request to index content."""

    content: RequestedContent
    metadata: EmbedMetadata


class EmbedStatus(StrEnum):
    """How an embed request ended, as far as is known when it is answered."""

    INDEXED = "indexed"
    UNCHANGED = "unchanged"
    QUEUED = "queued"  # accepted and durable; the writer will do it
    QUARANTINED = "quarantined"
    TAINTED = "tainted"
    SUPERSEDED = "superseded"  # a newer version came first


class EmbedResponse(Result):
    """Response to an embed request; `chunks` and `tokens` are 0 until it is indexed."""

    id: str
    artifact_id: str
    status: EmbedStatus
    chunks: int
    tokens: int
    latency_ms: int


# ----------------------------------------------------------------------------------------------------- invalidate


class InvalidateResponse(Result):
    """The tombstone is committed: no query that starts from now on returns the artifact."""

    artifact_id: str
    removed_chunks: int
    status: Literal["invalidated"] = "invalidated"


class BatchInvalidateRequest(Request):
    """Request to invalidate several artifacts in one step."""

    artifact_ids: Annotated[list[ArtifactId], Field(min_length=1, max_length=MAX_BATCH_IDS)]
    reason: FreeText | None = None
    cascade_id: Label | None = None
    tenant_id: TenantId | None = None

    @field_validator("artifact_ids")
    @classmethod
    def _each_id_once(cls, artifact_ids: list[str]) -> list[str]:
        return unique(artifact_ids)


class BatchInvalidateResponse(Result):
    """All tombstones are committed. `invalidated` counts ids, known or not."""

    invalidated: int
    chunks_removed: int
    cascade_id: str | None = None


# --------------------------------------------------------------------------------------------------------- health


class LightRAGHealth(Result):
    """The index: connected or not, and how many chunks are live."""

    status: Literal["connected", "unavailable"]
    index_size: int
    embedding_model: str


class EmbeddingQueueHealth(Result):
    """Messages that wait and that are being worked on; None where it is not known."""

    pending: int | None
    processing: int | None


class IndexMetrics(Result):
    """Figures of the index. Source: spec 5, GET /health."""

    total_chunks: int
    total_vectors: int
    dimension: int


class OllamaHealth(Result):
    """Source: spec 2, health."""

    healthy: bool
    model: str
    latency_ms: int | None = None


class ComponentHealth(Result):
    """One thing that the service stands on; off: it was not asked for, and nothing is missing."""

    status: Literal["ok", "unavailable", "off"]
    detail: str = ""


class HealthFinding(Result):
    """One thing that somebody should see to; `runbook` is the heading of docs/runbook.md that says how."""

    what: str
    detail: str = ""
    runbook: str


class HealthResponse(Result):
    """The state of the service and of what it stands on."""

    status: Literal["healthy", "degraded", "unhealthy"]
    version: str
    lightrag: LightRAGHealth
    embedding_queue: EmbeddingQueueHealth
    rag_ok: bool
    rag_details: str = ""
    index_metrics: IndexMetrics | None = None
    ollama: OllamaHealth | None = None
    components: dict[str, ComponentHealth] = Field(default_factory=dict)
    findings: list[HealthFinding] = Field(default_factory=list)


class ProbeResponse(Result):
    """Answer of /health/live and /health/ready."""

    status: Literal["ok", "unavailable"]
    detail: str = ""


# ------------------------------------------------------------------------------------------------------- problems


class FieldProblem(BaseModel):
    """One field of a request and what is wrong with it."""

    field: str
    message: str


class Problem(BaseModel):
    """A refusal. Source: RFC 9457; `errors` is its extension member of the example in section 3."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str = ""
    instance: str | None = None
    errors: list[FieldProblem] = Field(default_factory=list)


def field_problems(errors: Sequence[Mapping[str, Any]]) -> list[FieldProblem]:
    """What `ValidationError.errors()` (or FastAPI's) says, without what was sent."""
    return [FieldProblem(field=field, message=message) for field, message in explain(errors)]
