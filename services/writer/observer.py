"""What the writer's loops tell telemetry."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager

from dats_common.contracts.readable import Names
from dats_common.domain.taint import FlipVerdict, Verdict
from dats_common.records import Delivery, TaintReceipt
from dats_common.telemetry.logs import log
from dats_common.telemetry.writer_metrics import FAILED, WriterMetrics
from dats_common.trace_context import within_trace
from services.writer.handlers import Handled
from services.writer.ports import Handling, untraced

_SHOWN = frozenset({FlipVerdict.LIVE, Verdict.UNCHANGED})


class MetricsObserver:
    """`consumer.Observer` on Prometheus and the log."""

    def __init__(self, metrics: WriterMetrics, *, handling: Handling = untraced) -> None:
        """Args: handling: makes the trace of deliveries current while they are handled."""
        self._metrics = metrics
        self._handling = handling

    def handling(self, deliveries: Sequence[Delivery]) -> AbstractContextManager[None]:
        """See `consumer.Observer`."""
        return self._handling(deliveries)

    def embedded(self, handled: Handled, *, seconds: float) -> None:
        """Count and time; from the producer's time to visibility only where the producer gave one."""
        with within_trace(handled.delivery.trace):  # in a batch each event's figures belong to its own
            self._count(handled, seconds=seconds)

    def _count(self, handled: Handled, *, seconds: float) -> None:
        outcome = handled.outcome
        verdict = outcome.verdict.value if outcome and outcome.verdict and not handled.error else FAILED
        self._metrics.events_handled.labels(verdict=verdict).inc()
        self._metrics.embedding_latency.observe(seconds)
        if outcome is None:
            return
        self._metrics.chunks_created.inc(outcome.chunks)
        self._metrics.clamped_times.inc(outcome.clamped)
        claimed = outcome.event.time.claimed
        if outcome.verdict in _SHOWN and claimed is not None:
            self._metrics.event_to_searchable.observe(max(0.0, time.time() - claimed / 1e6))

    def tainted(self, receipt: TaintReceipt, *, waited_s: float) -> None:
        """Count and time a committed taint, or part of one."""
        chunks = sum(receipt.chunks_removed.values())
        self._metrics.tainted(reason="taint", chunks=chunks, claimed=receipt.claimed, waited_s=waited_s)

    def recalled(self, answers: int) -> None:
        """Count them."""
        self._metrics.answers_recalled.inc(answers)

    def settled(self, queue: str, settlement: str, *, reason: str, names: Names) -> None:
        """Count and log what was not acknowledged."""
        self._metrics.deliveries_settled.labels(queue=queue, how=settlement).inc()
        log("writer").warning(
            "delivery_not_acknowledged",
            queue=queue,
            how=settlement,
            reason=reason[:300],
            event_id=names.event_id,
            tenant_id=names.tenant_id,
        )
