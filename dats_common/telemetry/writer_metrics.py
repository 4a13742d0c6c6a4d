"""What a writer measures."""

from __future__ import annotations

from dats_common.domain.taint import FlipVerdict, Verdict
from dats_common.telemetry.metrics import CHUNK_BUCKETS_S, WORK_QUEUES, ServiceMetrics

FAILED = "failed"
_VERDICTS = (*dict.fromkeys(each.value for each in (*Verdict, *FlipVerdict) if each is not Verdict.EMBED), FAILED)


class WriterMetrics(ServiceMetrics):
    """Metrics of one writer, active or standby."""

    def __init__(self) -> None:
        super().__init__(taints_by=("taint",))
        self.event_to_searchable = self.histogram(
            "rag_event_to_searchable_seconds",
            "From the producer's time of a validated event to its visibility",
            CHUNK_BUCKETS_S,
        )
        self.events_handled = self.counter(
            "rag_events_handled", "Validated events by verdict", unit="events", labels={"verdict": _VERDICTS}
        )
        self.deliveries_settled = self.counter(
            "rag_deliveries_not_acknowledged",
            "Deliveries retried, given back or dead-lettered",
            unit="deliveries",
            labels={"queue": WORK_QUEUES, "how": ("Retry", "GiveBack", "DeadLetter")},
        )
        self.clamped_times = self.counter(
            "rag_event_times_clamped", "Events whose time was ahead of the ledger's clock", unit="events"
        )
        self.swept = self.counter(
            "rag_swept_generations", "Dead generations the periodic sweep removed: drift", unit="generations"
        )
        self.writer_active = self.gauge(
            "rag_writer_active", "1 while this process believes to be the active writer", unit="1"
        )
