"""The invariants I1 to I8 and L1 to L3 of the algorithm, by name, and what breaking each of them means for a user.

**Safety** (I1 to I8, and Q: the promise as a reader sees it) is checked in every reachable state, I7 in every step.

**Liveness** is checked in two halves, because a model with faults has no fair scheduler:
L1 to L3 hold in every state *at rest* (nothing queued, in hand, unsent or left to sweep), and from every reachable
state such a one can be reached without a further fault. So no run gets stuck, and wherever a run comes to rest,
nothing is missing. What is not excluded: a scheduler that for ever avoids the steps that lead there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from dats_common.domain.model import NEVER

from .state import ACKED, Row, Scenario, State, Told, World, merged, told
from .steps import is_covered, shown

Kind = Literal["stale", "lost", "hygiene", "structure"]

KINDS: Mapping[str, Kind] = {
    "Q no query that starts after invalidated was confirmed returns the artifact": "stale",
    "I1 invalidated published: nothing is live, or something newer": "stale",
    "I2 invalidated in the outbox or published: the tombstone stands": "structure",
    "I3 live is of the row's version, which is beyond its bound": "structure",
    "I4 every point carries the content of its generation": "structure",
    "I5 live: all of it is in the index, its text in the ledger": "lost",
    "I6 a delete names only what is neither live nor pending, for ever": "structure",
    "I7 version and bounds never decrease": "structure",
    "I8 acknowledged: the outcome is durable and its event queued": "lost",
    "L1 at rest: the newest version beyond all taints is live, has points, and was announced": "lost",
    "L2 at rest: every taint was followed by invalidated": "lost",
    "L3 at rest: the index has the live generations and nothing else": "hygiene",
    "L1-L3 rest can be reached": "lost",
}
_BY_SHORT_NAME = {name.split()[0]: name for name in KINDS}
STUCK = "L1-L3 rest can be reached"


def broken_in(world: World, state: State) -> list[str]:
    """Names of the invariants that do not hold in this state, L1 to L3 included if it is at rest."""
    checks = {**_SAFETY, **(_AT_REST if is_at_rest(world, state) else {})}
    return [_BY_SHORT_NAME[name] for name, holds in checks.items() if not holds(world, state)]


def broken_by(before: State, after: State) -> list[str]:
    """Names of the invariants that this step breaks."""
    for was, now in zip(before.rows, after.rows, strict=True):
        if was is not now and was is not None and (now is None or _went_back(was, now)):
            return [_BY_SHORT_NAME["I7"]]
    for was_stone, stone in zip(before.wildcards, after.wildcards, strict=True):
        if was_stone is not stone and was_stone.merge(stone) != stone:
            return [_BY_SHORT_NAME["I7"]]
    return []


def _went_back(was: Row, now: Row) -> bool:
    return now.version < was.version or was.tombstone.merge(now.tombstone) != now.tombstone


# ------------------------------------------------------------------------------------------------------------- safety


def _q(world: World, state: State) -> bool:
    return not state.reader.stale


def _i1(world: World, state: State) -> bool:
    visible = [shown(world, state, key) for key in range(len(state.rows))]
    return not any(
        event.kind == "invalidated" and is_covered(world, event, key, row.version, own_clock=row.own_clock)
        for event in state.published
        for key, row in enumerate(state.rows)
        if row is not None and visible[key]
    )


def _i2(world: World, state: State) -> bool:
    for event in told(state) | state.published:
        if event.kind != "invalidated":
            continue
        for key in world.scenario.covers[event.taint]:
            bound = merged(state, key)
            if bound.merge(event.tombstone) != bound:
                return False
    return True


def _i3(world: World, state: State) -> bool:
    for key, row in enumerate(state.rows):
        if row is None or not row.live:
            continue
        generation = state.generations[row.live - 1]
        content = world.scenario.approved[generation.event].content
        # The same content under a newer time moves the version of what is live.
        if generation.key != key or content != row.content or generation.ord > row.version:
            return False
        if row.tombstone.covers(row.version, own_clock=row.own_clock):
            return False
    return True


def _i4(world: World, state: State) -> bool:
    if world.rules.point_names_generation != "nowhere":
        return True  # a point says which generation it is of, and a generation is allocated once, by construction
    live = {key: row.live for key, row in enumerate(state.rows) if row and row.live}
    keys = {point: state.generations[point.generation - 1].key for point in state.points}
    return all(live.get(key, point.generation) == point.generation for point, key in keys.items())


def _i5(world: World, state: State) -> bool:
    there = {point.generation for point in state.points}
    return all(row is None or not row.live or (row.live in there and row.live in state.texts) for row in state.rows)


def _i6(world: World, state: State) -> bool:
    if not state.doomed:
        return True
    return state.doomed.isdisjoint(state.pending) and not any(row and row.live in state.doomed for row in state.rows)


def _i8(world: World, state: State) -> bool:
    scenario = world.scenario
    for message, status in enumerate(state.messages):
        if status == ACKED and not _is_durable(scenario, state, scenario.messages[message]):
            return False
    events = told(state) | state.published
    return all(
        any(event.taint == number for event in events) for number, taint in enumerate(state.taints) if taint == "acked"
    )


def _is_durable(scenario: Scenario, state: State, number: int) -> bool:
    """Whether the ledger knows what became of this event, and has an event that says so."""
    event, key = scenario.approved[number], scenario.key_of[number]
    row = state.rows[key]
    if row is None:
        return False
    at, own_clock = event.claimed, event.own_clock
    if scenario.keeps_receipts:
        seen = {
            claimed: placed for where, text, claimed, placed in state.receipts if (where, text) == (key, event.content)
        }
        if event.claimed not in seen:
            return False
        at = seen[event.claimed] if event.claimed is not None else min(seen.values())
        own_clock = own_clock or at == seen.get(None)
    if at is None:
        return False
    if merged(state, key).covers(at, own_clock=own_clock) or row.version > at:
        return True
    if any(one[:3] == (key, at, event.content) for one in state.quarantine):
        return True
    bare_copies = (one for one in state.quarantine if one.bare and (one.key, one.content) == (key, event.content))
    if event.claimed is None and any(bare_copies):
        return True
    return row.version == at and row.content == event.content and Told("completed", key, at) in told(state)


# ------------------------------------------------------------------------------------------------------------ at rest


def is_at_rest(world: World, state: State) -> bool:
    """Nothing is left to do: nothing queued, in hand or unsent, and the sweep would find nothing.

    A request that is still on its way to the index was lost, or will be applied later: then this is no rest for long.
    """
    return (
        all(status == ACKED for status in state.messages)
        and all(status == "acked" for status in state.taints)
        and not state.unsent
        and all(writer.phase == "idle" for writer in state.writers)
        and state.sweeper.phase == "idle"
        and state.reader.phase in ("none", "done")
        and not (world.rules.sweeper and _dead_points(state))
    )


def _dead_points(state: State) -> bool:
    keep = {row.live for row in state.rows if row} | state.pending
    return any(point.generation not in keep for point in state.points)


def _l1(world: World, state: State) -> bool:
    scenario = world.scenario
    published = state.published
    for key, row in enumerate(state.rows):
        if row is None:
            return False
        beyond = not merged(state, key).covers(row.version, own_clock=row.own_clock)
        if row.version > NEVER and beyond and not row.live:
            return False
        if row.live and Told("completed", key, row.version) not in published:
            return False
        if scenario.is_ordered_by_producers and _visible(world, state, key) != newest_beyond_taints(scenario, key):
            return False
    return _i5(world, state)


def _visible(world: World, state: State, key: int) -> tuple[int, str] | None:
    row = state.rows[key]
    return (row.version, row.content) if row and shown(world, state, key) else None


def newest_beyond_taints(scenario: Scenario, key: int) -> tuple[int, str] | None:
    """The outcome as a function of the set of events: the newest version, if no taint reaches it."""
    mine = [
        (event.claimed, event.content)
        for event, where in zip(scenario.approved, scenario.key_of, strict=True)
        if where == key and event.claimed is not None
    ]
    reached = max(
        (
            taint.claimed + scenario.skew
            for taint, covered in zip(scenario.taints, scenario.covers, strict=True)
            if key in covered and taint.claimed is not None
        ),
        default=NEVER,
    )
    newest = max(mine, default=None)
    return newest if newest and newest[0] > reached else None


def _l2(world: World, state: State) -> bool:
    return {event.taint for event in state.published if event.kind == "invalidated"} == set(range(len(state.taints)))


def _l3(world: World, state: State) -> bool:
    return {point.generation for point in state.points} == {row.live for row in state.rows if row and row.live}


_Check = Callable[[World, State], bool]
_SAFETY: Mapping[str, _Check] = {
    "Q": _q, "I1": _i1, "I2": _i2, "I3": _i3, "I4": _i4, "I5": _i5, "I6": _i6, "I8": _i8,
}  # fmt: skip
_AT_REST: Mapping[str, _Check] = {"L1": _l1, "L2": _l2, "L3": _l3}
