"""Each step is needed: without it the checker finds a run that ends badly, and says which."""

from __future__ import annotations

from pathlib import Path

import pytest

from .explore import Exploration
from .mutants import MUTANTS, VARIANTS, Mutant, Variant
from .scenarios import SCENARIOS
from .state import Rules, Scenario, Step, World
from .story import row_of_mutant, row_of_variant, tell

PAGE = Path(__file__).parents[3] / "docs" / "reliability.md"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.row}: {mutant.name}")
def test_without_this_step_a_run_ends_badly(mutant: Mutant) -> None:
    explored = Exploration(mutant.world).run(kind=mutant.kind)
    assert explored.violation is not None, "nothing was found: the step is not needed, or the checker is blind"
    print("\n".join([explored.violation.invariant, *tell(mutant.world, explored.violation.trace)]))
    row = row_of_mutant(mutant, explored)
    assert row in PAGE.read_text(encoding="utf-8"), f"run python -m tests.faults.model: the page does not say {row}"


@pytest.mark.parametrize("scenario", sorted({mutant.scenario for mutant in MUTANTS} - set(SCENARIOS), key=repr))
def test_with_every_step_no_run_of_the_same_messages_does(scenario: Scenario) -> None:
    assert Exploration(World(scenario)).run().violation is None


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_an_optimisation_or_one_of_two_belts_is_not_needed_for_the_promise(variant: Variant) -> None:
    states = 0
    for scenario in variant.scenarios:
        explored = Exploration(World(scenario, variant.rules)).run()
        assert explored.violation is None, tell(World(scenario, variant.rules), explored.violation.trace)
        states += explored.states
    row = row_of_variant(variant, states)
    assert row in PAGE.read_text(encoding="utf-8"), f"run python -m tests.faults.model: the page does not say {row}"


def test_every_mutant_and_variant_changes_the_rules() -> None:
    assert Rules() not in [mutant.rules for mutant in MUTANTS]
    assert Rules() not in [variant.rules for variant in VARIANTS]


def test_a_shortest_trace_is_told_step_by_step() -> None:
    mutant = next(item for item in MUTANTS if item.row == "ack before the end")
    found = Exploration(mutant.world).run(kind="lost").violation
    assert found is not None
    assert found.trace[-1] == Step("V1", found.trace[-1].who)
    assert tell(mutant.world, found.trace) == [
        " 1. writer A takes a@10",
        " 2. writer A raises the epoch, pending generations are gone",
        " 3. writer A V1: generation 1 is pending",
    ]
