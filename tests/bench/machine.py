"""Where the figures were measured, and what the processes there cost."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Machine:
    """Everything about a run that is not a figure."""

    cpu: str
    cores: int
    memory_gib: float
    python: str
    system: str
    commit: str
    started: str
    load_average: tuple[float, float, float]

    def as_json(self) -> dict[str, Any]:
        """For the report's file."""
        return asdict(self)


def this_machine() -> Machine:
    """The machine as it is now: call it before the first benchmark, for the load average."""
    load = os.getloadavg()
    return Machine(
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        commit=_commit(),
        started=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        load_average=(round(load[0], 2), round(load[1], 2), round(load[2], 2)),
    )


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    git = shutil.which("git")
    if git is None:
        return "unknown"

    def ask(*arguments: str) -> str:
        done = subprocess.run([git, *arguments], capture_output=True, text=True, timeout=10, check=False)
        return done.stdout.strip()

    changed = ask("status", "--porcelain", "--untracked-files=no", "dats_common", "services")
    return f"{ask('rev-parse', '--short', 'HEAD') or 'unknown'}{' + uncommitted changes' if changed else ''}"


# -------------------------------------------------------------------------------------------------------- processes


def children(parent: int, containing: str = "") -> list[int]:
    """Pids of the child processes whose command line contains a text."""
    listings = [each.read_text() for each in Path(f"/proc/{parent}/task").glob("*/children")]
    pids = [int(pid) for listing in listings for pid in listing.split()]
    return [pid for pid in pids if containing in Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")]


def cpu_s(pids: Iterable[int]) -> float:
    """CPU seconds that these processes have used so far, their ended children included."""
    ticks = 0
    for pid in pids:
        # The name, in parentheses, may hold blanks: fields are counted from behind it. Source: proc(5), stat.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    return ticks / _TICKS_PER_S


def resident_mb(pid: int) -> float:
    """Memory of a process that is in RAM now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])  # Source: proc(5), statm.
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def all_cpu_s() -> float:
    """CPU seconds of everything on the machine so far, and what its host took away. Source: proc(5), stat."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_S


def tree(root: int) -> list[int]:
    """A process and all its living descendants."""
    return [root, *(pid for child in children(root) for pid in tree(child))]
