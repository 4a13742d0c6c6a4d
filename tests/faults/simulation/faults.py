"""What can go wrong, and at which named points. The tables are the whole list."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Kind(StrEnum):
    """What happens to the process, or to the call, that has reached a point."""

    CRASH = "crash"  # kill -9: nothing of the process runs again, its connections are closed
    FREEZE = "freeze"  # SIGSTOP: the broker gives its messages to another; it wakes up later and goes on
    STALL = "stall"  # this one task hangs while the process' other tasks live on
    DISCONNECT = "disconnect"  # the broker closes the process' connections
    REFUSED = "refused"  # the call fails and has done nothing
    UNCONFIRMED = "unconfirmed"  # the call fails although it was done
    PARTIAL = "partial"  # the call fails and was done in part
    LATE = "late"  # the call fails, and is applied long after


_PROCESS = (Kind.CRASH, Kind.FREEZE, Kind.STALL)
_LEDGER_CALLS = ("activate", "admit", "write_chunks", "flip", "abandon", "taint", "relay", "kept", "forget")


def _points() -> dict[str, tuple[Kind, ...]]:
    points: dict[str, tuple[Kind, ...]] = {}
    for call in _LEDGER_CALLS:
        points[f"{call}.before"] = (*_PROCESS, Kind.REFUSED)
        points[f"{call}.after"] = (*_PROCESS, Kind.UNCONFIRMED)
    points["store.before"] = (*_PROCESS, Kind.REFUSED, Kind.PARTIAL, Kind.LATE)
    points["store.after"] = (*_PROCESS, Kind.UNCONFIRMED)
    points["generations.before"] = (*_PROCESS, Kind.REFUSED)
    points["generations.after"] = (*_PROCESS, Kind.UNCONFIRMED)
    points["remove.before"] = (*_PROCESS, Kind.REFUSED, Kind.LATE)
    points["remove.after"] = (*_PROCESS, Kind.UNCONFIRMED)
    points["publish.before"] = (*_PROCESS, Kind.REFUSED)
    points["publish.after"] = (*_PROCESS, Kind.UNCONFIRMED)
    points["ack.before"] = (*_PROCESS, Kind.DISCONNECT)
    points["ack.after"] = (*_PROCESS, Kind.DISCONNECT)
    points["statement"] = (*_PROCESS, Kind.REFUSED)
    points["commit.after"] = (*_PROCESS, Kind.UNCONFIRMED)
    return points


POINTS: Mapping[str, tuple[Kind, ...]] = MappingProxyType(_points())

# Where the promise is decided: between storing and the flip, around the commits, around the relay and the sweep.
_DANGEROUS = (
    "store.before", "store.after", "flip.before", "flip.after", "taint.after", "publish.before", "publish.after",
    "generations.after", "kept.after", "remove.before", "ack.before", "commit.after", "admit.after",
)  # fmt: skip


class Trouble(StrEnum):
    """What happens at a certain time, whatever is under way."""

    CRASH = "crash"
    FREEZE = "freeze"
    DRAIN = "drain"  # SIGTERM: the writer finishes what is in hand and comes back
    DISCONNECT = "disconnect"
    SHUFFLE = "shuffle"  # the broker hands out what waits in another order
    DUPLICATE = "duplicate"  # the broker hands out the next messages twice
    INDEX_AWAY = "index away"
    BROKER_AWAY = "broker away"
    LEDGER_AWAY = "ledger away"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault at a point.

    Attributes:
        visit: at which visit of the point, counted over all writers and replicas from 1.
        notice_s: after how long the broker gives up a frozen or stalled process' connections.
        lasting_s: for how long: until the restart, until it wakes up, until a late call is applied.
    """

    point: str
    visit: int
    kind: Kind
    notice_s: float
    lasting_s: float


@dataclass(frozen=True, slots=True)
class TimedFault:
    """A fault at a time."""

    at_s: float
    trouble: Trouble
    process: str
    lasting_s: float


def draw_fault(rng: random.Random) -> Fault:
    """Any fault of the tables; the dangerous points more often."""
    point = rng.choice(_DANGEROUS if rng.random() < 0.6 else sorted(POINTS))
    notice_s = rng.choice((0.05, 0.3, 1.0))
    return Fault(
        point=point,
        visit=rng.randint(1, 150) if point == "statement" else rng.randint(1, 5),
        kind=rng.choice(POINTS[point]),
        notice_s=notice_s,
        lasting_s=notice_s + rng.choice((0.1, 0.5, 2.0, 5.0)),
    )


def draw_trouble(rng: random.Random, *, within_s: float) -> TimedFault:
    """Any trouble, at any time."""
    return TimedFault(
        at_s=rng.uniform(0.0, within_s),
        trouble=rng.choice(tuple(Trouble)),
        process=rng.choice(("writer-1", "writer-1", "writer-2", "replica")),
        lasting_s=rng.choice((0.2, 1.0, 3.0)),
    )
