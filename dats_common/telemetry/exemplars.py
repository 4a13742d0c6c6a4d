"""Histograms that point to traces: a bucket remembers a trace that fell into it, where traces are recorded."""

from __future__ import annotations

from prometheus_client import Histogram

from dats_common.trace_context import current_trace


class LinkedHistogram(Histogram):
    """A histogram whose observations name the trace they were made in. Source: OpenMetrics 1.0, "Exemplars"."""

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        """As a histogram, with the current trace if it is recorded: one that is not could not be looked at."""
        current = current_trace()
        if exemplar is None and current is not None and current.is_sampled:
            exemplar = {"trace_id": current.trace_id, "span_id": current.span_id}
        super().observe(amount, exemplar)
