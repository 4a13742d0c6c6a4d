"""One seed, one run."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from dataclasses import dataclass

from tests.faults.simulation.loop import Stuck
from tests.faults.simulation.mutants import PRODUCTION, Parts
from tests.faults.simulation.oracle import Oracle
from tests.faults.simulation.scenario import Scenario, draw_scenario
from tests.faults.simulation.sqlite import Slots, remove_database
from tests.faults.simulation.world import World


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came out of a run.

    Attributes:
        digest: over everything that happened, in order and with its virtual time.
        dangerous: an unguarded read that began after a taint was confirmed would have been stale.
        zombie: points of a tainted generation were stored after the taint was confirmed.
    """

    seed: int
    violations: tuple[str, ...]
    surprises: tuple[str, ...]
    digest: str
    events: int
    artifacts: int
    faults: Mapping[str, int]
    answers: int
    checked: int
    dangerous: bool
    zombie: bool
    virtual_s: float
    steps: int
    cpu_s: float
    trace: tuple[str, ...]


def run_seed(seed: int, slots: Slots, *, parts: Parts = PRODUCTION) -> Outcome:
    """The run of a seed, the same on every machine and at every time."""
    return run_scenario(parts.steer(draw_scenario(seed)), slots, parts=parts)


def run_scenario(scenario: Scenario, slots: Slots, *, parts: Parts = PRODUCTION) -> Outcome:
    """Play, come to rest, sweep, judge."""
    started = time.process_time()
    world = World(scenario, slots, parts=parts)
    gc.disable()  # what it collects, and when, is not the seed's
    try:
        world.loop.run_until_complete(world.play())
        finish(world)
    except Stuck as error:
        world.record.violated("stuck", str(error))
    finally:
        close(world)
        gc.enable()
    return outcome_of(world, cpu_s=time.process_time() - started)


def finish(world: World) -> None:
    """To rest, swept, and judged."""
    world.loop.run_until_complete(world.settle())
    world.loop.run_until_complete(world.sweep_up())
    Oracle(world).judge()


def close(world: World) -> None:
    """Nothing of the run is left."""
    world.closed = True
    for process in world.ever:
        process.die()
    world.loop.end([process.lane for process in world.ever])
    world.record.close()
    remove_database(world.database)


def outcome_of(world: World, *, cpu_s: float) -> Outcome:
    """The figures."""
    record = world.record
    return Outcome(
        seed=world.scenario.seed,
        violations=tuple(record.violations),
        surprises=tuple(record.surprises),
        digest=world.digest(),
        events=len(record.sent_events),
        artifacts=record.artifacts(),
        faults=dict(world.hits),
        answers=len(record.answers),
        checked=sum(len(answer.shown) for answer in record.answers),
        dangerous=record.unguarded_stale > 0,
        zombie=record.zombie_writes > 0,
        virtual_s=world.loop.time(),
        steps=world.loop.steps,
        cpu_s=cpu_s,
        trace=tuple(world.lines),
    )
