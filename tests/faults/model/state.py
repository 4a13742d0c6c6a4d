"""What the model knows: scenarios (which messages, how many faults), rules (which steps are left out), frozen states.

Everything is a tuple of small values, so that a state is its own key in the set of what was seen. Generations are
numbered as the ledger numbers them: in the order of their V1. ORDs are small integers; the replay multiplies them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Literal, NamedTuple

from dats_common.domain.model import NEVER, ArtifactKey
from dats_common.domain.taint import Tombstone

# ---------------------------------------------------------------------------------------------------------- scenario


@dataclass(frozen=True)
class Approved:
    """A `task.validated` event (`own_clock`: a `rag.embed` command). `claimed` None is a bare message."""

    key: ArtifactKey
    content: str
    claimed: int | None
    own_clock: bool = False


@dataclass(frozen=True)
class Tainted:
    """An `artifact.tainted` event with an identity. `tenant_id` None covers every tenant, `claimed` None is bare."""

    artifact_ids: tuple[str, ...]
    claimed: int | None
    tenant_id: str | None = "t"


@dataclass(frozen=True)
class Scenario:
    """Messages that wait in the queues at the start (delivered in any order), and how much may go wrong.

    Attributes:
        approved: validated events.
        taints: taint events.
        copies: positions in `approved` of events that are delivered once more.
        clock: the ledger's clock at the start; it moves on whenever it places an event.
        faults: how many crashes, hangs and lost answers, in total.
        takeovers: how often a writer may take over although the other one believes to be active.
        queries: whether a reader asks (its steps Q1 to Q3 come at any time after something was invalidated).
        wildcard_race: the taint without tenant reads which rows there are some time before it commits (PostgreSQL).
        fine_relay: claim, publish and mark are steps of their own.
        fine_sweep: reading the index and reading what to keep are steps of their own.
    """

    name: str
    approved: tuple[Approved, ...]
    taints: tuple[Tainted, ...]
    copies: tuple[int, ...] = ()
    clock: int = 1000
    skew: int = 0
    faults: int = 1
    takeovers: int = 0
    queries: bool = True
    wildcard_race: bool = False
    fine_relay: bool = False
    fine_sweep: bool = False

    @cached_property
    def keys(self) -> tuple[ArtifactKey, ...]:
        """All artifacts, sorted; states name them by position."""
        return tuple(sorted({event.key for event in self.approved}))

    @cached_property
    def key_of(self) -> tuple[int, ...]:
        """Position of its artifact, for each validated event."""
        return tuple(self.keys.index(event.key) for event in self.approved)

    @cached_property
    def messages(self) -> tuple[int, ...]:
        """The validated queue: positions in `approved`."""
        return (*range(len(self.approved)), *self.copies)

    @cached_property
    def covers(self) -> tuple[frozenset[int], ...]:
        """Positions of the artifacts that each taint names."""
        return tuple(
            frozenset(
                position
                for position, key in enumerate(self.keys)
                if key.artifact_id in taint.artifact_ids and taint.tenant_id in (None, key.tenant_id)
            )
            for taint in self.taints
        )

    @cached_property
    def keeps_receipts(self) -> bool:
        """Whether first receipts matter: only for events that the ledger's clock places."""
        return any(event.claimed is None or event.claimed > self.clock for event in self.approved)

    @cached_property
    def is_ordered_by_producers(self) -> bool:
        """Whether the visible outcome is a function of the set of events: foreign times, no two alike."""
        times = [event.claimed for event in self.approved]
        return (
            None not in times
            and not self.keeps_receipts
            and all(taint.claimed is not None and taint.claimed <= self.clock for taint in self.taints)
            and len({(event.key, event.claimed) for event in self.approved}) == len(times)
            and not any(event.own_clock for event in self.approved)
        )


# ------------------------------------------------------------------------------------------------------------- rules


@dataclass(frozen=True)
class Rules:
    """The algorithm. The defaults are what production does; a mutant changes some of them."""

    guard: Literal["ledger", "none", "cache"] = "ledger"
    guard_sees_wildcards: bool = True
    perfect_lease: bool = False
    """Two writers never work at once, a hung one included: what no broker gives."""
    fence: bool = True
    flip_checks_taint: bool = True
    flip_checks_pending: bool = True
    admit_checks_taint: bool = True
    taint_deletes_pending: bool = True
    taint_covers_unknown: bool = True
    taint_is_flag: bool = False
    taint_clears_live: bool = True
    publish_after_tombstone: bool = True
    point_names_generation: Literal["id", "payload", "nowhere"] = "id"
    ack_last: bool = True
    inbox_first: bool = False
    outbox_in_flip: bool = True
    delete_names_generations: bool = True
    keep_read_last: bool = True
    """The sweep reads what to keep after what the index has."""
    taint_lists_first: bool = False
    """A taint reads the index's generations before its tombstone and deletes them after it."""
    upsert_waits: bool = True
    flip_after_upsert: bool = True
    refused_flip_acks: bool = False
    sweeper: bool = True
    publish_after_delete: bool = False


@dataclass(frozen=True)
class World:
    """What stays the same in one exploration."""

    scenario: Scenario
    rules: Rules = field(default_factory=Rules)


# ------------------------------------------------------------------------------------------------------------- state

NOBODY = 0
QUEUED, ACKED = 0, -1  # of a message; 1 and 2 are the writers that hold it
NO_EPOCH, CURRENT, STALE = 0, 1, 2  # of a writer: another one's activation makes a current epoch stale


class Stone(NamedTuple):
    """`Tombstone` as a tuple: a state is hashed often."""

    at: int = NEVER
    through: int = NEVER
    through_own: int = NEVER

    @property
    def rule(self) -> Tombstone:
        """The production's value, which knows what it covers."""
        return _rule(self)

    def merge(self, other: Stone) -> Stone:
        """As the production merges them."""
        return _merge(self, other)

    def covers(self, ord_us: int, *, own_clock: bool) -> bool:
        """Whether a version at this place is covered, as the production asks it."""
        return ord_us <= _rule(self).bound(own_clock=own_clock)


@cache
def _rule(stone: Stone) -> Tombstone:
    return Tombstone(*stone)


@cache
def _merge(stone: Stone, other: Stone) -> Stone:
    both = stone.rule.merge(other.rule)
    return Stone(both.at, both.through, both.through_own)


NO_STONE = Stone()


class Row(NamedTuple):
    """An artifact's row in the ledger; `live` is a generation or 0."""

    tombstone: Stone = NO_STONE
    version: int = NEVER
    own_clock: bool = False
    live: int = NOBODY
    content: str = ""


class Generation(NamedTuple):
    """What was allocated in V1: never changed, never used twice."""

    key: int
    event: int
    ord: int
    own_clock: bool


class Point(NamedTuple):
    """What the index has; `id` is the generation, but for mutants that leave it out (then the artifact, negative)."""

    id: int
    generation: int


class Writer(NamedTuple):
    """A process: its epoch, and where its one task is.

    Phases: idle, taken (next: activate, V1), admitted (next: send), sent (the index has not answered), stored (next:
    V4). Within a step: ending (next: acknowledge). With mutants: flipped.
    """

    phase: str = "idle"
    epoch: int = NO_EPOCH
    message: int = -1
    generation: int = 0
    failed: tuple[int, ...] = ()


class Sweeper(NamedTuple):
    """One sweep of one artifact. Phases: idle, listed, removing; with a mutant: kept."""

    phase: str = "idle"
    key: int = -1
    generations: frozenset[int] = frozenset()


class Relay(NamedTuple):
    """A claimed batch: what waits, and what the broker has confirmed but the ledger does not know yet."""

    waiting: tuple[Told, ...] = ()
    confirmed: tuple[Told, ...] = ()


class Reader(NamedTuple):
    """One query. Phases: none, searched, done.

    Attributes:
        told: what was confirmed as invalidated when it started.
        points: the candidates that it must not show for that.
    """

    phase: str = "none"
    told: frozenset[Told] = frozenset()
    points: frozenset[Point] = frozenset()
    stale: bool = False


class Told(NamedTuple):
    """An event of the outbox, named by what makes its id unique; `taint` is a position in the scenario or -1."""

    kind: str  # invalidated, completed, quarantined
    key: int = -1
    ord: int = NEVER
    detail: str = ""
    taint: int = -1
    tombstone: Stone = NO_STONE


class Held(NamedTuple):
    """A quarantined event."""

    key: int
    ord: int
    content: str
    bare: bool = False


class State(NamedTuple):
    """Everything: ledger, index with what is on its way there, broker, processes, and what may still go wrong."""

    rows: tuple[Row | None, ...]
    wildcards: tuple[Stone, ...]
    generations: tuple[Generation, ...] = ()
    pending: frozenset[int] = frozenset()
    texts: frozenset[int] = frozenset()  # generations whose chunk rows are written
    quarantine: frozenset[Held] = frozenset()
    receipts: frozenset[tuple[int, str, int | None, int]] = frozenset()  # key, content, claimed, placed
    taint_receipts: tuple[int | None, ...] = ()
    unsent: tuple[Told, ...] = ()
    sent: frozenset[Told] = frozenset()
    clock: int = 0

    points: frozenset[Point] = frozenset()
    upserts: frozenset[int] = frozenset()  # sent, not applied; its sender may be gone
    deletes: frozenset[tuple[int, frozenset[int]]] = frozenset()  # key, generations; likewise
    doomed: frozenset[int] = frozenset()  # every generation that a delete ever named

    messages: tuple[int, ...] = ()
    taints: tuple[str, ...] = ()  # queued, acked; half-way: begun (wildcard race); with mutants: listed, announced
    published: frozenset[Told] = frozenset()

    writers: tuple[Writer, Writer] = (Writer(), Writer())
    sweeper: Sweeper = Sweeper()
    relay: Relay = Relay()
    reader: Reader = Reader()
    faults: int = 0
    takeovers: int = 0

    snapshot: frozenset[int] = frozenset()  # rows that a taint in the making has seen, or its list of generations
    cache: frozenset[int] = frozenset()  # mutant: a replica's copy of what is live
    inbox: frozenset[int] = frozenset()  # mutant: events that were received


class Step(NamedTuple):
    """One atomic step: of a writer (`who` is 0 or 1), or about a message, a generation or an artifact."""

    name: str
    who: int = -1
    what: int = -1
    fault: bool = False


def first_state(scenario: Scenario) -> State:
    """Nothing has happened: all messages wait."""
    return State(
        rows=(None,) * len(scenario.keys),
        wildcards=(NO_STONE,) * len(scenario.keys),
        taint_receipts=(None,) * len(scenario.taints),
        clock=scenario.clock,
        messages=(QUEUED,) * len(scenario.messages),
        taints=("queued",) * len(scenario.taints),
        faults=scenario.faults,
        takeovers=scenario.takeovers,
    )


def canonical(state: State) -> State:
    """One state for all that differ in names only, or in what nothing can depend on any more.

    The two writers are alike. A generation that nobody refers to is forgotten, those behind it move up. That an older
    version was announced does not matter once a newer one is live.
    """
    state = _without_history(_renumbered(state))
    first, second = state.writers
    if first < second:
        return state
    mirrored = tuple(3 - held if held > 0 else held for held in state.messages)
    if first == second and state.messages <= mirrored:
        return state
    return state._replace(writers=(second, first), messages=mirrored)


def _renumbered(state: State) -> State:
    if not state.generations:
        return state
    used = {row.live for row in state.rows if row}
    used.update(state.pending, state.upserts, state.sweeper.generations, state.cache, state.snapshot)
    for writer in state.writers:
        used.add(writer.generation)
    for point in state.points:
        used.add(point.generation)
    for point in state.reader.points:
        used.add(point.generation)
    for _, named in state.deletes:
        used.update(named)
    used.discard(NOBODY)
    if len(used) == len(state.generations):
        return state
    texts, doomed = state.texts & used, state.doomed & used
    order = sorted(used)
    to = {NOBODY: NOBODY, **{old: new for new, old in enumerate(order, start=1)}}

    def all_of(numbers: frozenset[int]) -> frozenset[int]:
        return frozenset(to[one] for one in numbers)

    def points_of(points: frozenset[Point]) -> frozenset[Point]:
        return frozenset(Point(point.id if point.id < 0 else to[point.id], to[point.generation]) for point in points)

    first, second = (
        writer._replace(
            generation=to[writer.generation], failed=tuple(to[one] for one in writer.failed if one in state.pending)
        )
        for writer in state.writers
    )
    return state._replace(
        rows=tuple(row and row._replace(live=to[row.live]) for row in state.rows),
        generations=tuple(state.generations[old - 1] for old in order),
        pending=all_of(state.pending),
        texts=all_of(texts),
        points=points_of(state.points),
        upserts=all_of(state.upserts),
        deletes=frozenset((key, all_of(named)) for key, named in state.deletes),
        doomed=all_of(doomed),
        writers=(first, second),
        sweeper=state.sweeper._replace(generations=all_of(state.sweeper.generations)),
        reader=state.reader._replace(points=points_of(state.reader.points)),
        cache=all_of(state.cache),
        snapshot=state.snapshot if "begun" in state.taints else all_of(state.snapshot),
    )


def _without_history(state: State) -> State:
    if not any(_is_history(state, event) for event in state.sent):
        return state
    return state._replace(
        sent=frozenset(event for event in state.sent if not _is_history(state, event)),
        published=frozenset(event for event in state.published if not _is_history(state, event)),
    )


def _is_history(state: State, event: Told) -> bool:
    row = state.rows[event.key] if event.kind == "completed" else None
    return row is not None and event.ord < row.version


def merged(state: State, key: int) -> Stone:
    """An artifact's bounds, taints without tenant included, as V1 and V4 read them."""
    row, everywhere = state.rows[key], state.wildcards[key]
    own = row.tombstone if row else NO_STONE
    return own if everywhere == NO_STONE else own.merge(everywhere)


def told(state: State) -> frozenset[Told]:
    """Every event that was ever put into the outbox."""
    return state.sent.union(state.unsent)
