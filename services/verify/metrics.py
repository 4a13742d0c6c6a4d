"""A watch as Prometheus metrics. The only label is the replica, of which there are as many as were named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from dats_common.errors import ConfigurationError
from dats_common.telemetry.metrics import LATENCY_BUCKETS_S
from services.verify.stores import StoreFigures
from services.verify.verdict import ReplicaFigures


class VerifyMetrics:
    """Metrics of one watch, in a registry of its own."""

    def __init__(self, replicas: Sequence[str]) -> None:
        self.registry = CollectorRegistry()
        replica = ("replica",)

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"rag_verify_{name}", text, labels, registry=self.registry)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(f"rag_verify_{name}", text, replica, registry=self.registry, buckets=LATENCY_BUCKETS_S)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"rag_verify_{name}", text, registry=self.registry)

        self.rounds = counter("rounds", "Rounds that came to a verdict", ("result",))
        self.failed = counter("failed_rounds", "Rounds that could not be carried out: something was away")
        self.looks = counter("looks", "Queries for canaries", replica)
        self.unanswered = counter("unanswered_looks", "Queries without an answer", replica)
        self.stale = counter("stale_hits", "Withdrawn canaries in answers to later queries", replica)
        self.unseen = counter("unseen_canaries", "Canaries that were never found", replica)
        self.invisible = histogram("taint_to_invisible_seconds", "From the sending of a taint; the pause is its grain")
        self.searchable = histogram("event_to_searchable_seconds", "From the sending of a canary to its first sight")
        self.last_verdict = gauge("last_verdict_timestamp_seconds", "When the last round came to a verdict")
        self.missing = gauge("missing_points", "Live chunks that the index has no point for")
        self.orphaned = gauge("orphaned_points", "Points that nobody can see, a sweep's time later")
        self.outbox_oldest = gauge("outbox_oldest_seconds", "Age of the oldest unsent event")
        self.dead_letters = gauge("dead_letters", "Messages that were given up")
        self.quarantined = gauge("quarantined_events", "Versions that wait for an operator")
        for name in replicas:  # a counter that appears with its first stale hit would hide that hit from rate()
            for each in (self.looks, self.unanswered, self.stale, self.unseen):
                each.labels(name)

    def add(self, replicas: Sequence[ReplicaFigures], stores: StoreFigures | None, *, well: bool) -> None:
        """One round's verdict."""
        for each in replicas:
            self.looks.labels(each.replica).inc(each.looks)
            self.unanswered.labels(each.replica).inc(each.unanswered)
            self.stale.labels(each.replica).inc(each.stale_hits)
            self.unseen.labels(each.replica).inc(each.unseen)
            for seconds in each.invisible_s:
                self.invisible.labels(each.replica).observe(max(0.0, seconds))
            for seconds in each.searchable_s:
                self.searchable.labels(each.replica).observe(seconds)
        self.rounds.labels("well" if well else "not_well").inc()
        self.last_verdict.set_to_current_time()
        if stores is not None:
            self.missing.set(stores.missing_points)
            self.orphaned.set(stores.orphaned_points)
            self.outbox_oldest.set(stores.outbox_oldest_s)
            self.dead_letters.set(stores.dead_letters)
            self.quarantined.set(stores.quarantined)

    @contextmanager
    def served(self, port: int) -> Iterator[None]:
        """Serve /metrics on every address from a thread. Raises: ConfigurationError: the port is taken."""
        try:
            server, thread = start_http_server(port, registry=self.registry)
        except OSError as error:
            raise ConfigurationError(
                f"cannot serve metrics on port {port}: {error.strerror}; see --metrics-port"
            ) from error
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join(timeout=5.0)
