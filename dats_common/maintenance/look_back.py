"""After a restore: the taints that the ledger has forgotten, applied again from what the broker still has.

The promise hangs on `embedding.invalidated`, and the broker keeps our last 10,000 events in their order. So what it has
from before the backup on is all that the ledger can have forgotten.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any

from dats_common.contracts.api import CANARY_PROJECT
from dats_common.contracts.events import SOURCE, parse_time
from dats_common.contracts.topology import EMBEDDING_COMPLETED, EMBEDDING_INVALIDATED
from dats_common.domain.model import EventTime, Taint
from dats_common.domain.taint import MICROSECONDS
from dats_common.errors import InvalidInput
from dats_common.ports import LookBack, OperatorsLedger

_REASON = "replayed: the ledger had forgotten it"


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a look back came to.

    Attributes:
        taints: how many were applied again.
        known: how many the ledger knew.
        forgotten: artifacts that became searchable and that the ledger knows nothing of; QA has their content.
        reaches_back_to: time of the oldest event that the broker has, an ORD.
        is_complete: the broker surely has every taint that the ledger can have forgotten.
    """

    taints: int
    known: int
    forgotten: tuple[str, ...]
    reaches_back_to: int | None
    is_complete: bool


async def replay_taints(
    *,
    ledger: OperatorsLedger,
    bus: LookBack,
    skew_s: float,
    actor: str,
    report: Callable[[int, int], Awaitable[None]] | None = None,
) -> Replayed:
    """Apply each invalidation that the ledger does not know. Repeating it, or going on after a crash, is harmless.

    A replayed taint covers what it covered, and of versions by the ledger's clock up to the skew more.

    Args:
        report: told how many taints are done, of how many.

    Raises: BrokerUnavailable; LedgerUnavailable: some may be applied.
    """
    begins_at = await ledger.first_announced()
    events = [event for event in map(_ours, await bus.published()) if event is not None]
    known = set(await ledger.announced([event["id"] for event in events]))
    taints = [_taint(event, skew_s=skew_s, actor=actor) for event in _of(EMBEDDING_INVALIDATED, events, known=known)]
    replayed = await ledger.announced([_announced_as(taint) for taint in taints])
    missed = [taint for taint in taints if _announced_as(taint) not in replayed]
    for done, taint in enumerate(missed, start=1):
        await ledger.taint(taint, skew_s=skew_s)
        if report is not None:
            await report(done, len(missed))
    times = [parse_time(event["time"]) for event in events]
    return Replayed(
        taints=len(missed),
        known=sum(event["type"] == EMBEDDING_INVALIDATED for event in events) - len(missed),
        forgotten=tuple(sorted(_indexed(_of(EMBEDDING_COMPLETED, events, known=known)))),
        reaches_back_to=min(times, default=None),
        is_complete=_is_complete(
            [event["id"] in known for event, at in zip(events, times, strict=True) if begins_at and at >= begins_at]
        ),
    )


def _ours(body: bytes) -> dict[str, Any] | None:
    """An event of ours. Others may publish under our routing keys: what they say must not keep a taint from coming."""
    try:
        event = json.loads(body)
        if event["source"] != SOURCE:
            return None
        parse_time(event["time"])
        if event["type"] == EMBEDDING_INVALIDATED:
            _taint(event, skew_s=0.0, actor="")
        elif event["type"] == EMBEDDING_COMPLETED:
            event["data"]["artifact_id"]
    except (ValueError, TypeError, KeyError, InvalidInput):
        return None
    return event if isinstance(event["id"], str) else None


def _is_complete(known: Sequence[bool]) -> bool:
    """Whether an event that the ledger knows comes before the first that it has forgotten.

    The broker drops its oldest events first, so then it has dropped none that are forgotten.

    Args:
        known: for each event, in their order, from the time on from which the ledger has kept all that it knew.
    """
    return bool(known) and known[0]


def _of(event_type: str, events: Sequence[dict[str, Any]], *, known: Set[str]) -> list[dict[str, Any]]:
    return [event for event in events if event["type"] == event_type and event["id"] not in known]


def _indexed(completed: Sequence[dict[str, Any]]) -> set[str]:
    """Artifacts that QA has; canaries are nobody's."""
    ids = {event["data"]["artifact_id"] for event in completed}
    return {each for each in ids if not each.startswith(f"{CANARY_PROJECT}/")}


def _announced_as(taint: Taint) -> str:
    return f"invalidated:{taint.identity}"


def _taint(event: dict[str, Any], *, skew_s: float, actor: str) -> Taint:
    data = event["data"]
    return Taint(
        tenant_id=data.get("tenant_id"),  # an event of release 0.1 names none: then it covers the ids in every one
        artifact_ids=tuple(data["artifact_ids"]),
        time=EventTime(claimed=data["through"] - round(skew_s * MICROSECONDS)),
        cascade_id=data["cascade_id"],
        reason=_REASON,
        event_id=event["id"],
        actor=actor,
    )
