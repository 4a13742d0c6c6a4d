"""What producers send in one run and what goes wrong, drawn from the seed: pure values that the oracle can judge."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from dats_common.contracts.events import build_embed_command, rfc3339
from dats_common.contracts.metadata import ArtifactMetadata
from dats_common.domain.model import DEFAULT_TENANT, ArtifactKey
from tests.faults.simulation.faults import Fault, TimedFault, draw_fault, draw_trouble

SECOND = 1_000_000
START = 1_767_268_800 * SECOND
"""The ledger's clock at virtual time 0: 2026-01-01 12:00 UTC, as an ORD."""

SENDING_S = 5.0
"""Events are sent within so many virtual seconds."""

EVENTS = (20, 30)
"""Least and most events of a run, copies not counted."""

KEYS = (
    ArtifactKey(DEFAULT_TENANT, "a0"),
    ArtifactKey(DEFAULT_TENANT, "a1"),
    ArtifactKey(DEFAULT_TENANT, "a2"),
    ArtifactKey("acme", "a2"),  # the same id in another tenant: what a wildcard taint is about
    ArtifactKey("acme", "a3"),
)
TENANTS = (DEFAULT_TENANT, "acme")
_WORDS = ("report", "tide", "harbour", "engine", "ledger", "signal")


@dataclass(frozen=True, slots=True)
class Validated:
    """QA approves content.

    Attributes:
        times_s: when it is sent, copies included; at least one.
        claimed: its time as an ORD; None: bare.
        by_timestamp: the time is the AMQP timestamp and not the envelope's.
        over_http: as the command that a replica sends, with a time of the ledger's clock.
    """

    number: int
    times_s: tuple[float, ...]
    key: ArtifactKey
    content: str
    claimed: int | None
    by_timestamp: bool = False
    over_http: bool = False

    @property
    def own_clock(self) -> bool:
        """Whether its place is read off the ledger's clock."""
        return self.over_http or self.claimed is None


@dataclass(frozen=True, slots=True)
class Tainted:
    """Cascade, or a caller of a replica, takes artifacts back. `tenant_id` None: in every tenant."""

    number: int
    times_s: tuple[float, ...]
    tenant_id: str | None
    artifact_ids: tuple[str, ...]
    claimed: int | None
    over_http: bool = False

    @property
    def name(self) -> str:
        """Its cascade id: how it is known again in what is published."""
        return f"taint-{self.number}"

    @property
    def own_clock(self) -> bool:
        """Whether its place is read off the ledger's clock."""
        return self.claimed is None

    def covers(self, key: ArtifactKey) -> bool:
        """Whether it is about this artifact."""
        return key.artifact_id in self.artifact_ids and self.tenant_id in (None, key.tenant_id)


@dataclass(frozen=True, slots=True)
class Poison:
    """What nobody can read."""

    number: int
    times_s: tuple[float, ...]
    body: bytes


Event = Validated | Tainted | Poison


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run."""

    seed: int
    skew_s: float
    batch_size: int
    sweep_interval_s: float
    events: tuple[Event, ...]
    faults: tuple[Fault, ...]
    troubles: tuple[TimedFault, ...]


def draw_scenario(seed: int) -> Scenario:
    """The run of this seed."""
    rng = random.Random(f"scenario {seed}")
    mixed = {key: rng.random() < 0.35 for key in KEYS}
    drawn: list[Event] = []
    for number in range(rng.randint(*EVENTS)):
        drawn.append(draw_event(rng, number, drawn, mixed))
    return Scenario(
        seed=seed,
        skew_s=rng.choice((0.0, 1.0, 5.0)),
        batch_size=rng.choice((1, 2, 4, 10)),
        sweep_interval_s=rng.choice((2.0, 5.0, 15.0)),
        events=tuple(drawn),
        faults=tuple(draw_fault(rng) for _ in range(rng.randint(2, 5))),
        troubles=tuple(draw_trouble(rng, within_s=SENDING_S) for _ in range(rng.randint(2, 3))),
    )


def draw_event(rng: random.Random, number: int, before: list[Event], mixed: dict[ArtifactKey, bool]) -> Event:
    """Another event; contents of earlier ones may come again.

    Args:
        mixed: artifacts whose events may come without a time or over HTTP. Their end depends on the order of arrival,
            so the oracle says less about them.
    """
    at_s = rng.uniform(0.0, SENDING_S)
    times_s = (at_s, *(at_s + rng.choice((0.0, 0.01, 1.0, 4.0)) for _ in range(rng.choice((0, 0, 0, 0, 1, 2)))))
    kind = rng.random()
    if kind < 0.02:
        return Poison(number, times_s[:1], rng.choice((b"{", b'{"data": {}}', b'{"data": {"artifact_id": 7}}')))
    key = rng.choice(KEYS)
    if kind < 0.38:
        return _draw_taint(rng, number, times_s, key)
    content = _content(rng, number)
    if rng.random() < 0.25:
        # Not of bare ones: a bare copy of content that came with a time is placed there.
        earlier = [e.content for e in before if isinstance(e, Validated) and e.key == key and e.claimed is not None]
        content = rng.choice(earlier or [content])
    way = rng.random()
    if mixed[key] and way < 0.2:
        return Validated(number, times_s, key, _content(rng, number), claimed=None)
    if mixed[key] and way < 0.4:
        now = START + round(at_s * SECOND)
        return Validated(number, times_s, key, content, claimed=now, over_http=True)
    return Validated(number, times_s, key, content, _claim(rng, at_s), by_timestamp=way > 0.9)


def _draw_taint(rng: random.Random, number: int, times_s: tuple[float, ...], key: ArtifactKey) -> Tainted:
    ids: tuple[str, ...] = (key.artifact_id,)
    if rng.random() < 0.25:
        ids = tuple(sorted({other.artifact_id for other in rng.sample(KEYS, 3)}))
    way = rng.random()
    if way < 0.25:
        return Tainted(number, times_s[:1], key.tenant_id, ids, claimed=None, over_http=True)
    tenant_id = None if rng.random() < 0.3 else key.tenant_id
    return Tainted(number, times_s, tenant_id, ids, claimed=None if way < 0.35 else _claim(rng, times_s[0]))


def _claim(rng: random.Random, at_s: float) -> int:
    """A producer's time: of the past, of just now, or of a clock that runs ahead."""
    now = START + round(at_s * SECOND)
    way = rng.random()
    if way < 0.45:
        return START - rng.randrange(1, 60) * 5 * SECOND - rng.randrange(0, 2 * SECOND)
    if way < 0.93:
        return now - rng.choice((0, 40_000, SECOND, 3 * SECOND))
    return now + rng.choice((SECOND // 2, 20 * SECOND, 3600 * SECOND))


def _content(rng: random.Random, number: int) -> str:
    """Every word names the event, so that any chunk of it tells whose it is."""
    sentences = [
        " ".join(f"{rng.choice(_WORDS)}{number}n" for _ in range(rng.randint(4, 9))) + " report."
        for _ in range(rng.randint(1, 3))
    ]
    return "\n\n".join(sentences)


# ----------------------------------------------------------------------------------------------------- on the wire


def encode(event: Event) -> tuple[bytes, int | None]:
    """The message's body and its AMQP timestamp."""
    if isinstance(event, Poison):
        return event.body, None
    message: dict[str, Any] = {"data": _data(event)}
    timestamp: int | None = None
    if event.number % 3:
        message["id"] = f"e{event.number}"
    if isinstance(event, Tainted):
        message["id"] = f"e{event.number}"  # without one a copy is another taint, which covers more
    if event.claimed is not None:
        if isinstance(event, Validated) and event.by_timestamp:
            timestamp = event.claimed
        else:
            message["time"] = rfc3339(event.claimed)
    return json.dumps(message).encode(), timestamp


def _data(event: Validated | Tainted) -> dict[str, Any]:
    if isinstance(event, Tainted):
        data: dict[str, Any] = {"artifact_ids": list(event.artifact_ids), "cascade_id": event.name}
        return data | ({} if event.tenant_id is None else {"tenant_id": event.tenant_id})
    tenant = {} if event.key.tenant_id == DEFAULT_TENANT else {"tenant_id": event.key.tenant_id}
    data = {"artifact_id": event.key.artifact_id, "content": event.content, "metadata": {"project_id": "p"}}
    return data | tenant


def command_of(event: Validated) -> dict[str, Any]:
    """The command that a replica sends for `POST /embed`."""
    assert event.claimed is not None
    return build_embed_command(
        event_id=f"emb-{event.number}",
        at=event.claimed,
        artifact_id=event.key.artifact_id,
        content=event.content,
        metadata=ArtifactMetadata(project_id="p", tags=[]),
        tenant_id=event.key.tenant_id,
    )
