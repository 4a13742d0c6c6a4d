"""One seed decides which events are sent in which order and which faults come when; the rest is the machine's.

Each artifact follows a story, so that what must be true of it in the end follows from its events alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

SECOND_US = 1_000_000
STEP_S = 1000.0
"""Between two steps of a story on the producers' clock: far beyond any skew, where a step is not meant to lie in it."""

WITHIN_SKEW_S = 20.0
SPAN_S = 20 * 86_400.0
"""The stories lie within this long on the producers' clock, all of it past: no time is ahead of the ledger's."""

NEAR = 0.35
"""Share of the steps that follow the one before within two events: a taint then meets its artifact in the writer."""

GAP_EVENTS = 30.0


class Kind(StrEnum):
    """What is sent."""

    VALIDATED = "validated"
    TAINT = "taint"
    HTTP_TAINT = "http_taint"
    POISON = "poison"


@dataclass(frozen=True, slots=True)
class Event:
    """One message or call.

    Attributes:
        version: number of the artifact's content; 0 for what has none.
        at_us: the producer's time, microseconds after the plan's origin; None: it gives none.
        copy: it repeats an event that was sent before.
    """

    event_id: str
    kind: Kind
    artifact: str
    version: int = 0
    at_us: int | None = None
    copy: bool = False


class FaultKind(StrEnum):
    """What is done to the fleet."""

    KILL_WRITER = "kill -9 writer"
    KILL_REPLICA = "kill -9 replica"
    PAUSE_WRITER = "SIGSTOP writer"
    PAUSE_REPLICA = "SIGSTOP replica"
    KILL_BROKER = "kill -9 broker"
    CLOSE_CONNECTIONS = "close connections"
    RESTART_POSTGRES = "restart PostgreSQL"
    KILL_ENGINE = "kill -9 index"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        at: share of the events that have been sent when it comes.
        pick: in [0, 1), chooses among the processes that it may hit.
        lasts_s: until what was paused goes on, or what was killed is started again.
    """

    at: float
    kind: FaultKind
    pick: float
    lasts_s: float


@dataclass(frozen=True, slots=True)
class Size:
    """How much of what. `poison` comes besides the events."""

    events: int
    faults: Mapping[FaultKind, int]
    copies: float = 0.20
    taints: float = 0.30
    taint_first: float = 0.055
    poison: int = 5


@dataclass(frozen=True, slots=True)
class Plan:
    """What one seed decides."""

    seed: int
    events: tuple[Event, ...]
    faults: tuple[Fault, ...]

    @property
    def taints_first(self) -> int:
        """Artifacts whose taint is sent before the version that it covers."""
        tainted: dict[str, int] = {}
        found = set()
        for event in self.events:
            if event.kind is Kind.TAINT and event.at_us is not None:
                tainted.setdefault(event.artifact, event.at_us)
            elif (
                event.kind is Kind.VALIDATED and not event.copy and (event.at_us or 0) < tainted.get(event.artifact, 0)
            ):
                found.add(event.artifact)
        return len(found)


def build_plan(seed: int, size: Size) -> Plan:
    """The same plan for the same seed and size."""
    rng = random.Random(seed)
    return Plan(seed, tuple(_events(rng, size)), tuple(_faults(rng, size)))


# ---------------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class _Story:
    """What happens to one artifact, in the order in which it is sent: versions (`v1`), taints (`t`), calls (`h`).

    Attributes:
        after_s: each step's time after the story's begin on the producers' clock; None: it gives none.
    """

    steps: tuple[str, ...]
    after_s: tuple[float | None, ...]
    may_turn: bool = False
    """The order may come out otherwise: the outcome is the same."""


_LATE = STEP_S * 2
TAINT_FIRST = _Story(("t", "v1"), (STEP_S, 0.0))
TAINTED = (
    (30, _Story(("v1", "t"), (0.0, STEP_S), may_turn=True)),
    (20, _Story(("v1", "h"), (0.0, None))),
    (15, _Story(("v1", "t", "v2"), (0.0, STEP_S, _LATE), may_turn=True)),
    (10, _Story(("t", "v1", "v2"), (STEP_S, 0.0, _LATE))),
    (10, _Story(("v1", "t", "v2"), (0.0, STEP_S, STEP_S + WITHIN_SKEW_S), may_turn=True)),
    (8, _Story(("v1", "h"), (None, None))),
    (7, _Story(("v1", "t"), (None, None))),
)
UNTAINTED = (
    (45, _Story(("v1",), (0.0,))),
    (40, _Story(("v1", "v2", "v3"), (0.0, STEP_S, _LATE), may_turn=True)),
    (15, _Story(("v1",), (None,))),
)
_KINDS = {"t": Kind.TAINT, "h": Kind.HTTP_TAINT}


def _events(rng: random.Random, size: Size) -> Iterator[Event]:
    first = round(size.events * size.taint_first)
    copies = round(size.events * size.copies)
    stories = [TAINT_FIRST] * first
    stories += _pick(rng, TAINTED, size=_taints, enough=round(size.events * size.taints) - first)
    stories += _pick(rng, UNTAINTED, size=_steps, enough=size.events - copies - sum(map(_steps, stories)))
    placed: list[tuple[float, Event]] = []
    for number, story in enumerate(stories):
        placed += _told(rng, story, artifact=f"a{number}", of=size.events)
    repeatable = [item for item in placed if item[1].kind is not Kind.HTTP_TAINT]
    for where, event in rng.choices(repeatable, k=copies):
        placed.append((where + rng.expovariate(1 / (2 * GAP_EVENTS)), replace(event, copy=True)))
    for number in range(size.poison):
        placed.append((rng.uniform(0, size.events), Event(f"poison-{number}", Kind.POISON, f"poison-{number}")))
    for _, event in sorted(placed, key=lambda item: item[0]):
        yield event


def _taints(story: _Story) -> int:
    return sum(not step.startswith("v") for step in story.steps)


def _steps(story: _Story) -> int:
    return len(story.steps)


def _pick(
    rng: random.Random, choices: tuple[tuple[int, _Story], ...], *, size: Callable[[_Story], int], enough: int
) -> list[_Story]:
    told: list[_Story] = []
    weights, stories = [weight for weight, _ in choices], [story for _, story in choices]
    while enough > 0:
        told += rng.choices(stories, weights)
        enough -= size(told[-1])
    return told


def _told(rng: random.Random, story: _Story, *, artifact: str, of: int) -> list[tuple[float, Event]]:
    """The story's events, each with its place in the order of sending, counted in events."""
    where = rng.uniform(0, of)
    begin_s = rng.uniform(0, SPAN_S)
    steps = list(zip(story.steps, story.after_s, strict=True))
    if story.may_turn and rng.random() < 0.25:
        rng.shuffle(steps)
    events = []
    for step, after_s in steps:
        at_us = None if after_s is None else round((begin_s + after_s) * SECOND_US)
        version = int(step[1:]) if step.startswith("v") else 0
        events.append((where, Event(f"{artifact}-{step}", _KINDS.get(step, Kind.VALIDATED), artifact, version, at_us)))
        where += rng.uniform(0.1, 2) if rng.random() < NEAR else rng.expovariate(1 / GAP_EVENTS)
    return events


# ---------------------------------------------------------------------------------------------------------- faults


LASTS_S: Mapping[FaultKind, tuple[float, float]] = {
    FaultKind.KILL_WRITER: (0.0, 1.0),
    FaultKind.KILL_REPLICA: (0.0, 1.0),
    FaultKind.PAUSE_WRITER: (0.5, 16.0),  # Heartbeats of 4 s: the long ones are replaced meanwhile and come back.
    FaultKind.PAUSE_REPLICA: (0.5, 8.0),
    FaultKind.KILL_BROKER: (0.0, 3.0),
    FaultKind.CLOSE_CONNECTIONS: (0.0, 0.0),
    FaultKind.RESTART_POSTGRES: (0.0, 2.0),
    FaultKind.KILL_ENGINE: (0.0, 3.0),
}


def _faults(rng: random.Random, size: Size) -> Iterator[Fault]:
    kinds = [kind for kind, count in size.faults.items() for _ in range(count)]
    rng.shuffle(kinds)
    for number, kind in enumerate(kinds):
        at = 0.05 + 0.9 * (number + rng.random()) / len(kinds)
        yield Fault(at, kind, rng.random(), rng.uniform(*LASTS_S[kind]))
