"""Prometheus metrics under the names of spec 1; dashboards are built on them.

Latencies are histograms: the Python client has no quantiles, p95 comes from recording rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from dats_common.errors import ConfigurationError

CONTENT_TYPE = CONTENT_TYPE_LATEST

# From a cache hit to the deadline; 0.5 s is spec 1's p95 and must be a bound.
LATENCY_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
RESULT_BUCKETS = (0, 1, 2, 3, 5, 10, 20, 50, 100)
TOKEN_BUCKETS = (0, 100, 250, 500, 1000, 2000, 4000, 10_000)
ANSWER_BUCKETS_S = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0)
CHUNK_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

MOST_PROJECTS = 50
OTHER_PROJECT = "other"
NO_PROJECT = "none"


class Metrics:
    """All metrics of one process, in a registry of its own, so that nothing is registered at import."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._projects: set[str] = set()

        def histogram(name: str, text: str, labels: tuple[str, ...], buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, labels, registry=self.registry, buckets=buckets)

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(name, text, labels, registry=self.registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, registry=self.registry)

        self.query_latency = histogram(
            "rag_query_latency_seconds", "Time to answer a query", ("mode",), LATENCY_BUCKETS_S
        )
        self.query_results = histogram("rag_query_results_count", "Sources in an answer", ("mode",), RESULT_BUCKETS)
        self.query_tokens = histogram(
            "rag_query_tokens_used", "Tokens of context in an answer", ("project_id",), TOKEN_BUCKETS
        )
        self.guard_drops = counter(
            "rag_guard_dropped_candidates",
            "Candidates the index proposed and the ledger refused: an unguarded read would have shown them",
        )
        self.answer_latency = histogram(
            "rag_answer_latency_seconds", "From a question to its answer", (), ANSWER_BUCKETS_S
        )
        self.support_latency = histogram(
            "rag_support_latency_seconds",
            "Time a scorer took for one answer's sentences; part of the answer's",
            ("scorer",),
            ANSWER_BUCKETS_S,
        )
        self.support_missing = counter(
            "rag_support_scores_missing", "Sentences that a scorer was asked about and did not score", ("scorer",)
        )
        self.rerank_latency = histogram(
            "rag_rerank_latency_seconds",
            "Time a reranker took for one query, by whether it was done in time; part of the query's",
            ("outcome",),
            LATENCY_BUCKETS_S,
        )
        self.reranked_pairs = counter("rag_reranked_pairs", "Passages that a reranker read with a query")
        self.answers = counter("rag_answers", "Answers by what follows from them", ("action", "grounded"))
        self.refused_citations = counter(
            "rag_citations_refused", "Citations that a model wrote and nobody had issued; they were removed"
        )
        self.truncations = counter(
            "rag_context_truncations", "Prompts that a model server had cut; no answer was given"
        )
        self.http_requests = counter("rag_http_requests", "HTTP requests by route and status", ("route", "status"))
        self.refused_credentials = counter("rag_credentials_refused", "Keys and tokens refused, by reason", ("reason",))
        self.embedding_latency = histogram(
            "rag_embedding_latency_seconds", "From a batch's receipt to its settlement", (), CHUNK_BUCKETS_S
        )
        self.event_to_searchable = histogram(
            "rag_event_to_searchable_seconds",
            "From the producer's time of a validated event to its visibility",
            (),
            CHUNK_BUCKETS_S,
        )
        self.chunks_created = counter("rag_embedding_chunks_created", "Chunks that became searchable")
        self.events_handled = counter("rag_events_handled", "Validated events by verdict", ("verdict",))
        self.deliveries_settled = counter(
            "rag_deliveries_not_acknowledged", "Deliveries retried, given back or dead-lettered", ("queue", "how")
        )
        self.clamped_times = counter("rag_event_times_clamped", "Events whose time was ahead of the ledger's clock")
        self.queue_size = gauge("rag_embedding_queue_size", "Messages that wait for embedding")
        self.invalidations = counter("rag_invalidation_count", "Committed taints", ("reason",))
        self.chunks_removed = counter(
            "rag_invalidation_chunks_removed", "Chunks that were visible before a taint took them away"
        )
        # Spec 1 names this gauge with the ending of a counter; dashboards are built on it.
        self.index_size = gauge("rag_index_size_total", "Live chunks, by the ledger")
        self.index_memory = gauge(
            "rag_index_memory_bytes", "Resident memory of the embedded engine, else of this process"
        )
        self.index_points = gauge("rag_index_points", "Points in the index; more than live chunks until swept")
        self.swept = counter("rag_swept_generations", "Dead generations the periodic sweep removed: drift")
        self.outbox_unsent = gauge("rag_outbox_unsent_events", "Events that wait for the broker")
        self.outbox_age = gauge("rag_outbox_oldest_seconds", "Age of the oldest of them")
        self.quarantined = gauge("rag_quarantined_events", "Validated events that wait for an operator")
        self.dead_letters = gauge("rag_dead_letters", "Messages in the dead-letter queue")
        self.writer_active = gauge("rag_writer_active", "1 while this process believes to be the active writer")

    def project(self, project_id: str | None) -> str:
        """The project as a label, bounded: the first ones by name, later ones together."""
        if project_id is None:
            return NO_PROJECT
        if project_id not in self._projects and len(self._projects) >= MOST_PROJECTS:
            return OTHER_PROJECT
        self._projects.add(project_id)
        return project_id

    @contextmanager
    def timed(self, latency: Histogram, **labels: str) -> Iterator[None]:
        """Observe how long the block takes, also when it raises."""
        started = perf_counter()
        try:
            yield
        finally:
            (latency.labels(**labels) if labels else latency).observe(perf_counter() - started)

    @contextmanager
    def served(self, host: str, port: int) -> Iterator[None]:
        """Serve /metrics from a thread, for a process without HTTP of its own; port 0 serves nothing.

        Raises: ConfigurationError: the port is taken.
        """
        if port == 0:
            yield
            return
        try:
            server, thread = start_http_server(port, host, self.registry)
        except OSError as error:
            raise ConfigurationError(
                f"cannot serve metrics on {host}:{port}: {error.strerror}; set DATS_WRITER_METRICS_PORT to another"
            ) from error
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join(timeout=5.0)

    def exposition(self) -> bytes:
        """The text format that Prometheus scrapes."""
        return generate_latest(self.registry)
