"""`python -m tests.faults.simulation --seeds 0:60000 --jobs 2`: progress, resumable, a JSON summary at the end."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from pathlib import Path

from tests.faults.simulation.run import run_seed
from tests.faults.simulation.series import (
    Summary,
    commit,
    describe_failure,
    load,
    now,
    parts,
    quiet,
    run_part,
    start_worker,
)
from tests.faults.simulation.world import open_slots

_PART = 25


def main() -> int:
    """Returns the exit status: 0 if no seed failed."""
    arguments = _arguments()
    first, last = (int(bound) for bound in arguments.seeds.split(":"))
    if arguments.trace:
        return _trace(first)
    out = Path(arguments.out) if arguments.out else None
    known = commit()
    summary = load(out, commit=known, seeds=arguments.seeds) if out else Summary(known, arguments.seeds)
    began, spent_s = now(), summary.wall_s
    with multiprocessing.get_context("spawn").Pool(arguments.jobs, initializer=start_worker) as pool:
        for part in pool.imap_unordered(run_part, parts(first, last, size=_PART, done=summary.done)):
            for failure in part.failures:
                print(describe_failure(failure), flush=True)
            summary.merge(part)
            summary.wall_s = spent_s + now() - began
            if out:
                summary.save(out)
            if summary.runs % (8 * _PART) == 0:
                print(summary.line(), flush=True)
            if arguments.minutes and now() - began > 60 * arguments.minutes:
                pool.terminate()
                break
    print(summary.line())
    return 1 if summary.failures else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.simulation", description=__doc__)
    parser.add_argument("--seeds", default="0:1000", help="FIRST:LAST, the last one not included")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--minutes", type=float, default=0.0, help="stop after so long; 0: when all are done")
    parser.add_argument("--out", default="", help="JSON summary; a series that was interrupted goes on from it")
    parser.add_argument("--trace", action="store_true", help="show what happens in the run of the first seed")
    return parser.parse_args()


def _trace(seed: int) -> int:
    with quiet():
        outcome = run_seed(seed, open_slots())
    print("\n".join(outcome.trace))
    wrong = [*outcome.violations, *outcome.surprises]
    print(f"seed {seed}, digest {outcome.digest}: {'; '.join(wrong) or 'nothing is wrong'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
