"""Runs of the model that production code is to play, and the place where it does."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path

from dats_common.adapters.sql.ledger import open_ledger
from dats_common.fingerprint import fingerprint

from .player import Clock, Player, Run
from .stage import Stage
from .state import Scenario, State, Step, World, canonical, first_state
from .steps import moves
from .wire import TICK_US

_FAULT_WEIGHT = 0.4  # else most runs would spend their faults in the first few steps


def random_run(
    world: World, seed: int, *, most_steps: int, faults: frozenset[str] | None = None, after: State | None = None
) -> list[tuple[Step, State]]:
    """One run of the model, until nothing is left to do; faults are rarer than progress.

    Args:
        faults: which ones may happen; None are all.
        after: where to go on from.
    """
    choice = random.Random(seed)
    state, run = after or first_state(world.scenario), list[tuple[Step, State]]()
    while len(run) < most_steps:
        possible = [
            (step, to) for step, to in moves(world, state) if not step.fault or faults is None or step.name in faults
        ]
        if not possible:
            break
        weights = [_FAULT_WEIGHT if step.fault else 1.0 for step, _ in possible]
        step, state = choice.choices(possible, weights)[0]
        run.append((step, state))
    return run


def same_run(world: World, mutated: World, trace: Sequence[Step]) -> list[tuple[Step, State]]:
    """A trace as far as this world can do it, with names that stay: the same steps to the same states.

    Where the mutant's step leads elsewhere, this world's own step of that name is the last one.
    """
    theirs, ours = first_state(mutated.scenario), first_state(world.scenario)
    run = list[tuple[Step, State]]()
    for step in trace:
        theirs = canonical(next(after for one, after in moves(mutated, theirs) if one == step))
        alike = [(one, after) for one, after in moves(world, ours) if one.name == step.name]
        same = [(one, after) for one, after in alike if canonical(after) == theirs]
        run += (same or alike)[:1]
        if not same:
            break
        ours = same[0][1]
    return run


class Theatre:
    """Makes a fresh ledger for every run from one that was migrated once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._runs = 0

    async def play(self, scenario: Scenario, run: Run) -> None:
        """Play a run of the algorithm itself. Raises: AssertionError: production does something else."""
        clock = Clock(scenario.clock)
        database = await self._fresh()
        async with open_ledger(f"sqlite:///{database}", clock=clock) as ledger:
            stage = Stage(ledger, skew_s=scenario.skew * TICK_US / 1e6)
            await stage.index.prepare(await fingerprint(stage.encoder))
            try:
                await Player(World(scenario), stage, clock, database).play(run)
            finally:
                await stage.close()

    async def _fresh(self) -> Path:
        template = self._directory / "template.db"
        if not template.exists():
            async with open_ledger(f"sqlite:///{template}"):
                pass
        self._runs += 1
        return Path(shutil.copy(template, self._directory / f"run-{self._runs}.db"))
