"""Samples over time, how they grow, and how much growth is too much."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of one process, or of a server, at a time in seconds since the load began."""

    at_s: float
    process: str
    what: str
    value: float


@dataclass(frozen=True, slots=True)
class Growth:
    """How one value grew over the second half of the run.

    Attributes:
        slope: per hour, the median of the slopes between all pairs of samples: outliers do not move it.
        bound: the steepest that is allowed; None: only reported.
    """

    process: str
    what: str
    first: float
    last: float
    highest: float
    slope: float
    bound: float | None

    @property
    def is_good(self) -> bool:
        return self.bound is None or self.slope <= self.bound


MIB = "RSS MiB"
FILES = "open files"
SOCKETS = "sockets"
THREADS = "threads"
CONNECTIONS = "connections"
WAITING = "messages waiting"

BOUNDS: Mapping[str, float] = {MIB: 60.0, FILES: 12.0, SOCKETS: 12.0, THREADS: 12.0, CONNECTIONS: 12.0, WAITING: 600.0}
"""Per hour. A leak of a kilobyte per request is 60 MiB an hour at 17 requests a second; of a socket every five minutes,
12."""


def theil_sen(points: Sequence[tuple[float, float]]) -> float:
    """Slope per unit of x; 0 for fewer than two points.

    Source: P. K. Sen, Estimates of the regression coefficient based on Kendall's tau, JASA 63 (1968).
    """
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for number, earlier in enumerate(points)
        for later in points[number + 1 :]
        if later[0] > earlier[0]
    ]
    return statistics.median(slopes) if slopes else 0.0


def growth(samples: Iterable[Sample], *, bounds: Mapping[str, float] = BOUNDS) -> list[Growth]:
    """Of every value of every process, over the second half of the run: the first half is for warming up."""
    series: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for sample in samples:
        series[sample.process, sample.what].append((sample.at_s, sample.value))
    end = max((points[-1][0] for points in series.values()), default=0.0)
    found = []
    for (process, what), points in series.items():
        half = [point for point in points if point[0] >= end / 2] or points
        values = [value for _, value in half]
        slope = theil_sen(half) * HOUR_S
        bound = bounds.get(what) if process not in REPORTED_ONLY else None
        found.append(Growth(process, what, values[0], values[-1], max(values), slope, bound))
    return found


REPORTED_ONLY = frozenset({"broker"})
"""Not our program: its memory is its own affair."""
