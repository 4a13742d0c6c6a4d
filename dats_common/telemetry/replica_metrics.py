"""What a query replica measures. Names of spec 1 first; dashboards are built on them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from dats_common.contracts.api import CANARY_PROJECT
from dats_common.records import Drafted
from dats_common.telemetry.metrics import LATENCY_BUCKETS_S, FirstNames, ServiceMetrics

RESULT_BUCKETS = (0, 1, 2, 3, 5, 10, 20, 50, 100)
TOKEN_BUCKETS = (0, 100, 250, 500, 1000, 2000, 4000, 10_000)
ANSWER_BUCKETS_S = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0)
RATIO_BUCKETS = (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)
_DAY_S = 86_400.0
AGE_BUCKETS_S = tuple(days * _DAY_S for days in (1 / 24, 1, 7, 30, 90, 180, 365, 730))

MOST_PROJECTS = 50
MOST_MODELS = 20
NO_PROJECT = "none"

_MODES = ("vector", "keyword", "hybrid")
_SCORERS = ("cross_encoder", "judge")
_REFUSALS = ("malformed", "token", "unknown_key", "wrong_secret", "expired", "revoked")
_EVERY_ROUTE_MAY = ("200", "500", "503", "504")
"""What an error budget is reckoned from."""


class QueryMetrics(ServiceMetrics):
    """Metrics of one replica."""

    def __init__(self) -> None:
        super().__init__(taints_by=("api", "batch"))
        self._projects = FirstNames(MOST_PROJECTS)
        self._models = FirstNames(MOST_MODELS)
        self._unserved_since: dict[str, float] = {}
        self._declare_queries()
        self._declare_answers()
        self._declare_requests()
        self._declare_surroundings()

    def _declare_queries(self) -> None:
        mode = {"mode": _MODES}
        self.query_latency = self.histogram(
            "rag_query_latency_seconds", "Time to answer a query", LATENCY_BUCKETS_S, labels=mode
        )
        self.query_results = self.histogram(
            "rag_query_results_count", "Sources in an answer to a query", RESULT_BUCKETS, unit="sources", labels=mode
        )
        self.query_tokens = self.histogram(
            "rag_query_tokens_used",
            "Tokens of context in an answer to a query",
            TOKEN_BUCKETS,
            unit="tokens",
            labels={"project_id": f"the first {MOST_PROJECTS}, `other`; `none`"},
        )
        self.best_similarity = self.histogram(
            "rag_query_best_similarity",
            "The best cosine among a query's sources; 0 where there are none",
            RATIO_BUCKETS,
            unit="cosine",
            labels=mode,
        )
        self.query_outcomes = self.counter(
            "rag_query_outcomes",
            "Queries by what was found: `hit` where the best source is as similar as `query.min_similarity`, `weak` "
            "where it only has the terms, `empty` where nothing was shown; canaries do not count",
            unit="queries",
            labels={**mode, "outcome": ("hit", "weak", "empty")},
        )
        self.top_k_coverage = self.histogram(
            "rag_query_top_k_coverage", "Sources shown of those asked for", RATIO_BUCKETS, unit="share", labels=mode
        )
        self.source_age = self.histogram(
            "rag_query_source_age_seconds", "Age of each source's version when a query showed it", AGE_BUCKETS_S
        )
        self.guard_drops = self.counter(
            "rag_guard_dropped_candidates",
            "Candidates the index proposed and the ledger refused: an unguarded read would have shown them",
            unit="candidates",
        )
        self.guard_failures = self.counter(
            "rag_guard_failures",
            "Looks at the ledger that a search, an answer or a login needed and did not get: nothing was shown",
            unit="looks",
            labels={"step": ("credentials", "read", "last_look", "keep", "find")},
        )
        self.rerank_latency = self.histogram(
            "rag_rerank_latency_seconds",
            "Time a reranker took for one query, by whether it was done in time; part of the query's",
            LATENCY_BUCKETS_S,
            labels={"outcome": ("done", "late", "failed")},
        )
        self.reranked_pairs = self.counter(
            "rag_reranked_pairs", "Passages that a reranker read with a query", unit="passages"
        )

    def _declare_answers(self) -> None:
        scorer = {"scorer": _SCORERS}
        self.answer_latency = self.histogram(
            "rag_answer_latency_seconds", "From a question to its answer", ANSWER_BUCKETS_S
        )
        self.answers = self.counter(
            "rag_answers",
            "Answers by what follows from them; WITHDRAWN are streams whose source fell meanwhile",
            unit="answers",
            labels={"action": ("CITE", "ROUTE", "WITHDRAWN"), "grounded": ("true", "false")},
            only=[("CITE", "true"), ("ROUTE", "true"), ("ROUTE", "false"), ("WITHDRAWN", "false")],
        )
        self.valid_citations = self.counter(
            "rag_citations_valid", "Citations in answers, each of a source that was issued for it", unit="citations"
        )
        self.refused_citations = self.counter(
            "rag_citations_refused",
            "Citations that a model wrote and nobody had issued; they were removed",
            unit="citations",
        )
        self.truncations = self.counter(
            "rag_context_truncations", "Prompts that a model server had cut; no answer was given", unit="prompts"
        )
        self.model_tokens = self.counter(
            "rag_model_tokens",
            "Tokens by the model server's own count: drafts, ratings and verdicts",
            unit="tokens",
            labels={"model": f"the first {MOST_MODELS}, `other`", "kind": "`prompt`, `completion`"},
        )
        self.support_latency = self.histogram(
            "rag_support_latency_seconds",
            "Time a scorer took for one answer's sentences; part of the answer's",
            ANSWER_BUCKETS_S,
            labels=scorer,
        )
        self.support_missing = self.counter(
            "rag_support_scores_missing",
            "Sentences that a scorer was asked about and did not score",
            unit="sentences",
            labels=scorer,
        )

    def _declare_requests(self) -> None:
        self.http_requests = self.counter(
            "rag_http_requests",
            "HTTP requests by the route's template, not its path, and the status of the answer",
            unit="requests",
            labels={"route": "routes of the API, `none`", "status": "of HTTP"},
        )
        self.refused_credentials = self.counter(
            "rag_credentials_refused", "Keys and tokens refused", unit="requests", labels={"reason": _REFUSALS}
        )

    def _declare_surroundings(self) -> None:
        self.dependency_up = self.gauge(
            "rag_dependency_up",
            "1 if it answered this scrape within 3 s (`ollama`: 1 s), else 0; asked without any traffic. "
            "The last three only where they are set",
            unit="1",
            labels={"dependency": ("ledger", "index", "encoder", "broker", "ollama", "cross_encoder", "reranker")},
        )
        # Spec 1 names this gauge with the ending of a counter; dashboards are built on it.
        self.index_size = self.gauge("rag_index_size_total", "Live chunks, by the ledger", unit="chunks")
        self.index_memory = self.gauge(
            "rag_index_memory_bytes", "Resident memory of the embedded engine, else of this process", unit="bytes"
        )
        self.index_points = self.gauge(
            "rag_index_points", "Points in the index; more than live chunks until swept", unit="points"
        )
        self.index_drift = self.gauge(
            "rag_index_drift_points",
            "Points less live chunks: above 0 while some wait for the sweep or to be made visible, below 0 where some "
            "are missing. `dats-rag verify` counts both exactly",
            unit="points",
        )
        self.outbox_unsent = self.gauge("rag_outbox_unsent_events", "Events that wait for the broker", unit="events")
        self.outbox_age = self.gauge("rag_outbox_oldest_seconds", "Age of the oldest of them", unit="seconds")
        self.quarantined = self.gauge(
            "rag_quarantined_events", "Validated events that wait for an operator", unit="events"
        )
        self.dead_letters = self.gauge("rag_dead_letters", "Messages in the dead-letter queue", unit="messages")
        self.writer_state = self.gauge(
            "rag_writer_state",
            "1 for what the ledger's newest heartbeat says, an active writer's before others': a writer is `standby` "
            "until its first event; `none` without a beat for 15 s",
            unit="1",
            labels={"state": ("active", "standby", "draining", "none")},
        )
        self.writer_beat_age = self.gauge(
            "rag_writer_heartbeat_age_seconds",
            "Age of that heartbeat; infinite where none was ever heard",
            unit="seconds",
        )

    def declare_routes(self, routes: Sequence[str]) -> None:
        """Have the series of these routes that an error budget needs from the start."""
        for route in routes:
            for status in _EVERY_ROUTE_MAY:
                self.http_requests.labels(route=route, status=status)

    def searched(
        self,
        *,
        mode: str,
        project_id: str | None,
        tokens: int,
        top_k: int,
        relevant_from: float,
        sources: Sequence[tuple[float, int]],
    ) -> None:
        """A query was answered.

        Args:
            relevant_from: the cosine from which on a source is relevant by itself.
            sources: of each that was shown, its cosine and its version (ORD).
        """
        best = max((similarity for similarity, _ in sources), default=0.0)
        found = "empty" if not sources else "hit" if best >= relevant_from else "weak"
        self.query_results.labels(mode=mode).observe(len(sources))
        self.query_tokens.labels(project_id=self.project(project_id)).observe(tokens)
        if project_id == CANARY_PROJECT:
            return  # withdrawn ones are looked for all the time: that nothing is found is well
        self.best_similarity.labels(mode=mode).observe(best)
        self.query_outcomes.labels(mode=mode, outcome=found).inc()
        self.top_k_coverage.labels(mode=mode).observe(len(sources) / top_k)
        now = time.time()
        for _, place in sources:
            self.source_age.observe(max(0.0, now - place / 1e6))

    def project(self, project_id: str | None) -> str:
        """The project as a label, bounded."""
        return NO_PROJECT if project_id is None else self._projects.of(project_id)

    def spent(self, drafted: Drafted) -> None:
        """A model read and wrote so much, by its server's account."""
        for kind, tokens in (("prompt", drafted.prompt_tokens), ("completion", drafted.response_tokens)):
            if tokens is not None:
                self.model_tokens.labels(model=self._models.of(drafted.model), kind=kind).inc(tokens)

    def waits(self, queue: str, *, messages: int, is_served: bool, now_s: float) -> None:
        """A look at a queue.

        Args:
            is_served: some writer reports.
            now_s: of a clock that never goes back.
        """
        if messages and not is_served:
            waited_s = now_s - self._unserved_since.setdefault(queue, now_s)
        else:
            waited_s = 0.0
            self._unserved_since.pop(queue, None)
        self.queue_oldest.labels(queue=queue).set(waited_s)
