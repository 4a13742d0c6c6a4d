"""No interleaving of these messages, writers, faults and late requests breaks an invariant.

`DATS_TEST_MODEL=deep` explores the same messages with one more fault and a takeover each (an hour, several GB).
"""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from dats_common.domain.model import NEVER

from .explore import Exploration
from .invariants import KINDS, broken_by, broken_in, newest_beyond_taints
from .replay import random_run
from .scenarios import SCENARIOS, SKEW, VERSIONS, deeper
from .state import Held, Row, Scenario, State, Stone, World, first_state
from .steps import moves
from .story import row_of_scenario, tell

DEEP = os.environ.get("DATS_TEST_MODEL") == "deep"
PAGE = Path(__file__).parents[3] / "docs" / "reliability.md"


@pytest.mark.timeout(7200 if DEEP else 300)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_no_interleaving_breaks_an_invariant(scenario: Scenario) -> None:
    world = World(deeper(scenario) if DEEP else scenario)
    explored = Exploration(world).run()
    if found := explored.violation:
        pytest.fail("\n".join([found.invariant, *tell(world, found.trace)]))
    assert explored.rests > 0
    row = row_of_scenario(world.scenario, explored)
    if DEEP:
        print(row)
    else:
        assert row in PAGE.read_text(encoding="utf-8"), f"run python -m tests.faults.model: the page does not say {row}"


STEPS = {
    *("take", "activate", "V1", "send", "apply", "V4", "T1", "T1 begins", "relay", "sweep", "Q1", "Q3"),
    *("publish", "mark sent", "list", "keep", "gone", "late delete"),
}
FAULTS = {
    *("crash", "hang", "no answer", "V1, answer lost", "V4, answer lost", "V1, then crash", "V4, then crash"),
    *("T1, comes again", "relay, then crash", "relay crashes", "sweeper crashes"),
}


def test_every_step_that_the_model_knows_is_taken_somewhere() -> None:
    """A step that is never possible would make an exploration smaller than it looks."""
    missing = STEPS | FAULTS
    for seed in range(500):
        for scenario, fault in product(SCENARIOS, sorted(missing & FAULTS) or ["sweeper crashes"]):
            run = random_run(World(scenario), seed, most_steps=60, faults=frozenset({fault}))
            missing -= {step.name for step, _ in run}
        if not missing:
            return
    pytest.fail(f"never taken: {missing}")


# --------------------------------------------------------------------- the invariants themselves tell bad from good


def _after(scenario: Scenario, *names: str) -> State:
    """The state after the first possible steps of these names."""
    world, state = World(scenario), first_state(scenario)
    for name in names:
        state = next(after for step, after in moves(world, state) if step.name == name)
    return state


LIVE = ("take", "activate", "V1", "send", "apply", "V4")
CALM = replace(VERSIONS, faults=0)


def _row(state: State, **changes: object) -> State:
    row = state.rows[0]
    assert row is not None
    return state._replace(rows=(row._replace(**changes),))  # type: ignore[arg-type]


BAD = {
    "I1": lambda: _row(_after(CALM, *LIVE, "T1", "relay"), live=1, content="x", version=10),
    "I2": lambda: _row(_after(CALM, "T1"), tombstone=Stone()),
    "I3": lambda: _row(_after(CALM, *LIVE), version=5),
    "I5": lambda: _after(CALM, *LIVE)._replace(points=frozenset()),
    "I6": lambda: _after(CALM, *LIVE)._replace(doomed=frozenset({1})),
    "I8": lambda: _row(_after(CALM, *LIVE), version=NEVER, live=0, content=""),
}


@pytest.mark.parametrize("name", BAD)
def test_a_state_that_breaks_an_invariant_is_recognised(name: str) -> None:
    assert name in {found.split()[0] for found in broken_in(World(CALM), BAD[name]())}


def test_a_bound_that_shrinks_is_recognised() -> None:
    tainted = _after(CALM, "T1")
    (row,) = tainted.rows
    assert row is not None
    lower = tainted._replace(rows=(Row(Stone(5, 5, 5)),))
    assert [name.split()[0] for name in broken_by(tainted, lower)] == ["I7"]
    assert broken_by(lower, tainted) == []


def test_the_outcome_is_the_newest_version_that_no_taint_reaches() -> None:
    assert newest_beyond_taints(VERSIONS, 0) == (30, "y")
    assert newest_beyond_taints(replace(VERSIONS, skew=10), 0) is None
    assert newest_beyond_taints(SKEW, 0) == (40, "y")


def test_what_is_in_quarantine_is_not_lost() -> None:
    state = _after(CALM, "take", "activate")
    acked = state._replace(messages=(-1, 0), rows=(Row(),))
    assert any(name.startswith("I8") for name in broken_in(World(CALM), acked))
    kept = acked._replace(quarantine=frozenset({Held(0, 10, "x")}))
    assert broken_in(World(CALM), kept) == []


def test_every_invariant_has_a_kind() -> None:
    assert {name.split()[0] for name in KINDS} >= {*(f"I{n}" for n in range(1, 9)), "L1", "L2", "L3", "Q"}
