"""Whether the promise holds: canaries, drift, withdrawals, what the guard refused."""

from deploy.grafana.panels import Board, Limits, Panel, Query, Row, gauge, quantiles, rate

TRUST = Board(
    name="trust",
    title="DATS RAG / Trust",
    means="A query that starts after a withdrawal was confirmed never returns the artifact. Is it so?",
    rows=(
        Row(
            "Canaries: `dats-rag verify --watch`",
            (
                Panel(
                    "Stale hits",
                    "Withdrawn canaries in answers to later queries. One is a broken promise.",
                    [gauge("rag_verify_stale_hits_total", how="sum", by="replica", legend="{{replica}}")],
                    kind="stat",
                    limits=Limits(bad=1),
                    width=6,
                    alert="DatsRagStaleCanary",
                ),
                Panel(
                    "Last verdict",
                    "How long ago the watch came to one. Growing: it hangs, or something is away.",
                    [Query("time() - max(rag_verify_last_verdict_timestamp_seconds)", "age")],
                    unit="s",
                    kind="stat",
                    limits=Limits(warn=600, bad=1800),
                    width=6,
                    alert="DatsRagCanaryWatchSilent",
                ),
                Panel(
                    "Verdicts",
                    "Rounds of the last half hour by what they found.",
                    [Query("rag:verify_rounds:increase30m", "{{result}}")],
                    width=6,
                    alert="DatsRagCanaryWatchSilent",
                ),
                Panel(
                    "Rounds that could not be carried out",
                    "Something was away.",
                    [rate("rag_verify_failed_rounds_total", legend="failed")],
                    unit="ops",
                    width=6,
                    alert="DatsRagCanaryWatchSilent",
                ),
                Panel(
                    "Looks",
                    "Queries for canaries, those without an answer, and canaries that were never found.",
                    [
                        rate("rag_verify_looks_total", by="replica", legend="looks {{replica}}"),
                        rate("rag_verify_unanswered_looks_total", by="replica", legend="unanswered {{replica}}"),
                        rate("rag_verify_unseen_canaries_total", by="replica", legend="unseen {{replica}}"),
                    ],
                    unit="ops",
                ),
                Panel(
                    "Invisible after",
                    "p99 of an hour, from the sending of a taint to the first look that did not see it.",
                    [Query("replica:rag_verify_taint_to_invisible_seconds:p99_1h", "{{replica}}")],
                    unit="s",
                ),
                Panel(
                    "Searchable after",
                    "p99 of an hour, from the sending of a canary to its first sight.",
                    [Query("replica:rag_verify_event_to_searchable_seconds:p99_1h", "{{replica}}")],
                    unit="s",
                ),
            ),
        ),
        Row(
            "Drift between ledger and index",
            (
                Panel(
                    "Missing points",
                    "Live chunks that no search finds, until `dats-rag reindex`.",
                    [gauge("rag_verify_missing_points", legend="missing")],
                    kind="stat",
                    limits=Limits(bad=1),
                    width=4,
                    alert="DatsRagIndexDrift",
                ),
                Panel(
                    "Orphaned points",
                    "Points that nobody can see, ten seconds after they were first seen so.",
                    [gauge("rag_verify_orphaned_points", legend="orphaned")],
                    kind="stat",
                    limits=Limits(warn=1),
                    width=4,
                    alert="DatsRagIndexDrift",
                ),
                Panel(
                    "Points less live chunks",
                    "Roughly, at every scrape: above 0 while some wait for the sweep, below 0 where some are missing.",
                    [gauge("rag_index_drift_points", legend="drift")],
                    alert="DatsRagIndexDrift",
                ),
                Panel(
                    "Swept",
                    "Dead generations that the periodic sweep removed. Rising: something writes what nobody sees.",
                    [rate("rag_swept_generations_total", legend="generations")],
                    unit="ops",
                ),
            ),
        ),
        Row(
            "Withdrawals",
            (
                Panel(
                    "Taints",
                    "Committed taints by the way they came.",
                    [Query("reason:rag_invalidations:rate5m", "{{reason}}")],
                    unit="ops",
                    stacked=True,
                ),
                Panel(
                    "Chunks taken away",
                    "Chunks that were visible before.",
                    [rate("rag_invalidation_chunks_removed_total", legend="chunks")],
                    unit="ops",
                ),
                Panel(
                    "Invisible after",
                    "From a taint's own time to its commit; from then on no replica shows it.",
                    quantiles("rag_taint_to_invisible_seconds"),
                    unit="s",
                ),
                Panel(
                    "Answers recalled",
                    "Answers that stood on what was withdrawn.",
                    [rate("rag_answers_recalled_total", legend="recalled")],
                    unit="ops",
                ),
                Panel(
                    "Not told yet",
                    "Age of the oldest event that others have not heard.",
                    [
                        gauge("rag_outbox_oldest_seconds", legend="as replicas see it"),
                        gauge("rag_verify_outbox_oldest_seconds", legend="as the watch sees it"),
                    ],
                    unit="s",
                    limits=Limits(bad=30),
                    alert="DatsRagOutboxStuck",
                ),
                Panel(
                    "For people to decide",
                    "Dead letters and quarantined versions, as the watch sees them.",
                    [
                        gauge("rag_verify_dead_letters", legend="dead letters"),
                        gauge("rag_verify_quarantined_events", legend="quarantined"),
                    ],
                    limits=Limits(bad=1),
                    alert="DatsRagQuarantined",
                ),
            ),
        ),
        Row(
            "The guard",
            (
                Panel(
                    "Refused candidates",
                    "What an unguarded read would have shown. Fast without taints: the index is far behind.",
                    [rate("rag_guard_dropped_candidates_total", by="instance")],
                    unit="ops",
                    width=12,
                ),
                Panel(
                    "Looks that failed",
                    "Searches, answers and logins that could not ask the ledger. Nothing was shown.",
                    [rate("rag_guard_failures_total", by="step")],
                    unit="ops",
                    width=12,
                    alert="DatsRagGuardUnreachable",
                ),
            ),
        ),
    ),
)
