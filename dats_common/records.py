"""What crosses the ports (`dats_common.ports`): plain, frozen records that know no system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from dats_common.contracts.routing import Death
from dats_common.domain.access import Principal
from dats_common.domain.model import (
    NOWHERE,
    ArtifactKey,
    ChunkRef,
    Generation,
    Location,
    SourceMetadata,
    SparseVector,
    Validated,
)
from dats_common.domain.prompt import Message, PromptSource
from dats_common.domain.taint import Place, QuarantineReason, Verdict
from dats_common.trace_context import TraceContext

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


# --------------------------------------------------------------------------------------------------------- encoder


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What must agree between the process that wrote a collection and the one that reads it.

    Attributes:
        model: name of the dense model.
        dimension: length of its vectors.
        max_tokens: its window, special tokens included.
        sparse_version: version of the sparse encoder's rules.
        probe: the model's vectors for `PROBE_TEXTS`, so that two backends of one model agree and two models do not.
    """

    model: str
    dimension: int
    max_tokens: int
    sparse_version: str
    probe: tuple[tuple[float, ...], ...]


# ----------------------------------------------------------------------------------------------------------- index


@dataclass(frozen=True, slots=True)
class Point:
    """One chunk as the index stores it: ids, vectors and the fields that filters need; never text."""

    ref: ChunkRef
    metadata: SourceMetadata
    dense: npt.NDArray[np.float32]
    sparse: SparseVector


@dataclass(frozen=True, slots=True)
class SearchFilter:
    """The principal's bounds plus the request's narrowing; it goes into every leg. None narrows nothing."""

    principal: Principal
    project_id: str | None = None
    domain: str | None = None
    doc_types: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None
    artifact_ids: tuple[str, ...] | None = None
    verified_only: bool = True


@dataclass(frozen=True, slots=True)
class Candidate:
    """What one leg or both proposed. Ranks are 1-based positions within a leg, None where that leg missed it.

    Attributes:
        similarity: cosine to the query's dense vector, clamped to [0, 1]; known for every candidate.
        sparse_score: what the keyword leg gave it, None where that missed it.
    """

    ref: ChunkRef
    similarity: float
    dense_rank: int | None = None
    sparse_rank: int | None = None
    sparse_score: float | None = None


@dataclass(frozen=True, slots=True)
class IndexJob:
    """A pending generation whose source is to be chunked, embedded and stored."""

    generation: Generation
    content: str


# ---------------------------------------------------------------------------------------------------------- ledger


@dataclass(frozen=True, slots=True)
class Admission:
    """V1's answer for one event. `generation` is set when the verdict is EMBED."""

    event: Validated
    verdict: Verdict
    place: Place
    generation: Generation | None = None
    reason: QuarantineReason | None = None
    replaces: bool = False
    """Whether the artifact had a history, so that points of an older generation may be left to sweep."""


@dataclass(frozen=True, slots=True)
class TaintReceipt:
    """T1's answer.

    Attributes:
        through: ORD up to which versions from a foreign clock are covered.
        chunks_removed: chunks that were visible before, per artifact id, summed over tenants.
        fallen: the artifacts that were visible before; their points are to be swept, and answers recalled.
        cascade_id: the taint's.
        claimed: the time that the taint itself named (ORD), if it did.
    """

    through: int
    chunks_removed: Mapping[str, int]
    fallen: tuple[ArtifactKey, ...] = ()
    cascade_id: str | None = None
    claimed: int | None = None


@dataclass(frozen=True, slots=True)
class OutboxEvent:
    """An event to publish, written in the transaction of what it tells, and the trace that it belongs to."""

    row_id: int
    event_id: str
    routing_key: str
    body: Mapping[str, Any]
    trace: TraceContext | None = None


@dataclass(frozen=True, slots=True)
class Passage:
    """A chunk that passed the guard: the only way to text."""

    ref: ChunkRef
    text: str
    token_count: int
    metadata: SourceMetadata
    version: int
    location: Location = NOWHERE


@dataclass(frozen=True, slots=True)
class GuardedRead:
    """What the guard let through, and whether a newer generation replaced a candidate meanwhile."""

    passages: Mapping[ChunkRef, Passage]
    superseded: frozenset[ArtifactKey] = frozenset()


HEARTBEAT_STALE_S = 15.0
"""Several beats of a writer."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What the active writer last said of itself, and when (seconds ago by the ledger's clock)."""

    writer_id: str
    state: Literal["active", "standby", "draining"]
    pending: int
    processing: int
    model: str
    backend: str
    age_s: float = 0.0

    @property
    def is_stale(self) -> bool:
        """Whether it missed several beats: the writer has gone, or hangs."""
        return self.age_s > HEARTBEAT_STALE_S


@dataclass(frozen=True, slots=True)
class ArtifactOutcome:
    """What became of the event that was placed at a certain ORD, as its waiting sender sees it."""

    status: Literal["indexed", "unchanged", "pending", "superseded", "tainted", "quarantined"]
    generation: int | None = None
    chunks: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class LedgerCounts:
    """Figures for health and metrics."""

    live_artifacts: int
    live_chunks: int
    tainted_artifacts: int
    quarantined: int
    unsent_events: int
    oldest_unsent_s: float


# --------------------------------------------------------------------------------------------------------- answers


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a generator is to answer: as messages for a model, and as sources for one that needs no model.

    Attributes:
        sources: in the order of the prompt.
        window_tokens: the model's context window; the same for every call of a model, or it would be loaded anew.
        max_response_tokens: longest response.
        response_schema: the JSON schema that the response must follow; None: it is prose.
    """

    question: str
    messages: tuple[Message, ...]
    sources: tuple[PromptSource, ...]
    model: str
    window_tokens: int
    max_response_tokens: int
    temperature: float
    response_schema: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Scored:
    """What a scorer has to say of pairs.

    Attributes:
        scores: in [0, 1], in the order of the pairs; None: none was to be had.
        trouble: why that is so, in words for people; empty where every pair has a score.
    """

    scores: tuple[float | None, ...]
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Drafted:
    """The end of a draft, by the generator's own account.

    Attributes:
        model: what wrote it, as answers name it in `model_used`.
        prompt_tokens: how many tokens of the prompt were evaluated; None: no model did.
        response_tokens: how many were written.
    """

    model: str
    prompt_tokens: int | None = None
    response_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """An answer and everything that it stands on.

    Attributes:
        actor: who asked, as in the audit.
        user_id: the end user it was asked for.
        project_ids, tags: what the asker could see; None: all of the tenant's.
        prompt_hash: SHA-256 hex of the messages.
        counted_tokens, counted_by: of the prompt, by us and how; `prompt_tokens` and `response_tokens` by the model.
        refs: the chunks of the prompt, all of them: a source that is not cited may have shaped the answer too.
        body: the response as it was sent.
    """

    answer_id: str
    tenant_id: str
    actor: str
    user_id: str | None
    project_ids: frozenset[str] | None
    tags: frozenset[str] | None
    question: str
    model: str
    prompt_hash: str
    counted_tokens: int
    counted_by: str
    prompt_tokens: int | None
    response_tokens: int | None
    confidence: int
    action: Literal["CITE", "ROUTE"]
    refs: tuple[ChunkRef, ...]
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """An answer as it is now.

    Attributes:
        fallen: artifacts it stood on that are withdrawn; empty: it stands.
        created_at: ORD.
    """

    record: AnswerRecord
    created_at: int
    fallen: tuple[ArtifactKey, ...] = ()


@dataclass(frozen=True, slots=True)
class TagOwner:
    """Whom questions about a tag go to. `email` is None where the owner is nobody we know."""

    tag: str
    user_id: str | None
    email: str | None = None
    description: str = ""


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who can own tags."""

    user_id: str
    email: str
    name: str = ""


# -------------------------------------------------------------------------------------------------------- identity


@dataclass(frozen=True, slots=True)
class StoredKey:
    """An API key as the ledger has it: whom it stands for, and the hash of its secret. Times are ORDs.

    Attributes:
        project_ids, tags: None means all of the tenant's.
        requests_per_minute: None: the service's default.
        state: by the ledger's clock at the moment of the look.
    """

    key_id: str
    secret_hash: str
    name: str
    tenant_ids: tuple[str, ...]
    roles: frozenset[str]
    user_id: str | None = None
    project_ids: frozenset[str] | None = None
    tags: frozenset[str] | None = None
    requests_per_minute: int | None = None
    created_at: int = 0
    expires_at: int | None = None
    last_used_at: int | None = None
    revoked_at: int | None = None
    state: Literal["good", "expired", "revoked"] = "good"


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Who did what, never with which secret. `at` is an ORD; of many artifact ids the first are kept."""

    at: int
    action: Literal["taint", "untaint", "key_created", "key_revoked", "key_refused", "owners_changed"]
    actor: str
    tenant_id: str | None = None
    key_id: str | None = None
    artifact_count: int = 0
    artifact_ids: tuple[str, ...] = ()
    chunks_removed: int = 0
    cascade_id: str | None = None
    reason: str = ""


# ------------------------------------------------------------------------------------------------------------- bus


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message in hand. Exactly one of the settle calls ends it; a lost connection makes the broker bring it again.

    Attributes:
        body: the bytes as they came.
        event_type: from the `type` property or the routing key; a retried message keeps it.
        attempt: 1 for the first try; raised by each `retry`, not by a crash.
        timestamp: the AMQP timestamp in microseconds, if the publisher set one.
        redelivered: the broker has handed it out before.
        received_s: the loop's time when this process was handed it.
        trace: the span of its handling here; None: nobody traces.
    """

    body: bytes
    event_type: str
    received_s: float
    message_id: str | None = None
    attempt: int = 1
    timestamp: int | None = None
    redelivered: bool = False
    headers: Mapping[str, Any] = field(default_factory=dict)
    trace: TraceContext | None = None
    handle: Any = field(default=None, repr=False, compare=False)


# ----------------------------------------------------------------------------------------- what operators ask besides


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that was given up. Its body is content: there only where it was asked for."""

    letter_id: str
    death: Death
    size_bytes: int
    body: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A version that waits for an operator or a later version. Its content is there only where it was asked for."""

    entry_id: int
    key: ArtifactKey
    version: int
    reason: str
    event_id: str
    age_s: float
    size_chars: int
    content: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """What a taint took away, and what the ledger keeps of it. Its content is there only where it was asked for.

    Attributes:
        tainted_at: when the latest taint that covers it was sent, an ORD.
        version: of the kept source.
        taints: how many have come since the ledger keeps it; to take back the latest is to take back all of them.
    """

    key: ArtifactKey
    tainted_at: int
    version: int
    title: str
    size_chars: int
    taints: int
    content: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class LiveGeneration:
    """What readers see of an artifact, and how many points it should have: chunks 0 to `chunks` - 1."""

    key: ArtifactKey
    generation: int
    chunks: int
