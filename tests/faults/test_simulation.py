"""The production handlers under simulation: no seed breaks the promise, and every step taken out is found.

Bounded here: `DATS_TEST_SIMULATION_S` says for how many seconds seeds are tried (by default 60, in CI five minutes), at
least `LEAST_RUNS` of them. By hand, with as many as one likes: `make simulate SIMULATE='--seeds 0:60000 --jobs 2'`.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.simulation.faults import POINTS, draw_fault
from tests.faults.simulation.loop import VirtualLoop
from tests.faults.simulation.mutants import MUTANTS
from tests.faults.simulation.run import Outcome, run_seed
from tests.faults.simulation.scenario import EVENTS
from tests.faults.simulation.series import Summary, describe_failure, load, now, parts, quiet
from tests.faults.simulation.sqlite import Slots
from tests.faults.simulation.world import open_slots

BUDGET_S = float(os.environ.get("DATS_TEST_SIMULATION_S", "300" if os.environ.get("CI") == "true" else "60"))
LEAST_RUNS = 40
MOST_SEEDS = 60
"""Within so many seeds each mutant must be found."""

ROOT = Path(__file__).parents[2]

STALE = ("stale",)
"""Something was shown, or is visible in the end, that a confirmed taint covers."""

LOST = ("lost", "I8", "L1", "L2")
"""Something approved is not visible, or its event was never published."""

TORN = ("I5", "L3", "lost")
"""Something is live whose points are not all in the index."""

FOUND_BY = {
    "query guard removed": STALE,
    "guard on a cache": STALE,
    "no tombstone for an artifact never seen": STALE,
    "no tombstone for tenants to come": STALE,
    "published before the tombstone commits": STALE,
    "live generation not cleared": STALE,
    "taint not checked again at the flip": STALE,
    "flip without its pending row": TORN,
    "outbox outside of the flip": LOST,
    "marked as sent before publishing": LOST,
    "acknowledged first": LOST,
    "generation missing from the point id": TORN,
    "upsert without waiting": TORN,
    "sweep not scoped to generations": TORN,
    "sweep asks the ledger first": TORN,
}


@pytest.fixture(scope="module")
def slots() -> Iterator[Slots]:
    """What the runs share; without the writers' warnings of every injected fault."""
    with quiet():
        yield open_slots()


@pytest.mark.timeout(600 + 3 * BUDGET_S)
def test_no_seed_breaks_the_promise_and_a_tenth_of_them_would_without_the_guard(slots: Slots) -> None:
    summary = Summary(commit="", seeds="")
    began = now()
    seed = 0
    while seed < LEAST_RUNS or now() - began < BUDGET_S:
        outcome = run_seed(seed, slots)
        assert outcome.events >= EVENTS[0]
        assert outcome.artifacts >= 3
        assert sum(outcome.faults.values()) >= 2
        summary.add(outcome)
        seed += 1
    print(summary.line())
    assert not summary.failures, "\n".join(map(describe_failure, summary.failures))
    assert summary.dangerous_share >= 0.1
    assert summary.zombie > 0, "no paused or late writer has stored points of a generation after its taint"
    assert summary.checked > summary.runs


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_step_taken_out_is_found_and_its_seed_replays_exactly(mutant: str, slots: Slots) -> None:
    found = _find(mutant, slots)
    again = run_seed(found.seed, slots, parts=MUTANTS[mutant])
    assert (again.digest, again.violations) == (found.digest, found.violations)


def _find(mutant: str, slots: Slots) -> Outcome:
    for seed in range(MOST_SEEDS):
        outcome = run_seed(seed, slots, parts=MUTANTS[mutant])
        if any(line.split(":")[0] in FOUND_BY[mutant] for line in outcome.violations):
            return outcome
    pytest.fail(f"{MOST_SEEDS} seeds do not tell '{mutant}' from the production code")


@pytest.mark.timeout(300)
def test_a_seed_is_the_same_run_in_another_process_with_another_order_of_sets(slots: Slots) -> None:
    seed = 3
    here = run_seed(seed, slots).digest
    command = [sys.executable, "-m", "tests.faults.simulation", "--seeds", f"{seed}:{seed + 1}", "--trace"]
    for hash_seed in ("1", "77"):
        elsewhere = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert f"seed {seed}, digest {here}" in elsewhere.stdout.splitlines()[-1]


def test_every_fault_of_the_table_is_drawn() -> None:
    rng = random.Random(1)
    drawn = {(fault.point, fault.kind) for fault in (draw_fault(rng) for _ in range(20_000))}
    assert drawn == {(point, kind) for point, kinds in POINTS.items() for kind in kinds}


def test_an_interrupted_series_goes_on_with_what_is_left_of_the_same_commit(tmp_path: Path) -> None:
    out = tmp_path / "summary.json"
    interrupted = Summary(commit="c1", seeds="0:70", runs=25, done=[(25, 50)], faults=Counter(crash=3))
    interrupted.save(out)
    resumed = load(out, commit="c1", seeds="0:70")
    assert resumed == interrupted
    assert list(parts(0, 70, size=25, done=resumed.done)) == [(0, 25), (50, 70)]
    assert load(out, commit="c2", seeds="0:70").runs == 0


def test_time_passes_only_when_nothing_else_can_happen() -> None:
    loop = VirtualLoop(random.Random(1))
    began = now()

    async def wait() -> float:
        await asyncio.gather(asyncio.sleep(3600.0), asyncio.sleep(86_400.0))
        return loop.time()

    assert loop.run_until_complete(wait()) == 86_400.0
    assert now() - began < 60.0
    loop.end([])
