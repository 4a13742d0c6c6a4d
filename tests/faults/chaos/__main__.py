"""`python -m tests.faults.chaos [--seed N] [--events N] [--all-faults] [--out DIR]`, from the root of the checkout."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # where the tests' fleet and servers lie

from tests.faults.chaos.check import judge_files, report
from tests.faults.chaos.plan import build_plan
from tests.faults.chaos.run import HISTORY, SNAPSHOT, private_servers, progress, run
from tests.faults.chaos.sizes import BOUNDED, scaled


def main() -> int:
    """Run, judge, report. Exit status 1 where a promise was broken or the attack showed nothing."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--events", type=int, default=BOUNDED.events, help="20000: the long version")
    parser.add_argument("--all-faults", action="store_true", help="as many faults as the long version has")
    parser.add_argument("--out", type=Path, default=Path("chaos-out"), help="directory of history, snapshot and report")
    wanted = parser.parse_args()
    wanted.out.mkdir(parents=True, exist_ok=True)
    plan = build_plan(wanted.seed, scaled(wanted.events, all_faults=wanted.all_faults))
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)  # It reports each refused connection; the history does too.
    progress(f"seed {plan.seed}: {len(plan.events)} events, {len(plan.faults)} faults")
    with private_servers() as (node, postgres):
        asyncio.run(run(plan, node=node, postgres=postgres, out=wanted.out, say=progress))
    judged = judge_files(wanted.out / HISTORY, wanted.out / SNAPSHOT)
    return report(judged, wanted.out)


if __name__ == "__main__":
    sys.exit(main())
