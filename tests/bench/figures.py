"""What a benchmark returns, and the arithmetic on samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What a missed target means."""

    RATIO = "ratio"  # holds on any machine; listed first
    PROMISE = "promise"  # must hold on every machine: a miss fails the run
    ABSOLUTE = "absolute"  # depends on the machine and on what else runs there


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number.

    Attributes:
        unit: of `value`; empty for a ratio.
        at_least: the target from below, None where there is none.
        at_most: the target from above, likewise.
        note: how it was measured, where the name does not say.
    """

    benchmark: str
    name: str
    value: float
    unit: str = ""
    kind: Kind = Kind.ABSOLUTE
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one."""
        if self.at_least is None and self.at_most is None:
            return None
        return (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )

    @property
    def target(self) -> str:
        """The target as people write it."""
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        return f"<= {self.at_most:g}" if self.at_most is not None else ""


def percentile(samples: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile: a value that was measured, the largest one where samples are few.

    Raises: ValueError: no samples.
    """
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def latencies(
    benchmark: str, name: str, samples_s: Sequence[float], *percents: float, limits_ms: dict[float, float] | None = None
) -> list[Figure]:
    """A figure for each percentile (100 is the maximum), in milliseconds."""
    bounds = limits_ms or {}
    return [
        Figure(
            benchmark,
            f"{name}, {'max' if percent == 100 else f'p{percent:g}'}",
            percentile(samples_s, percent) * 1e3,
            "ms",
            at_most=bounds.get(percent),
            note=f"n = {len(samples_s)}",
        )
        for percent in percents
    ]
