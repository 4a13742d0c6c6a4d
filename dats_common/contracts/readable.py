"""What can be read of a message that breaks the contract.

An event that shows something must be right as a whole. One that makes something vanish counts as far as it can be read:
a taint that was refused for a flaw beside its ids would leave them in sight, and to invalidate too much is safe.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from dats_common.contracts.events import Envelope, TaintedData, parse_time, plausible
from dats_common.contracts.fields import ArtifactId, explain, unique
from dats_common.contracts.strict_json import parse_object, read_object
from dats_common.contracts.topology import ARTIFACT_TAINTED
from dats_common.domain.model import DEFAULT_TENANT, EventTime, Taint
from dats_common.errors import InvalidInput

Model = TypeVar("Model", bound=BaseModel)

_SHOWN_FLAWS = 3


def parse_tainted(
    body: bytes, *, event_type: str = ARTIFACT_TAINTED, message_id: str | None = None, timestamp_us: int | None = None
) -> tuple[Taint, list[str]]:
    """The domain's taint in an `artifact.tainted` message, and what of the message could not be used.

    Each flaw reads `data.artifact_ids[3]: reason` and quotes nothing. What is unusable counts as absent: without its
    tenant a taint covers every tenant, without its time it stands where it is first received. The envelope's own type
    is not compared: what came on the taints' queue is a taint.

    Raises: InvalidInput: no id can be read.
    """
    message, flaws = _object(body)
    data = message.get("data")
    if not isinstance(data, dict):
        raise InvalidInput(summary([*flaws, "data: an object is needed"]))
    envelope, broken = _sound(Envelope, {**message, "data": {}})
    details, broken_details = _sound(TaintedData, {**data, "artifact_id": None, "artifact_ids": None}, at="data")
    ids, bad_ids = _usable_ids(data)
    flaws += [f"{field}: {why}" for field, why in (broken | broken_details | bad_ids).items()]
    if not ids:
        raise InvalidInput(summary(flaws or ["data: artifact_id or artifact_ids is needed"]))
    time = EventTime()
    if "time" not in broken:
        try:
            time = _claimed(envelope, timestamp_us)
        except InvalidInput as error:
            flaws.append(str(error))
    if len(details.tenants()) > 1:
        flaws.append("data: tenant_id and metadata.tenant_id differ")
    taint = Taint(
        tenant_id=_tenant(details, broken_details),
        artifact_ids=tuple(ids),
        time=time,
        cascade_id=details.cascade_id,
        reason=details.reason,
        event_id=_event_id(envelope, broken, event_type=event_type, message_id=message_id),
    )
    return taint, flaws


@dataclass(frozen=True, slots=True)
class Names:
    """What tells a producer which of its messages this was; None for what cannot be read.

    Attributes:
        artifact_id: None also where several are named.
        tenant_id: None also for a taint of every tenant.
        event_id: the envelope's id as it was sent, else the AMQP message id.
    """

    artifact_id: str | None = None
    tenant_id: str | None = None
    event_id: str | None = None


def names_in(body: bytes, *, event_type: str, message_id: str | None) -> Names:
    """The names in a message, whether or not it keeps the contract otherwise; each keeps its own rules."""
    try:
        message, _ = _object(body)
    except InvalidInput:
        message = {}
    sent = [_sound(Envelope, {"id": given, "data": {}})[0].id for given in (message.get("id"), message_id)]
    event_id = sent[0] or sent[1]
    data = message.get("data")
    if not isinstance(data, dict):
        return Names(event_id=event_id)
    details, broken = _sound(TaintedData, {name: data.get(name) for name in ("tenant_id", "metadata")}, at="data")
    tenant_id = _tenant(details, broken)
    if event_type != ARTIFACT_TAINTED and not details.tenants() and not broken:
        tenant_id = DEFAULT_TENANT
    ids, _ = _usable_ids(data)
    return Names(ids[0] if len(ids) == 1 else None, tenant_id, event_id)


def sent_at(body: bytes, *, timestamp_us: int | None) -> int | None:
    """When a message was sent (ORD), for whoever asks how long it has waited; None: it cannot be read.

    The AMQP timestamp comes first: it is of this very sending, and the message's own time may be of an earlier one.
    """
    if timestamp_us is not None:
        return timestamp_us
    try:
        message, _ = _object(body)
        return _claimed(_sound(Envelope, {"time": message.get("time"), "data": {}})[0], None).claimed
    except InvalidInput:
        return None


def summary(flaws: Sequence[str]) -> str:
    """The first few flaws, as one text for `x-reason`."""
    more = [f"and {len(flaws) - _SHOWN_FLAWS} more"] if len(flaws) > _SHOWN_FLAWS else []
    return "; ".join([*flaws[:_SHOWN_FLAWS], *more])


def _object(body: bytes) -> tuple[dict[str, Any], list[str]]:
    try:
        return parse_object(body), []
    except InvalidInput as error:
        return read_object(body), [str(error)]


def _sound(model: type[Model], given: Mapping[str, Any], *, at: str = "") -> tuple[Model, dict[str, str]]:
    """The model of `given` without the optional fields that break it, and what is wrong with those by their paths."""
    try:
        return model.model_validate(given), {}
    except ValidationError as error:
        found = error.errors(include_input=False)
        broken = {each["loc"][0] for each in found}
        sound = model.model_validate({name: value for name, value in given.items() if name not in broken})
        return sound, dict(explain([{**each, "loc": (*((at,) if at else ()), *each["loc"])} for each in found]))


def _tenant(details: TaintedData, broken: Collection[str]) -> str | None:
    """The one that is named for certain: none that another, unreadable or different one contradicts."""
    tenants = details.tenants()
    is_certain = len(tenants) == 1 and not any(field.endswith("tenant_id") for field in broken)
    return next(iter(tenants)) if is_certain else None


def _usable_ids(data: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    usable: list[str] = []
    flaws: dict[str, str] = {}
    for field, kind in (("artifact_id", str), ("artifact_ids", list)):
        value = data.get(field)
        if value is None:
            continue
        if not isinstance(value, kind):
            flaws[f"data.{field}"] = "a list is needed" if kind is list else "a string is needed"
        if isinstance(value, str | list):  # the wrong one of the two still says which artifacts are meant
            found, bad = _usable(value if isinstance(value, list) else [value])
            usable += found
            flaws |= {f"data.{field}[{at}]" if isinstance(value, list) else f"data.{field}": why for at, why in bad}
    return unique(usable), flaws


def _usable(items: list[Any]) -> tuple[list[str], list[tuple[int, str]]]:
    try:
        return _artifact_ids().validate_python(items), []
    except ValidationError as error:
        found = error.errors(include_input=False)
        bad = [(int(each["loc"][0]), why) for each, (_, why) in zip(found, explain(found), strict=True)]
        positions = {position for position, _ in bad}
        return [item for position, item in enumerate(items) if position not in positions], bad


@functools.cache
def _artifact_ids() -> TypeAdapter[list[str]]:
    return TypeAdapter(list[ArtifactId], config=ConfigDict(strict=True))


def _claimed(envelope: Envelope, timestamp_us: int | None) -> EventTime:
    if envelope.time is not None:
        return EventTime(claimed=parse_time(envelope.time))
    if timestamp_us is not None:
        return EventTime(claimed=plausible(timestamp_us, field="AMQP timestamp"))
    return EventTime()


def _event_id(envelope: Envelope, broken: Collection[str], *, event_type: str, message_id: str | None) -> str | None:
    # An id without its source could be another producer's: this taint would pass for a copy and keep an earlier place.
    if envelope.id and "source" not in broken:
        return f"{envelope.source or event_type}/{envelope.id}"
    return message_id or None
