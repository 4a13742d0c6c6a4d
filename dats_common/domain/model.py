"""The nouns of the ledger as frozen values. Glossary: docs/architecture.md."""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import lru_cache

from dats_common.trace_context import TraceContext

DEFAULT_TENANT = "default"

# Fixed for ever: document ids and point ids in every index are derived from it.
NAMESPACE = uuid.UUID("5c3ee0b5-2f0e-5d6f-9a35-6b1f2f6f7a11")

NEVER = -(2**62)
"""The ORD before all others: "minus infinity" that fits a SQL BIGINT."""


class Scope(StrEnum):
    """Who may see an artifact, before its tags are judged."""

    PUBLIC = "public"
    USER = "user"
    PROJECT = "project"


@lru_cache(maxsize=16_384)  # asked for at every comparison of a ranking, and a SHA-1 each time
def _document_id(tenant_id: str, artifact_id: str) -> str:
    return str(uuid.uuid5(NAMESPACE, f"{tenant_id}\0{artifact_id}"))


@dataclass(frozen=True, slots=True, order=True)
class ArtifactKey:
    """One artifact of one tenant. Ordered, so that rows are always locked in the same order."""

    tenant_id: str
    artifact_id: str

    @property
    def document_id(self) -> str:
        """uuid5 of tenant and artifact: stable across versions and re-indexing."""
        return _document_id(self.tenant_id, self.artifact_id)


@dataclass(frozen=True, slots=True)
class SourceMetadata:
    """What a producer says about an artifact. `extra` is canonical JSON of the keys we do not interpret."""

    project_id: str
    provenance_id: str = ""
    task_id: str = ""
    domain: str = ""
    doc_type: str = ""
    verified: bool = True
    scope: Scope = Scope.PROJECT
    user_id: str | None = None
    tags: tuple[str, ...] = ()
    title: str = ""
    language: str = ""
    source_type: str = ""
    source_id: str = ""
    source_uri: str = ""
    source_updated_at: str = ""
    extra: str = "{}"


@dataclass(frozen=True, slots=True)
class EventTime:
    """Where a producer placed an event, before the ledger's clock has judged it.

    Attributes:
        claimed: microseconds since 1970 UTC, or None for a bare message.
        own_clock: the claim was read off the ledger's own clock (HTTP calls), so no skew applies.
    """

    claimed: int | None = None
    own_clock: bool = False


@dataclass(frozen=True, slots=True)
class Validated:
    """QA approved this content of this artifact.

    Attributes:
        trace: whose work it is; no part of what it says.
    """

    key: ArtifactKey
    content: str
    metadata: SourceMetadata
    time: EventTime
    event_id: str
    content_hash: str = field(init=False, compare=False)
    """SHA-256 hex of content and metadata: two events with one hash would index the same points."""
    trace: TraceContext | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        said = {each.name: getattr(self.metadata, each.name) for each in fields(self.metadata)}
        metadata = json.dumps(said, sort_keys=True, ensure_ascii=True)
        digest = hashlib.sha256(f"{metadata}\0{self.content}".encode()).hexdigest()
        object.__setattr__(self, "content_hash", digest)  # once: it is asked for at every step


BUS_ACTOR = "bus"
"""Who may publish on the bus is believed; the broker's permissions say who that is."""


@dataclass(frozen=True, slots=True)
class Taint:
    """These artifacts must vanish from every answer.

    Attributes:
        tenant_id: None covers the ids in every tenant, also tenants that show them later.
        event_id: identity of the event where it has one; the same id twice is the same taint.
        actor: who asked for it, for the audit; no part of its identity.
        whole: the identity of the taint of which this is a part.
    """

    tenant_id: str | None
    artifact_ids: tuple[str, ...]
    time: EventTime
    cascade_id: str | None = None
    reason: str | None = None
    event_id: str | None = None
    actor: str = BUS_ACTOR
    whole: str | None = None

    @property
    def identity(self) -> str | None:
        """Tells a copy of this taint from another one; None where nothing can.

        Ids and time are part of it, and of which taint it is a part: a publisher that reuses a message id must not have
        its second taint taken for a copy of the first.
        """
        if self.event_id is None:
            return None
        named = [self.event_id, self.tenant_id, self.time.claimed, sorted(self.artifact_ids)]
        return hashlib.sha256(json.dumps([*named, *([self.whole] if self.whole else [])]).encode()).hexdigest()

    def parts(self, *, most_ids: int) -> list[Taint]:
        """The same taint in parts of at most `most_ids` ids, cut alike for every copy of it."""
        if len(self.artifact_ids) <= most_ids:
            return [self]
        whole = self.identity
        return [
            replace(self, artifact_ids=self.artifact_ids[start : start + most_ids], whole=whole)
            for start in range(0, len(self.artifact_ids), most_ids)
        ]


@dataclass(frozen=True, slots=True)
class Generation:
    """One embedding of one version of one artifact. Numbers are allocated once and never reused."""

    number: int
    key: ArtifactKey
    version: int
    metadata: SourceMetadata


@dataclass(frozen=True, slots=True)
class Location:
    """Where in its source a person finds a chunk. What is not known is None, or empty.

    Attributes:
        heading_path: headings above it, the outermost first; of code, the names of the definitions around it.
        line_start, line_end: its first and last line, from 1.
        page: the page it begins on, from 1; form feeds part pages.
        anchor: of an HTML page, the id to open.
    """

    heading_path: tuple[str, ...] = ()
    line_start: int | None = None
    line_end: int | None = None
    page: int | None = None
    anchor: str | None = None


NOWHERE = Location()


@dataclass(frozen=True, slots=True)
class Chunk:
    """A slice of a generation's source: `text == content[char_start:char_end]`; of an HTML page, the readable text that
    comes from there."""

    index: int
    text: str
    token_count: int
    char_start: int
    char_end: int
    location: Location = NOWHERE

    @property
    def chunk_hash(self) -> str:
        """SHA-256 hex of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class SparseVector:
    """Term ids, unique and ascending, with their weights; equal lengths."""

    indices: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """What the index stores of a chunk and what it returns: never text."""

    key: ArtifactKey
    generation: int
    chunk_index: int

    @property
    def point_id(self) -> str:
        """The generation is part of the id: a late write can never overwrite a newer version's point."""
        name = f"{self.key.tenant_id}\0{self.key.artifact_id}\0{self.generation}\0{self.chunk_index}"
        return str(uuid.uuid5(NAMESPACE, name))

    @property
    def source_id(self) -> str:
        """`{document_id}:{chunk_index}` as citations name it; the same whatever the generation."""
        return f"{self.key.document_id}:{self.chunk_index}"
