"""How searches go: how many, how quick, what they find, what they cost."""

from deploy.grafana.panels import HERE, Board, Limits, Panel, Query, Row, gauge, mean, quantile, quantiles, rate

_LATENCY = "rag_query_latency_seconds"

SEARCH = Board(
    name="search",
    title="DATS RAG / Search",
    means="POST /query, from the request to the response.",
    rows=(
        Row(
            "How quick",
            (
                Panel(
                    "Latency",
                    "Quantiles of queries; dots are single requests, each with its trace. Half a second is promised.",
                    quantiles(_LATENCY),
                    unit="s",
                    limits=Limits(bad=0.5),
                    alert="DatsRagQueryLatencyHigh",
                ),
                Panel(
                    "p95 by mode",
                    "Keyword searches need no vector; hybrid ones have two legs.",
                    [Query("mode:rag_query_latency_seconds:p95_5m", "{{mode}}")],
                    unit="s",
                    limits=Limits(bad=0.5),
                ),
                Panel(
                    "Where the time lies",
                    "Queries by their latency.",
                    [Query(f"sum by (le) (increase({_LATENCY}_bucket{{{HERE}}}[$__rate_interval]))", "{{le}}")],
                    unit="s",
                    kind="heatmap",
                ),
                Panel(
                    "Within half a second",
                    "Share of the queries of an hour.",
                    [Query("rag:query_within_500ms:ratio_rate1h", "1 hour")],
                    unit="percentunit",
                    kind="stat",
                    limits=Limits(warn=0.99, bad=0.95, high=False),
                    width=4,
                ),
                Panel(
                    "Queries",
                    "Queries per second by mode.",
                    [Query("mode:rag_queries:rate5m", "{{mode}}")],
                    unit="reqps",
                    stacked=True,
                ),
                Panel(
                    "HTTP",
                    "Answers by status. 4xx are the caller's, 5xx are ours.",
                    [rate("rag_http_requests_total", by="status")],
                    unit="reqps",
                    stacked=True,
                    width=6,
                    alert="DatsRagQueryErrorBudgetBurn",
                ),
                Panel(
                    "Refused credentials",
                    "Keys and tokens that were refused. A burst is somebody who guesses, or an expired key.",
                    [rate("rag_credentials_refused_total", by="reason")],
                    unit="reqps",
                    width=6,
                ),
            ),
        ),
        Row(
            "What is found",
            (
                Panel(
                    "Outcomes",
                    "`hit`: the best source resembles the question; `weak`: it only has its terms; `empty`: nothing.",
                    [rate("rag_query_outcomes_total", by="outcome")],
                    unit="reqps",
                    stacked=True,
                    alert="DatsRagEmptyResultsHigh",
                ),
                Panel(
                    "Hit rate",
                    "Share of queries whose best source resembles them.",
                    [
                        Query("rag:query_hit:ratio_rate5m", "5 minutes"),
                        Query("rag:query_hit:ratio_rate30m", "30 minutes"),
                    ],
                    unit="percentunit",
                    limits=Limits(warn=0.7, bad=0.5, high=False),
                    alert="DatsRagHitRateLow",
                ),
                Panel(
                    "Empty results",
                    "Share of queries that show nothing.",
                    [
                        Query("rag:query_empty:ratio_rate5m", "5 minutes"),
                        Query("rag:query_empty:ratio_rate30m", "30 minutes"),
                    ],
                    unit="percentunit",
                    limits=Limits(warn=0.15, bad=0.3),
                    alert="DatsRagEmptyResultsHigh",
                ),
                Panel(
                    "Best similarity",
                    "Cosine of the best source. A slow fall: questions drift away from what is indexed.",
                    [quantile("rag_query_best_similarity", 0.5), quantile("rag_query_best_similarity", 0.1)],
                ),
                Panel(
                    "Sources shown",
                    "Mean number of sources, and their share of what was asked for.",
                    [
                        mean("rag_query_results_count", legend="sources"),
                        mean("rag_query_top_k_coverage", legend="share"),
                    ],
                ),
                Panel(
                    "Old sources",
                    "Share of shown sources whose version is older than 90 days.",
                    [Query("rag:sources_older_than_90d:ratio_rate1h", "1 hour")],
                    unit="percentunit",
                ),
                Panel(
                    "Context by project",
                    "Mean tokens of context in an answer.",
                    [mean("rag_query_tokens_used", by="project_id", legend="{{project_id}}")],
                ),
            ),
        ),
        Row(
            "Reranking",
            (
                Panel(
                    "Time of the reranker",
                    "p95 by what came of it; `late` and `failed` keep the order of fusion.",
                    [quantile("rag_rerank_latency_seconds", 0.95, by="outcome", legend="{{outcome}}")],
                    unit="s",
                    limits=Limits(bad=0.5),
                ),
                Panel(
                    "Reranked searches",
                    "Searches by what came of their reranking; where fusion is certain there is none.",
                    [rate("rag_rerank_latency_seconds_count", by="outcome")],
                    unit="reqps",
                    stacked=True,
                ),
                Panel(
                    "Passages read",
                    "Passages that a reranker read with a query.",
                    [rate("rag_reranked_pairs_total", legend="passages")],
                    unit="ops",
                ),
            ),
        ),
        Row(
            "Index",
            (
                Panel(
                    "Chunks",
                    "Live chunks by the ledger, points in the index.",
                    [gauge("rag_index_size_total", legend="live chunks"), gauge("rag_index_points", legend="points")],
                    width=12,
                ),
                Panel(
                    "Memory of the index",
                    "Resident memory of the embedded engine, else of the replica.",
                    [gauge("rag_index_memory_bytes", by="instance", legend="{{instance}}")],
                    unit="bytes",
                    width=12,
                ),
            ),
        ),
    ),
)
