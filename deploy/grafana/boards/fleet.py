"""The two arrows, each from left to right, and what they stand on."""

from deploy.grafana.panels import Board, Limits, Panel, Query, Row, gauge, quantile, rate

_UP = ((0, "away", "red"), (1, "answers", "green"))

FLEET = Board(
    name="fleet",
    title="DATS RAG / Fleet",
    means="An event becomes searchable, a question is answered: each row is one way, from left to right.",
    rows=(
        Row(
            "Is it well?",
            (
                Panel(
                    "Alerts",
                    "Rules that fire. Each leads to its heading of the runbook.",
                    [Query('count(ALERTS{alertname=~"DatsRag.*", alertstate="firing"}) or vector(0)', "firing")],
                    kind="stat",
                    limits=Limits(bad=1),
                    width=4,
                ),
                Panel(
                    "Stale canaries",
                    "Withdrawn canaries that a replica showed. One is a broken promise.",
                    [gauge("rag_verify_stale_hits_total", how="sum", legend="stale")],
                    kind="stat",
                    limits=Limits(bad=1),
                    width=4,
                    alert="DatsRagStaleCanary",
                ),
                Panel(
                    "Replicas",
                    "Replicas that Prometheus reaches.",
                    [Query('sum(up{job="rag-query"})', "up")],
                    kind="stat",
                    limits=Limits(warn=2, bad=1, high=False),
                    width=4,
                    alert="DatsRagReplicaDown",
                ),
                Panel(
                    "Writer",
                    "State of the newest heartbeat. `standby` until the first event; `none`: no beat for 15 s.",
                    [Query('max by (state) (rag_writer_state{job=~"$job"}) == 1', "{{state}}")],
                    kind="stat",
                    width=4,
                    alert="DatsRagNoActiveWriter",
                ),
                Panel(
                    "What replicas stand on",
                    "Whether each part answered the last scrape, in the opinion of the worst replica.",
                    [Query('min by (dependency) (rag_dependency_up{job=~"$job"})', "{{dependency}}")],
                    kind="state-timeline",
                    words=_UP,
                    limits=Limits(warn=1, high=False),
                    alert="DatsRagGuardUnreachable",
                ),
            ),
        ),
        Row(
            "event -> consumer -> handler -> pipeline -> index -> event",
            (
                Panel(
                    "1. Waiting",
                    "Messages that wait in the broker. Growing: no writer, or too slow a one.",
                    [gauge("rag_embedding_queue_size", legend="events and commands")],
                    width=5,
                    alert="DatsRagQueueOld",
                ),
                Panel(
                    "2. Judged",
                    "Validated events by verdict.",
                    [rate("rag_events_handled_total", by="verdict")],
                    unit="ops",
                    stacked=True,
                    width=5,
                ),
                Panel(
                    "3. Embedded",
                    "Chunks made searchable.",
                    [Query("rag:chunks_created:rate5m", "chunks")],
                    unit="ops",
                    width=4,
                ),
                Panel(
                    "4. Searchable",
                    "From the producer's time to visibility.",
                    [
                        Query("rag:event_to_searchable_seconds:p50_5m", "p50"),
                        Query("rag:event_to_searchable_seconds:p95_5m", "p95"),
                    ],
                    unit="s",
                    width=5,
                ),
                Panel(
                    "5. Told",
                    "Age of the oldest event that the broker has not confirmed.",
                    [gauge("rag_outbox_oldest_seconds", legend="oldest unsent")],
                    unit="s",
                    limits=Limits(bad=30),
                    width=5,
                    alert="DatsRagOutboxStuck",
                ),
            ),
        ),
        Row(
            "request -> route -> engine -> index -> guard -> response",
            (
                Panel(
                    "1. Asked",
                    "Queries per second by mode.",
                    [Query("mode:rag_queries:rate5m", "{{mode}}")],
                    unit="reqps",
                    stacked=True,
                    width=5,
                ),
                Panel(
                    "2. Found",
                    "`hit`: the best source resembles the question; `weak`: it only has its terms; `empty`: nothing.",
                    [rate("rag_query_outcomes_total", by="outcome")],
                    unit="reqps",
                    stacked=True,
                    width=5,
                    alert="DatsRagEmptyResultsHigh",
                ),
                Panel(
                    "3. Guarded",
                    "Candidates that the ledger refused: what an unguarded read would have shown.",
                    [rate("rag_guard_dropped_candidates_total", legend="refused")],
                    unit="ops",
                    width=4,
                ),
                Panel(
                    "4. Answered in",
                    "p95 of queries. Half a second is promised.",
                    [
                        Query("rag:query_latency_seconds:p95_5m", "p95"),
                        Query("rag:query_latency_seconds:p50_5m", "p50"),
                    ],
                    unit="s",
                    limits=Limits(bad=0.5),
                    width=5,
                    alert="DatsRagQueryLatencyHigh",
                ),
                Panel(
                    "5. Failed",
                    "Share of queries with a 5xx. The budget is 0.1 %.",
                    [
                        Query("rag:query_errors:ratio_rate5m", "5 minutes"),
                        Query("rag:query_errors:ratio_rate1h", "1 hour"),
                    ],
                    unit="percentunit",
                    limits=Limits(warn=0.001, bad=0.0144),
                    width=5,
                    alert="DatsRagQueryErrorBudgetBurn",
                ),
            ),
        ),
        Row(
            "Processes",
            (
                Panel(
                    "CPU",
                    "Cores that each process uses.",
                    [rate("process_cpu_seconds_total", by="job, instance")],
                    unit="short",
                    width=6,
                ),
                Panel(
                    "Memory",
                    "Resident memory.",
                    [gauge("process_resident_memory_bytes", by="job, instance", legend="{{job}} {{instance}}")],
                    unit="bytes",
                    width=6,
                ),
                Panel(
                    "Disk left",
                    "Free share of the file system with the data directory.",
                    [
                        Query(
                            'min by (job, instance) (rag_data_free_bytes{job=~"$job"} / rag_data_size_bytes)',
                            "{{job}} {{instance}}",
                        )
                    ],
                    unit="percentunit",
                    limits=Limits(warn=0.2, bad=0.1, high=False),
                    width=6,
                    alert="DatsRagDiskLow",
                ),
                Panel(
                    "Releases",
                    "Processes by release; two during an upgrade.",
                    [Query('count by (version, job) (rag_build_info{job=~"$job"})', "{{job}} {{version}}")],
                    width=6,
                ),
                Panel(
                    "Slow replicas",
                    "p95 of each replica. One far above the others has a machine's trouble.",
                    [quantile("rag_query_latency_seconds", 0.95, by="instance", legend="{{instance}}")],
                    unit="s",
                    limits=Limits(bad=0.5),
                    width=12,
                    alert="DatsRagQueryLatencyHigh",
                ),
                Panel(
                    "Open files",
                    "File descriptors of each process; a slope that never ends is a leak.",
                    [gauge("process_open_fds", by="job, instance", legend="{{job}} {{instance}}")],
                    width=12,
                ),
            ),
        ),
    ),
)
