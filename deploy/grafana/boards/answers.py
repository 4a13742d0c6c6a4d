"""Answers: what follows from them, what they stand on, what the model costs."""

from deploy.grafana.panels import Board, Limits, Panel, Query, Row, gauge, quantile, quantiles, rate

ANSWERS = Board(
    name="answers",
    title="DATS RAG / Answers",
    means="POST /answer and its stream.",
    rows=(
        Row(
            "What comes of questions",
            (
                Panel(
                    "Answers",
                    "CITE: an answer from sources; ROUTE: whom to ask; WITHDRAWN: a stream whose source fell.",
                    [Query("action:rag_answers:rate5m", "{{action}}")],
                    unit="reqps",
                    stacked=True,
                ),
                Panel(
                    "Routed",
                    "Share that names a person instead. Growing: sources are missing, or the model got worse.",
                    [Query("rag:answers_routed:ratio_rate1h", "1 hour")],
                    unit="percentunit",
                    limits=Limits(warn=0.5),
                ),
                Panel(
                    "Recalled",
                    "Answers recalled because what they stood on was withdrawn.",
                    [rate("rag_answers_recalled_total", legend="recalled")],
                    unit="ops",
                ),
            ),
        ),
        Row(
            "How quick",
            (
                Panel(
                    "Latency",
                    "From a question to its answer; a stream counts until its last event. Most of it is the model.",
                    quantiles("rag_answer_latency_seconds"),
                    unit="s",
                    limits=Limits(warn=20, bad=30),
                    alert="DatsRagOllamaDown",
                ),
                Panel(
                    "Judging sentences",
                    "p95 that a scorer adds to an answer.",
                    [quantile("rag_support_latency_seconds", 0.95, by="scorer", legend="{{scorer}}")],
                    unit="s",
                ),
                Panel(
                    "Model server",
                    "Whether it answered the last scrape.",
                    [Query('min by (instance) (rag_dependency_up{dependency="ollama"})', "{{instance}}")],
                    kind="state-timeline",
                    words=((0, "away", "red"), (1, "answers", "green")),
                    alert="DatsRagOllamaDown",
                ),
            ),
        ),
        Row(
            "What they stand on",
            (
                Panel(
                    "Citations",
                    "Citations of sources that were issued, and those that a model made up; the latter are removed.",
                    [
                        rate("rag_citations_valid_total", legend="valid"),
                        rate("rag_citations_refused_total", legend="refused"),
                    ],
                    unit="ops",
                ),
                Panel(
                    "Valid citations",
                    "Share of what the model cited.",
                    [Query("rag:citations_valid:ratio_rate1h", "1 hour")],
                    unit="percentunit",
                    kind="stat",
                    limits=Limits(warn=0.98, bad=0.9, high=False),
                    width=4,
                ),
                Panel(
                    "Sentences not judged",
                    "A scorer was away or late; strict answers are routed.",
                    [rate("rag_support_scores_missing_total", by="scorer")],
                    unit="ops",
                    width=6,
                ),
                Panel(
                    "Prompts cut",
                    "The model's window is smaller than `answers.models` says; no answer was given.",
                    [rate("rag_context_truncations_total", legend="cut")],
                    unit="ops",
                    width=6,
                    alert="DatsRagContextTruncated",
                ),
            ),
        ),
        Row(
            "What the model costs",
            (
                Panel(
                    "Tokens",
                    "By the model server's own count.",
                    [Query("model:rag_model_tokens:rate5m", "{{model}} {{kind}}")],
                    unit="ops",
                    width=12,
                ),
                Panel(
                    "Tokens an answer",
                    "All that a model read and wrote, over all answers.",
                    [Query("sum(model:rag_model_tokens:rate5m) / (rag:answers:rate5m > 0)", "tokens")],
                    width=6,
                ),
                Panel(
                    "Memory of replicas",
                    "Drafts in hand are small; a slope is a leak.",
                    [
                        gauge(
                            "process_resident_memory_bytes",
                            by="instance",
                            where='job="rag-query"',
                            legend="{{instance}}",
                        )
                    ],
                    unit="bytes",
                    width=6,
                ),
            ),
        ),
    ),
)
