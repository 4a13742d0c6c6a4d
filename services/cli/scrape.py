"""A replica's /metrics, read as numbers: sums of counters, and quantiles of histograms as Prometheus reckons them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True, slots=True)
class Scrape:
    """Samples by name, each with its labels."""

    samples: Mapping[str, Sequence[tuple[Mapping[str, str], float]]]

    @classmethod
    def parse(cls, text: str) -> Scrape:
        """Raises: ValueError: it is not Prometheus' text format."""
        samples: dict[str, list[tuple[Mapping[str, str], float]]] = defaultdict(list)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples[sample.name].append((sample.labels, sample.value))
        return cls(samples)

    def total(self, name: str, *, status_from: int = 0) -> float:
        """The sum over all labels; of HTTP statuses those from `status_from` on."""
        return sum(
            value
            for labels, value in self.samples.get(name, ())
            if not status_from or int(labels.get("status", "0")) >= status_from
        )

    def buckets(self, name: str) -> dict[float, float]:
        """Cumulative counts by upper bound, over all labels."""
        counts: dict[float, float] = defaultdict(float)
        for labels, value in self.samples.get(f"{name}_bucket", ()):
            counts[float(labels["le"])] += value
        return dict(counts)


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """The value below which `share` of the observations lie, linear within a bucket; None: there are none.

    Source: histogram_quantile of PromQL.
    """
    bounds = sorted(buckets)
    if not bounds or buckets[bounds[-1]] <= 0:
        return None
    rank = share * buckets[bounds[-1]]
    index = next(position for position, bound in enumerate(bounds) if buckets[bound] >= rank)
    upper = bounds[index]
    if math.isinf(upper):
        return bounds[index - 1] if index else None
    lower, below = (bounds[index - 1], buckets[bounds[index - 1]]) if index else (0.0, 0.0)
    inside = buckets[upper] - below
    return upper if inside <= 0 else lower + (upper - lower) * (rank - below) / inside
