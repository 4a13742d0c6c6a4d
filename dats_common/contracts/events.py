"""Events as they cross the broker: strict on the way in, exact on the way out.

Source: spec 1 "Events"; the envelope has CloudEvents 1.0 names, and on input only `data` is required.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dats_common.contracts.fields import (
    ArtifactId,
    Content,
    FreeText,
    Label,
    TenantId,
    Wire,
    refusal,
)
from dats_common.contracts.metadata import ArtifactMetadata
from dats_common.contracts.strict_json import parse_object
from dats_common.contracts.topology import (
    ANSWER_RECALLED,
    EMBED_COMMAND,
    EMBEDDING_COMPLETED,
    EMBEDDING_FAILED,
    EMBEDDING_INVALIDATED,
    EMBEDDING_QUARANTINED,
    TASK_VALIDATED,
)
from dats_common.domain.model import DEFAULT_TENANT, ArtifactKey, EventTime, Validated
from dats_common.domain.taint import MICROSECONDS
from dats_common.errors import InvalidInput

SOURCE = "rag-service"

# Before agents wrote anything, and beyond any clock that is merely wrong: a unit was mistaken (seconds, milliseconds).
EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
LATEST = datetime(2100, 1, 1, tzinfo=UTC)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?(?P<offset>[Zz]|[+-]\d\d:\d\d)?", re.ASCII)

Data = TypeVar("Data", bound=BaseModel)


class Envelope(Wire):
    """What surrounds every event. Only `data` is required; unknown fields are ignored."""

    specversion: Label | None = None
    id: Label | None = None
    source: Label | None = None
    type: Label | None = None
    time: Annotated[str, Field(max_length=64, description="RFC 3339 with an offset")] | None = None
    data: dict[str, Any]


# -------------------------------------------------------------------------------------------------------- data in


class ValidatedData(Wire):
    """`task.validated`: QA approved this content. `rag.embed`, the replicas' command, carries the same."""

    artifact_id: ArtifactId
    content: Content
    metadata: ArtifactMetadata
    tenant_id: TenantId | None = None

    @model_validator(mode="after")
    def _agrees_with_its_metadata(self) -> ValidatedData:
        if self.metadata.artifact_id not in (None, self.artifact_id):
            raise ValueError("artifact_id and metadata.artifact_id differ")
        if self.tenant_id and self.metadata.tenant_id not in (None, self.tenant_id):
            raise ValueError("tenant_id and metadata.tenant_id differ")
        return self

    def key(self) -> ArtifactKey:
        """The tenant is the one named in data, else in metadata, else `default`."""
        return ArtifactKey(self.tenant_id or self.metadata.tenant_id or DEFAULT_TENANT, self.artifact_id)


class TaintMetadata(Wire):
    """The place where a tenant may stand instead of in data."""

    tenant_id: TenantId | None = None


class TaintedData(Wire):
    """`artifact.tainted`: these artifacts must vanish. Either key alone names them; both are joined.

    Send what this says. A taint that breaks it is applied to every id that can be read, then dead-lettered with why.
    """

    artifact_id: ArtifactId | None = None
    artifact_ids: list[ArtifactId] | None = None
    cascade_id: Label | None = None
    reason: FreeText | None = None
    tenant_id: Annotated[TenantId | None, Field(description="absent: every tenant")] = None
    metadata: TaintMetadata | None = None

    def tenants(self) -> frozenset[str]:
        """Named in data or in metadata. None covers the ids in every tenant; two contradict each other."""
        named = (self.tenant_id, self.metadata.tenant_id if self.metadata else None)
        return frozenset(tenant_id for tenant_id in named if tenant_id is not None)


# ------------------------------------------------------------------------------------------------------- data out


class _Published(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CompletedData(_Published):
    """`embedding.completed`: this version is what searches see now."""

    artifact_id: str
    chunks: int
    status: Literal["indexed", "unchanged"]
    version: Annotated[int, Field(description="place in the artifact's history, microseconds since 1970 UTC")]
    generation: int


class InvalidatedData(_Published):
    """`embedding.invalidated`: no query that starts from now on returns what the taint covers of these artifacts.

    A version that was approved after it stays visible, also when the taint arrives late.
    """

    artifact_ids: list[str]
    tenant_id: Annotated[str | None, Field(description="null: every tenant")]
    cascade_id: str | None
    chunks_removed: int
    through: Annotated[
        int,
        Field(
            description="versions up to here are covered, microseconds since 1970 UTC; of those from POST /embed, by a "
            "taint over HTTP or without a time, the ones up to the taint itself"
        ),
    ]


class FailedData(_Published):
    """`embedding.failed`: an input became a dead letter; what could not be read of it is null."""

    artifact_id: Annotated[str | None, Field(description="null also for a taint that names several")]
    tenant_id: Annotated[str | None, Field(description="null also for a taint of every tenant")]
    event_id: Annotated[str | None, Field(description="the input's id as it was sent, else its AMQP message id")]
    reason: str
    attempts: int


class QuarantinedData(_Published):
    """`embedding.quarantined`: stored, not visible, until an operator or a later validated event readmits it."""

    artifact_id: str
    tenant_id: str
    version: int
    reason: str


class RecalledData(_Published):
    """`answer.recalled`: something that this answer stood on was withdrawn; whoever relied on it is to ask again.

    Once for each answer, with what had fallen by then; `GET /answers/{id}` says what has fallen now.
    """

    answer_id: str
    artifact_ids: Annotated[list[str], Field(description="those that fell, sorted; it may have stood on others too")]
    cascade_id: Annotated[str | None, Field(description="of the taint that made them fall, if it is known")]


# ----------------------------------------------------------------------------------------------------------- time


def rfc3339(ord_us: int) -> str:
    """An ORD (microseconds since 1970 UTC) as RFC 3339 in UTC, to the microsecond."""
    seconds, microseconds = divmod(ord_us, MICROSECONDS)
    moment = datetime.fromtimestamp(seconds, tz=UTC).replace(microsecond=microseconds)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def parse_time(text: str) -> int:
    """RFC 3339 to an ORD; digits beyond microseconds are cut.

    Raises:
        InvalidInput: another format, no offset (its place in history would depend on the reader's zone), or a date
            before `EARLIEST` or after `LATEST`.
    """
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise InvalidInput("time: RFC 3339 is needed, such as 2026-01-31T12:00:00Z")
    if match["offset"] is None:
        raise InvalidInput("time: an offset is needed (Z or +01:00): without one the moment is unknown")
    try:
        moment = datetime.fromisoformat(text.upper())
    except ValueError:
        raise InvalidInput("time: there is no such date or hour") from None
    return plausible(_ord(moment), field="time")


def plausible(ord_us: int, *, field: str) -> int:
    """`ord_us`, if its unit was not mistaken. Raises: InvalidInput: before `EARLIEST` or after `LATEST`."""
    if not _ord(EARLIEST) <= ord_us < _ord(LATEST):
        raise InvalidInput(f"{field}: outside of {EARLIEST.year} to {LATEST.year}")
    return ord_us


def _ord(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _event_time(envelope: Envelope, *, timestamp_us: int | None, own_clock: bool) -> EventTime:
    if envelope.time is not None:
        return EventTime(claimed=parse_time(envelope.time), own_clock=own_clock)
    if own_clock:
        raise InvalidInput(f"time: {EMBED_COMMAND} always carries the ledger's time")
    if timestamp_us is not None:
        return EventTime(claimed=plausible(timestamp_us, field="AMQP timestamp"))
    return EventTime()


# ---------------------------------------------------------------------------------------------------------- parse


def parse_validated(
    body: bytes, *, event_type: str, message_id: str | None = None, timestamp_us: int | None = None
) -> Validated:
    """The domain's event in a `task.validated` or `rag.embed` message.

    Args:
        event_type: how the broker brought it; only `rag.embed` may claim a time of the ledger's clock.
        message_id: the AMQP property; it identifies an event whose envelope has no id.
        timestamp_us: the AMQP property in microseconds; it places an event whose envelope has no time.

    Raises: InvalidInput: the message names the fields at fault and never quotes them.
    """
    envelope = _read(Envelope, parse_object(body))
    if envelope.type not in (None, event_type):
        raise InvalidInput(f"type: the envelope's type is not {event_type}, as which it was sent")
    data = _read(ValidatedData, envelope.data, at="data")
    time = _event_time(envelope, timestamp_us=timestamp_us, own_clock=event_type == EMBED_COMMAND)
    event = Validated(data.key(), data.content, data.metadata.to_source(), time, event_id="")
    event_id = _event_id(envelope, event_type=event_type, message_id=message_id) or _content_id(event)
    return Validated(event.key, event.content, event.metadata, time, event_id)


def _read(model: type[Data], value: Any, *, at: str = "") -> Data:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise refusal(error, at=at) from None


def _event_id(envelope: Envelope, *, event_type: str, message_id: str | None) -> str | None:
    if envelope.id:
        return f"{envelope.source or event_type}/{envelope.id}"
    return message_id or None


def _content_id(event: Validated) -> str:
    identity = f"{event.key.tenant_id}\0{event.key.artifact_id}\0{event.content_hash}"
    return f"{TASK_VALIDATED}/sha256:{hashlib.sha256(identity.encode()).hexdigest()}"


# ---------------------------------------------------------------------------------------------------------- build


def build_event(event_type: str, data: BaseModel, *, event_id: str, at: int) -> dict[str, Any]:
    """An outgoing envelope as JSON values.

    Args:
        at: the ledger's clock, an ORD.
    """
    return {
        "specversion": "1.0",
        "id": event_id,
        "source": SOURCE,
        "type": event_type,
        "time": rfc3339(at),
        "data": data.model_dump(mode="json"),
    }


def build_completed(
    *,
    event_id: str,
    at: int,
    artifact_id: str,
    chunks: int,
    version: int,
    generation: int,
    status: Literal["indexed", "unchanged"] = "indexed",
) -> dict[str, Any]:
    """`embedding.completed`."""
    data = CompletedData(artifact_id=artifact_id, chunks=chunks, status=status, version=version, generation=generation)
    return build_event(EMBEDDING_COMPLETED, data, event_id=event_id, at=at)


def build_invalidated(
    *,
    event_id: str,
    at: int,
    artifact_ids: Sequence[str],
    tenant_id: str | None,
    cascade_id: str | None,
    chunks_removed: int,
    through: int,
) -> dict[str, Any]:
    """`embedding.invalidated`; write it in the transaction of the tombstone."""
    data = InvalidatedData(
        artifact_ids=list(artifact_ids),
        tenant_id=tenant_id,
        cascade_id=cascade_id,
        chunks_removed=chunks_removed,
        through=through,
    )
    return build_event(EMBEDDING_INVALIDATED, data, event_id=event_id, at=at)


def build_failed(
    *,
    event_id: str,
    at: int,
    artifact_id: str | None,
    tenant_id: str | None,
    failed_event_id: str | None,
    reason: str,
    attempts: int,
) -> dict[str, Any]:
    """`embedding.failed`, beside the dead letter."""
    data = FailedData(
        artifact_id=artifact_id, tenant_id=tenant_id, event_id=failed_event_id, reason=reason, attempts=attempts
    )
    return build_event(EMBEDDING_FAILED, data, event_id=event_id, at=at)


def build_quarantined(*, event_id: str, at: int, key: ArtifactKey, version: int, reason: str) -> dict[str, Any]:
    """`embedding.quarantined`."""
    data = QuarantinedData(artifact_id=key.artifact_id, tenant_id=key.tenant_id, version=version, reason=reason)
    return build_event(EMBEDDING_QUARANTINED, data, event_id=event_id, at=at)


def build_recalled(
    *, event_id: str, at: int, answer_id: str, artifact_ids: Sequence[str], cascade_id: str | None
) -> dict[str, Any]:
    """`answer.recalled`; write it in the transaction that marks the answer."""
    data = RecalledData(answer_id=answer_id, artifact_ids=list(artifact_ids), cascade_id=cascade_id)
    return build_event(ANSWER_RECALLED, data, event_id=event_id, at=at)


def build_embed_command(
    *, event_id: str, at: int, artifact_id: str, content: str, metadata: ArtifactMetadata, tenant_id: str
) -> dict[str, Any]:
    """`rag.embed`: ask the writer to index. `at` must be read off the ledger's clock: the writer trusts it."""
    own = metadata.model_dump(mode="json", exclude={"artifact_id", "tenant_id"}, exclude_defaults=True)
    return {
        "specversion": "1.0",
        "id": event_id,
        "source": SOURCE,
        "type": EMBED_COMMAND,
        "time": rfc3339(at),
        "data": {"artifact_id": artifact_id, "content": content, "tenant_id": tenant_id, "metadata": own},
    }
