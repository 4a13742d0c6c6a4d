"""`python -m tests.faults.soak [--minutes 20] [--json FILE]`, from the root of the checkout."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # where the tests' fleet and servers lie

from servers import open_postgres_server, open_rabbitmq_server

from services.cli.console import Voice
from tests.faults.chaos.run import commit, progress
from tests.faults.soak.figures import Growth, growth
from tests.faults.soak.run import soak


def main() -> int:
    """Run, print, write. Exit status 1 where something grows beyond its bound."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the samples and slopes to FILE")
    wanted = parser.parse_args()
    with open_rabbitmq_server() as rabbitmq, open_postgres_server() as postgres:
        soaked = asyncio.run(soak(rabbitmq=rabbitmq, postgres=postgres, duration_s=wanted.minutes * 60, say=progress))
    grown = growth(soaked.samples)
    voice = Voice()
    voice.table(
        f"{wanted.minutes:g} minutes, commit {commit()}, slopes per hour over the second half: {dict(soaked.done)}",
        ("process", "what", "first", "last", "highest", "slope", "bound", ""),
        [_row(each) for each in grown],
    )
    voice.say(f"rows in the ledger: {dict(soaked.rows)}")
    if wanted.json:
        told = {
            "commit": commit(), "minutes": wanted.minutes, "done": soaked.done, "rows": dict(soaked.rows),
            "growth": [asdict(each) | {"good": each.is_good} for each in grown],
            "samples": [asdict(each) for each in soaked.samples],
        }  # fmt: skip
        wanted.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return int(not all(each.is_good for each in grown))


def _row(grown: Growth) -> tuple[str, ...]:
    values = (f"{value:.0f}" for value in (grown.first, grown.last, grown.highest))
    bound = "" if grown.bound is None else f"{grown.bound:.0f}"
    return (grown.process, grown.what, *values, f"{grown.slope:+.1f}", bound, "" if grown.is_good else "GROWS")


if __name__ == "__main__":
    sys.exit(main())
