"""Many seeds: figures, failures, and where to go on after an interruption."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import structlog

from tests.faults.simulation.run import Outcome, run_seed
from tests.faults.simulation.sqlite import Slots
from tests.faults.simulation.world import open_slots

_ROOT = Path(__file__).parents[3]
_LEVEL = 50  # logging.CRITICAL: the writers warn of every fault that is injected


@dataclass
class Summary:
    """Figures over the runs so far; adding is in any order."""

    commit: str
    seeds: str
    done: list[tuple[int, int]] = field(default_factory=list)
    runs: int = 0
    dangerous: int = 0
    zombie: int = 0
    events: int = 0
    answers: int = 0
    checked: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    cpu_s: float = 0.0
    wall_s: float = 0.0
    failures: list[dict[str, Any]] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Another run."""
        self.runs += 1
        self.dangerous += outcome.dangerous
        self.zombie += outcome.zombie
        self.events += outcome.events
        self.answers += outcome.answers
        self.checked += outcome.checked
        self.faults.update(outcome.faults)
        self.cpu_s += outcome.cpu_s
        if wrong := [*outcome.violations, *outcome.surprises]:
            self.failures.append({"seed": outcome.seed, "wrong": wrong, "digest": outcome.digest})

    def merge(self, other: Summary) -> None:
        """The figures of a part."""
        self.done = sorted([*self.done, *other.done])
        for name in ("runs", "dangerous", "zombie", "events", "answers", "checked", "cpu_s"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.faults.update(other.faults)
        self.failures += other.failures

    @property
    def dangerous_share(self) -> float:
        """Share of runs in which an unguarded read would have been stale."""
        return self.dangerous / max(1, self.runs)

    def line(self) -> str:
        """For people."""
        return (
            f"{self.runs} runs, {len(self.failures)} failed; {self.events} events, {sum(self.faults.values())} faults; "
            f"{self.answers} answers, {self.checked} results checked; "
            f"{self.dangerous_share:.0%} dangerous, {self.zombie / max(1, self.runs):.0%} with zombie writes; "
            f"{1e3 * self.cpu_s / max(1, self.runs):.0f} ms CPU a run"
        )

    def save(self, path: Path) -> None:
        """As JSON; whole or not at all."""
        beside = path.with_suffix(".part")
        content = asdict(self) | {
            "dangerous_share": round(self.dangerous_share, 4),
            "faults": dict(sorted(self.faults.items())),
        }
        beside.write_text(json.dumps(content, indent=1))
        beside.replace(path)


def load(path: Path, *, commit: str, seeds: str) -> Summary:
    """Where an earlier series of the same seeds and the same commit was interrupted, else a new one."""
    if path.is_file():
        known = json.loads(path.read_text())
        known.pop("dangerous_share")
        if (known["commit"], known["seeds"]) == (commit, seeds):
            known["done"] = [(first, last) for first, last in known["done"]]
            return Summary(**{**known, "faults": Counter(known["faults"])})
    return Summary(commit=commit, seeds=seeds)


def parts(first: int, last: int, *, size: int, done: Iterable[tuple[int, int]] = ()) -> Iterator[tuple[int, int]]:
    """Ranges of at most `size` seeds that are still to be run."""
    known = set(done)
    for start in range(first, last, size):
        part = (start, min(start + size, last))
        if part not in known:
            yield part


def replay_command(seed: int) -> str:
    """What shows a failing run again, exactly."""
    return f"python -m tests.faults.simulation --seeds {seed}:{seed + 1} --trace"


def describe_failure(failure: dict[str, Any]) -> str:
    """For people: what is wrong, and the command that shows it again."""
    wrong = "\n".join(f"  {line}" for line in failure["wrong"])
    return f"seed {failure['seed']} (digest {failure['digest']}):\n{wrong}\n  {replay_command(failure['seed'])}"


def commit() -> str:
    """What is run: the commit, marked if the tree has changes to what is simulated."""
    try:
        name = _git("rev-parse", "--short=12", "HEAD")
        return name + (
            "+changes" if _git("status", "--porcelain", "--", "dats_common", "services", "tests/faults") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=_ROOT, check=True, capture_output=True, text=True, timeout=30
    ).stdout.strip()


@contextmanager
def quiet() -> Iterator[None]:
    """Without the writers' logs."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(_LEVEL))
    try:
        yield
    finally:
        structlog.configure(**before)


def start_worker() -> None:
    """In a process of the series' pool."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the pool
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(_LEVEL))


@lru_cache(maxsize=1)
def _slots() -> Slots:
    return open_slots()


def run_part(part: tuple[int, int]) -> Summary:
    """The runs of some seeds."""
    summary = Summary(commit="", seeds="", done=[part])
    for seed in range(*part):
        summary.add(run_seed(seed, _slots()))
    return summary


def now() -> float:
    """For bounds on a series; a run itself has no clock."""
    return time.monotonic()
