"""What `dats-rag verify --watch` measures. The only label is the replica, of which there are as many as were named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from prometheus_client import make_wsgi_app

from dats_common.telemetry.metrics import LATENCY_BUCKETS_S, Metrics
from dats_common.telemetry.serving import served

_EVERY_ADDRESS = "0.0.0.0"  # noqa: S104  a watch shows figures, and Prometheus is elsewhere


class WatchMetrics(Metrics):
    """Metrics of one watch."""

    def __init__(self, replicas: Sequence[str]) -> None:
        super().__init__()
        replica = {"replica": tuple(replicas)}
        self.rounds = self.counter(
            "rag_verify_rounds",
            "Rounds that came to a verdict",
            unit="rounds",
            labels={"result": ("well", "not_well")},
        )
        self.failed = self.counter(
            "rag_verify_failed_rounds", "Rounds that could not be carried out: something was away", unit="rounds"
        )
        self.looks = self.counter("rag_verify_looks", "Queries for canaries", unit="queries", labels=replica)
        self.unanswered = self.counter(
            "rag_verify_unanswered_looks", "Queries without an answer", unit="queries", labels=replica
        )
        self.stale = self.counter(
            "rag_verify_stale_hits",
            "Withdrawn canaries in answers to later queries: a broken promise",
            unit="canaries",
            labels=replica,
        )
        self.unseen = self.counter(
            "rag_verify_unseen_canaries", "Canaries that were never found", unit="canaries", labels=replica
        )
        self.invisible = self.histogram(
            "rag_verify_taint_to_invisible_seconds",
            "From the sending of a taint to the first look that does not see it; the pause between looks is its grain",
            LATENCY_BUCKETS_S,
            labels=replica,
        )
        self.searchable = self.histogram(
            "rag_verify_event_to_searchable_seconds",
            "From the sending of a canary to its first sight",
            LATENCY_BUCKETS_S,
            labels=replica,
        )
        self.last_verdict = self.gauge(
            "rag_verify_last_verdict_timestamp_seconds", "When the last round came to a verdict", unit="Unix time"
        )
        self.missing = self.gauge(
            "rag_verify_missing_points", "Live chunks that the index has no point for", unit="points"
        )
        self.orphaned = self.gauge(
            "rag_verify_orphaned_points", "Points that nobody can see, a sweep's time later", unit="points"
        )
        self.outbox_oldest = self.gauge(
            "rag_verify_outbox_oldest_seconds", "Age of the oldest unsent event", unit="seconds"
        )
        self.dead_letters = self.gauge("rag_verify_dead_letters", "Messages that were given up", unit="messages")
        self.quarantined = self.gauge(
            "rag_verify_quarantined_events", "Versions that wait for an operator", unit="events"
        )

    @contextmanager
    def served(self, port: int) -> Iterator[None]:
        """Serve /metrics on every address from a thread. Raises: ConfigurationError: the port is taken."""
        with served(make_wsgi_app(self.registry), _EVERY_ADDRESS, port, remedy="see --metrics-port"):
            yield
