"""Explore everything and print the tables of docs/reliability.md: `python -m tests.faults.model [deep|traces]`."""

from __future__ import annotations

import sys

from .explore import Exploration
from .mutants import MUTANTS, VARIANTS
from .scenarios import SCENARIOS, deeper
from .state import World
from .story import row_of_mutant, row_of_scenario, row_of_variant, tell


def main(how: str) -> None:
    """Print as it goes; with `traces` the mutants' stories only, with `deep` the scenarios with more faults only."""
    for mutant in MUTANTS:
        found = Exploration(mutant.world).run(kind=mutant.kind)
        if how == "":
            print(row_of_mutant(mutant, found), flush=True)
        elif how == "traces" and found.violation:
            print(f"\n{mutant.row}: {mutant.name}\n  {found.violation.kind}: {found.violation.invariant}")
            print("\n".join(tell(mutant.world, found.violation.trace)), flush=True)
    if how == "traces":
        return
    if how == "":
        for variant in VARIANTS:
            states = sum(Exploration(World(one, variant.rules)).run().states for one in variant.scenarios)
            print(row_of_variant(variant, states), flush=True)
    for scenario in SCENARIOS:
        chosen = deeper(scenario) if how == "deep" else scenario
        explored = Exploration(World(chosen)).run()
        print(row_of_scenario(chosen, explored), f"{explored.seconds:.0f} s", explored.violation or "", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:2] or [""])
