"""Runs of the model, played by production code: after every step both are in the same state.

Which runs: at random, for every scenario; one for each fault; and each mutant's shortest trace, as far as the algorithm
itself goes along.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from .explore import Exploration
from .mutants import MUTANTS, Mutant
from .player import Run
from .replay import Theatre, random_run, same_run
from .scenarios import CLOSE_UP_CRASH, SCENARIOS, VERSIONS
from .stage import WarpLoop
from .state import Scenario, World

RANDOM_RUNS = int(os.environ.get("DATS_TEST_REPLAYS", "2"))
"""For each scenario; by hand hundreds."""
MOST_STEPS = 70

FAULTS = (
    *("crash", "hang", "no answer", "V1, answer lost", "V4, answer lost", "V1, then crash", "V4, then crash"),
    *("T1, comes again", "relay, then crash"),
)
CLOSE_FAULTS = {
    "relay crashes": "relay crashes",
    "sweeper crashes": "sweeper crashes",
    "late delete": "sweeper crashes",
}
"""A step that only a scenario with fine steps has, and the fault that leads to it."""

# The one step that SQLite cannot do: there a taint is alone in the database from its first statement on.
PLAYABLE = [scenario for scenario in SCENARIOS if not scenario.wildcard_race]


def played(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=WarpLoop) as runner:
        runner.run(work)


def run_with(scenario: Scenario, step_name: str, *, fault: str = "") -> Run:
    """The first random run in which this happens, and no other fault than that one."""
    for seed in count():
        run = random_run(World(scenario), seed, most_steps=MOST_STEPS, faults=frozenset({fault}))
        if any(step.name == step_name for step, _ in run):
            return run
        assert seed < 20_000, f"{scenario.name}: {step_name} never happens"
    raise AssertionError


@pytest.mark.parametrize("scenario", PLAYABLE, ids=lambda scenario: scenario.name)
def test_random_runs_of_the_model_are_what_production_does(scenario: Scenario, tmp_path: Path) -> None:
    async def work() -> None:
        theatre = Theatre(tmp_path)
        for seed in range(RANDOM_RUNS):
            await theatre.play(scenario, random_run(World(scenario), seed, most_steps=MOST_STEPS))

    played(work())


@pytest.mark.parametrize("fault", [*FAULTS, *CLOSE_FAULTS])
def test_after_this_fault_production_is_where_the_model_is(fault: str, tmp_path: Path) -> None:
    scenario = replace(CLOSE_UP_CRASH if fault in CLOSE_FAULTS else VERSIONS, takeovers=1)
    played(Theatre(tmp_path).play(scenario, run_with(scenario, fault, fault=CLOSE_FAULTS.get(fault, fault))))


@pytest.mark.parametrize("name", ["Q3", "sweep"])
def test_queries_and_sweeps_in_the_middle_see_what_the_model_says(name: str, tmp_path: Path) -> None:
    played(Theatre(tmp_path).play(VERSIONS, run_with(VERSIONS, name)))


@pytest.mark.parametrize("name", ["mark sent", "gone"])
def test_relay_and_sweep_are_where_the_model_is_at_each_of_their_steps(name: str, tmp_path: Path) -> None:
    played(Theatre(tmp_path).play(CLOSE_UP_CRASH, run_with(CLOSE_UP_CRASH, name)))


@pytest.mark.parametrize(
    "mutant", [item for item in MUTANTS if not item.scenario.wildcard_race], ids=lambda one: f"{one.row}: {one.name}"
)
def test_production_goes_along_with_a_mutants_trace_and_takes_the_missing_step(mutant: Mutant, tmp_path: Path) -> None:
    found = Exploration(mutant.world).run(kind=mutant.kind).violation
    assert found is not None
    world = World(mutant.scenario)
    run = same_run(world, mutant.world, found.trace)
    assert len(run) >= 2, "a mutant that differs from the first step on shows nothing"
    run += random_run(world, 0, most_steps=20, after=run[-1][1])
    played(Theatre(tmp_path).play(mutant.scenario, run))
