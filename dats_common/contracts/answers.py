"""Questions and answers over HTTP: spec 2's RAGRequest and RAGResponse, field for field, and what we add to them.

Light to import, as `contracts.api` is: pydantic and the domain only.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, field_validator

from dats_common.contracts.api import MAX_QUERY_CHARS, Request, Result, SourceLocation
from dats_common.contracts.fields import MAX_TAGS, Identifier, Label, Tag, TenantId, without_nul

MAX_HISTORY_MESSAGES = 200
MAX_MESSAGE_CHARS = 32_768
DEFAULT_CONTEXT_CHUNKS = 5  # Source: spec 2, RAGRequest
MAX_CONTEXT_CHUNKS = 20


class ChatMessage(Request):
    """One message of the conversation so far. A client's `system` message would override the rules: it is refused."""

    role: Literal["user", "assistant"]
    content: Annotated[str, Field(max_length=MAX_MESSAGE_CHARS)]
    timestamp: Annotated[datetime | None, Field(strict=False)] = None

    @field_validator("content")
    @classmethod
    def _is_text(cls, content: str) -> str:
        return without_nul(content)


class AnswerRequest(Request):
    """A question to be answered from what the caller may see. Source: spec 2, RAGRequest."""

    query: Annotated[str, Field(min_length=1, max_length=MAX_QUERY_CHARS, description="the user's question")]
    user_tags: Annotated[list[Tag], Field(max_length=MAX_TAGS)] | None = None
    tenant_id: TenantId | None = None
    user_id: Identifier | None = None
    chat_history: Annotated[list[ChatMessage], Field(max_length=MAX_HISTORY_MESSAGES)] | None = None
    model: Annotated[
        Annotated[Label, Field(min_length=1)] | None,
        Field(description="one of the allowlist; the service's default otherwise"),
    ] = None
    max_context_chunks: Annotated[int, Field(ge=1, le=MAX_CONTEXT_CHUNKS)] = DEFAULT_CONTEXT_CHUNKS
    strict: Annotated[bool, Field(description="leave out every sentence that its sources do not support")] = False

    @field_validator("query")
    @classmethod
    def _asks_something(cls, query: str) -> str:
        if not query.strip():
            raise ValueError("must not be blank")
        return without_nul(query)


class ConfidenceScore(Result):
    """Source: spec 2. What is ours: `llm_rated` is false where the model gave no usable rating, which counts as 0;
    `answerability`, in [0, 1], says whether the sources seem to hold an answer at all, and is no part of `overall`.
    """

    overall: int
    retrieval_score: float
    coverage_score: float
    llm_score: int
    llm_rated: bool
    answerability: float


class Citation(Result):
    """A source that the answer cites. Source: spec 2; `section` is the heading path in one line. `snippet_full` is for
    people's eyes, never for logs."""

    source_id: str
    document_id: str
    document_name: str
    chunk_index: int
    page_number: int | None = None
    section: str | None = None
    relevance_score: float
    snippet: str
    snippet_full: str
    artifact_id: str
    source_uri: str | None = None
    location: SourceLocation | None = None


class RouteTarget(Result):
    """Whom to ask instead. Source: spec 2."""

    tag: str
    owner_user_id: str | None
    owner_email: str | None
    reason: str
    fallback: bool


class Claim(Result):
    """A sentence of the answer, where it stands there, what it cites, and whether that supports it."""

    text: str
    start: int
    end: int
    source_ids: list[str]
    supported: bool
    score: float


class AnswerResponse(Result):
    """An answer from cited sources, or whom to ask. Source: spec 2, RAGResponse; `id` and `claims` are ours.

    `grounded`: at least one source is cited. `model_used` is `extractive` where no model wrote it.
    """

    id: str
    answer: str
    confidence: ConfidenceScore
    citations: list[Citation]
    action: Literal["CITE", "ROUTE"]
    route_to: RouteTarget | None
    model_used: str
    context_chunks_used: int
    context_tokens_used: int
    generation_time_ms: float
    grounded: bool
    claims: list[Claim]


class StoredAnswer(Result):
    """An answer as it is now: what it stood on is judged at each read. Withdrawn, it is not shown any more."""

    id: str
    status: Literal["standing", "withdrawn"]
    created_at: datetime
    question: str
    answer: AnswerResponse | None = None
    fallen: list[str] = Field(default_factory=list, description="ids of the artifacts that were withdrawn")
