"""`python -m tests.faults.removals [--name PART] [--json FILE]`, from the root of the checkout."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.faults.removals.lines import REMOVALS, Removal

_TIMEOUT_S = 900
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What noticed that a line was gone; None: nothing did."""

    removal: str
    caught_by: str | None
    seconds: float


def main() -> int:
    """Exit status 1 if nothing noticed the loss of a line."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.removals", description=__doc__)
    parser.add_argument("--name", default="", metavar="PART", help="only removals whose name holds PART")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the verdicts to FILE as well")
    wanted = parser.parse_args()
    verdicts = []
    for removal in REMOVALS:
        if wanted.name in removal.name:
            verdicts.append(_try(removal))
            print(f"{removal.name}: {verdicts[-1].caught_by or 'NOTHING NOTICED'}", flush=True)
    if wanted.json:
        wanted.json.write_text(json.dumps([asdict(each) for each in verdicts], indent=2), encoding="utf-8")
    return int(any(each.caught_by is None for each in verdicts))


def _try(removal: Removal) -> Verdict:
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="removal-") as directory:
        tree = Path(directory)
        archive = subprocess.run(["git", "archive", "HEAD"], check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", directory], input=archive, check=True)
        file = tree / removal.path
        file.write_text(removal.apply(file.read_text(encoding="utf-8")), encoding="utf-8")
        caught_by = next(filter(None, (_first_failure(tree, suite) for suite in removal.suites)), None)
    return Verdict(removal.name, caught_by, round(time.perf_counter() - started, 1))


def _first_failure(tree: Path, suite: str) -> str | None:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", suite]
    # The copy's code, not the installed one, also in the processes that tests start.
    ran = subprocess.run(
        command,
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if ran.returncode == 0:
        return None
    found = _FAILED.search(ran.stdout)
    if ran.returncode != 1 or found is None:
        raise RuntimeError(f"{suite} did not run: {ran.stdout[-2000:]}{ran.stderr[-500:]}")
    return found[1]


if __name__ == "__main__":
    sys.exit(main())
