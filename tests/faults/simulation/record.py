"""What was seen in one run, and the invariants that are looked at while it goes on.

It looks with eyes of its own: a plain SQLite connection and the twins' insides, no production code.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dats_common.contracts.topology import (
    COMMANDS_QUEUE,
    EMBEDDING_COMPLETED,
    EMBEDDING_FAILED,
    EMBEDDING_INVALIDATED,
    TAINTS_QUEUE,
    VALIDATED_QUEUE,
)
from dats_common.domain.model import ArtifactKey, ChunkRef
from dats_common.records import Admission
from tests.faults.simulation.scenario import SECOND, Event, Tainted, Validated

if TYPE_CHECKING:
    from tests.faults.simulation.world import World


@dataclass(frozen=True, slots=True)
class Shown:
    """One chunk of an answer."""

    ref: ChunkRef
    version: int
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A question's answer and the moments when it was asked and given; moments only order what was seen."""

    asked: int
    given: int
    shown: tuple[Shown, ...]


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A taint that the broker has confirmed or a replica acknowledged: from this moment on it must hold."""

    moment: int
    taint: Tainted
    through: int
    through_own: int

    def bound(self, *, own_clock: bool) -> int:
        """The last version that it covers."""
        return self.through_own if own_clock else self.through


@dataclass(frozen=True, slots=True)
class _Place:
    key: ArtifactKey
    ord: int
    own_clock: bool


class Record:
    """History and invariants. What is wrong is in `violations`, first things first."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._eyes = sqlite3.connect(world.database, timeout=0.0, isolation_level=None)
        self._moment = 0
        self._taints = {e.number: e for e in world.scenario.events if isinstance(e, Tainted)}
        self._last: dict[tuple[str, str], tuple[int, int, int]] = {}
        self._removed: set[int] = set()
        self._places: dict[int, _Place] = {}
        self.sent_events: list[Event] = []
        self._sent_at: dict[int, int] = {}
        self.sent_clock: dict[int, int] = {}
        self._live_at: dict[int, dict[ArtifactKey, int]] = {}
        self._taints_committed: list[tuple[int, Tainted]] = []
        self.answers: list[Answer] = []
        self.confirmed: list[Confirmed] = []
        self.completed: set[tuple[int, int]] = set()
        self.invalidated: set[str] = set()
        self.failures = 0
        self.surprises: list[str] = []
        self.violations: list[str] = []
        self.unguarded_reads = 0
        self.unguarded_stale = 0
        self.zombie_writes = 0

    def close(self) -> None:
        """The eyes are files too."""
        self._eyes.close()

    def rows(self, statement: str, *parameters: Any) -> list[Any]:
        """What the ledger holds, committed."""
        return self._eyes.execute(statement, parameters).fetchall()

    def violated(self, rule: str, what: str) -> None:
        """A rule was broken."""
        line = f"{rule}: {what}"
        if line not in self.violations:
            self.violations.append(line)
            self._world.trace("checker", line)

    def surprise(self, process: str, error: Exception) -> None:
        """A writer ended by an error of its own."""
        self.surprises.append(f"{process}: {type(error).__name__}: {error}")
        self._world.trace(process, f"ended by {type(error).__name__}")

    # --------------------------------------------------------------------------------------------------- what happens

    def _next(self) -> int:
        self._moment += 1
        return self._moment

    def sent(self, event: Event) -> None:
        """A producer has sent it, maybe again."""
        if event.number not in self._sent_at:
            self.sent_events.append(event)
            self._sent_at[event.number] = self._next()
            self.sent_clock[event.number] = self._world.clock()

    def first_sent(self, event: Event) -> int:
        """The moment when it was sent first."""
        return self._sent_at[event.number]

    def artifacts(self) -> int:
        """How many artifacts were spoken of."""
        keys = {e.key.artifact_id for e in self.sent_events if isinstance(e, Validated)}
        return len(keys.union(*(e.artifact_ids for e in self.sent_events if isinstance(e, Tainted))))

    def taint_drawn(self, taint: Tainted) -> None:
        """A taint that is not of the scenario (the stateful tests draw as they go)."""
        self._taints[taint.number] = taint

    def tainted(self, name: str) -> None:
        """T1 was committed."""
        self._taints_committed.append((self._next(), self._taint(name)))

    def _taint(self, name: str) -> Tainted:
        return self._taints[int(name.removeprefix("taint-"))]

    def admitted(self, admissions: Sequence[Admission]) -> None:
        """V1 was committed."""
        for item in admissions:
            if item.generation is not None:
                place = _Place(item.event.key, item.place.ord, item.place.own_clock)
                if self._places.setdefault(item.generation.number, place) != place:
                    self.violated("I4", f"generation {item.generation.number} was allocated twice")

    def removing(self, key: ArtifactKey, generations: Sequence[int]) -> None:
        """A delete of these generations was sent."""
        self._removed |= set(generations)

    def stored(self, generations: set[int]) -> None:
        """Points have reached the index: a zombie's, if what they belong to was taken back before."""
        self.zombie_writes += sum(self._is_tainted(generation) for generation in generations)

    def published(self, routing_key: str, data: Mapping[str, Any]) -> None:
        """The broker has an event."""
        if routing_key == EMBEDDING_COMPLETED:
            self.completed.add((data["version"], data["generation"]))
        elif routing_key == EMBEDDING_FAILED:
            self.failures += 1
        elif routing_key == EMBEDDING_INVALIDATED:
            self.invalidated.add(data["cascade_id"])
            self._confirm(self._taint(data["cascade_id"]), data["through"])
        self.look()

    def acknowledged(self, taint: Tainted, *, through: int) -> None:
        """A replica has answered its caller."""
        self._confirm(taint, through)
        self.look()

    def _confirm(self, taint: Tainted, through: int) -> None:
        skew = round(self._world.scenario.skew_s * SECOND)
        self.confirmed.append(Confirmed(self._next(), taint, through, through - skew if taint.own_clock else through))
        for artifact_id in taint.artifact_ids:
            statement = "SELECT max(tainted_through) FROM rag_wildcards WHERE artifact_id = ?"
            parameters: tuple[str, ...] = (artifact_id,)
            if taint.tenant_id is not None:
                statement = "SELECT tainted_through FROM rag_artifacts WHERE artifact_id = ? AND tenant_id = ?"
                parameters = (artifact_id, taint.tenant_id)
            found = self.rows(statement, *parameters)
            if not found or found[0][0] is None or found[0][0] < through:
                self.violated("I2", f"{taint.name} is known to the world, its tombstone for {artifact_id} is not there")

    # ---------------------------------------------------------------------------------------------------- who looks

    def unguarded_read(self, tenant_id: str) -> int:
        """A read of the index alone begins here; so does the guarded one. Returns the moment."""
        proposed = {gen for key, gen in self._world.index.all_generations() if key.tenant_id == tenant_id}
        self.unguarded_reads += 1
        self.unguarded_stale += any(self._is_tainted(generation) for generation in proposed)
        moment = self._next()
        self._live_at[moment] = self._live_of(tenant_id)
        return moment

    def _was_tainted_since(self, moment: int, key: ArtifactKey) -> bool:
        return any(at > moment and taint.covers(key) for at, taint in self._taints_committed)

    def _live_of(self, tenant_id: str) -> dict[ArtifactKey, int]:
        rows = self.rows(
            "SELECT artifact_id, live_generation FROM rag_artifacts WHERE tenant_id = ? AND live_generation >= 0",
            tenant_id,
        )
        return {ArtifactKey(tenant_id, artifact_id): generation for artifact_id, generation in rows}

    def _is_tainted(self, generation: int) -> bool:
        place = self._places.get(generation)
        return place is not None and any(
            item.taint.covers(place.key) and place.ord <= item.bound(own_clock=place.own_clock)
            for item in self.confirmed
        )

    def answered(self, asked: int, tenant_id: str, shown: Sequence[Shown]) -> None:
        """The guarded answer to a question: never twice the same, and of what is live all the while old or new."""
        self.answers.append(Answer(asked, self._next(), tuple(shown)))
        sources = [item.ref.source_id for item in shown]
        if len(sources) != len(set(sources)):
            self.violated("duplicate", f"a chunk is shown twice: {sorted(sources)}")
        if any(item.ref.key.tenant_id != tenant_id for item in shown):
            self.violated("access", "another tenant's artifact is shown")
        was, is_now = self._live_at.pop(asked), self._live_of(tenant_id)
        for key in was.keys() & is_now.keys() - {item.ref.key for item in shown}:
            if was[key] == is_now[key] or not self._was_tainted_since(asked, key):
                self.violated("neither", f"{key.artifact_id}, generation {was[key]} then {is_now[key]}, was not shown")
        self.look()

    def look(self) -> None:
        """The invariants that hold at every moment."""
        index = self._world.index
        for tenant, artifact, version, own, live, through, through_own in self.rows(
            "SELECT tenant_id, artifact_id, version, version_own_clock, live_generation, tainted_through,"
            " tainted_through_own FROM rag_artifacts"
        ):
            name = f"{tenant}/{artifact}"
            now = (version, through, through_own)
            before = self._last.get((tenant, artifact), now)
            if any(new < old for new, old in zip(now, before, strict=True)):
                self.violated("I7", f"{name} went back from {before} to {now}")
            self._last[tenant, artifact] = now
            if live is None:
                continue
            if version <= (through_own if own else through):
                self.violated("I3", f"{name} is live at {version}, tainted through {through}")
            if live in self._removed:
                self.violated("I6", f"generation {live} of {name} is live, and a delete that names it was sent")
            ((chunks,),) = self.rows("SELECT chunk_count FROM rag_documents WHERE generation = ?", live)
            if index.chunk_numbers(live) != set(range(chunks)):
                self.violated("I5", f"generation {live} of {name} is live without all of its {chunks} points")
        for (generation,) in self.rows("SELECT generation FROM rag_pending"):
            if generation in self._removed:
                self.violated("I6", f"generation {generation} is pending, and a delete that names it was sent")

    # ------------------------------------------------------------------------------------------------------- at rest

    def is_quiet(self) -> bool:
        """Nothing waits in a queue or for the relay."""
        return not self.unrest()

    def unrest(self) -> str:
        """What still waits."""
        bus = self._world.bus
        waiting = [name for name in (VALIDATED_QUEUE, COMMANDS_QUEUE, TAINTS_QUEUE) if bus.queue(name)]
        ((unsent,),) = self.rows("SELECT count(*) FROM rag_outbox WHERE sent_at IS NULL")
        return ", ".join([*waiting, *(["outbox"] if unsent else [])])
