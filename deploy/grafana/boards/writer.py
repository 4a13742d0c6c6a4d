"""What becomes of events."""

from deploy.grafana.panels import Board, Limits, Panel, Query, Row, gauge, quantile, quantiles, rate

WRITER = Board(
    name="writer",
    title="DATS RAG / Writer",
    means="From the broker's queues to what is searchable.",
    rows=(
        Row(
            "Who writes",
            (
                Panel(
                    "Active",
                    "Writers that believe to be the active one: one, two for a moment, none until the first event.",
                    [gauge("rag_writer_active", by="instance", legend="{{instance}}")],
                    kind="state-timeline",
                    words=((0, "waits", "blue"), (1, "active", "green")),
                    alert="DatsRagNoActiveWriter",
                ),
                Panel(
                    "Newest heartbeat",
                    "A writer reports every few seconds; from 15 s on there is none.",
                    [gauge("rag_writer_heartbeat_age_seconds", how="min", legend="age")],
                    unit="s",
                    limits=Limits(bad=15),
                    alert="DatsRagNoActiveWriter",
                ),
                Panel(
                    "CPU of writers",
                    "Embedding takes most of it.",
                    [Query('sum by (instance) (rate(process_cpu_seconds_total{job="rag-writer"}[$__rate_interval]))')],
                ),
            ),
        ),
        Row(
            "What waits",
            (
                Panel(
                    "Messages",
                    "Events and commands that wait in the broker.",
                    [gauge("rag_embedding_queue_size", legend="waiting")],
                    alert="DatsRagQueueOld",
                ),
                Panel(
                    "Oldest message",
                    "Of those in a writer's hands, by their own time; with no writer, since a replica saw them wait.",
                    [gauge("rag_queue_oldest_seconds", by="queue", legend="{{queue}}")],
                    unit="s",
                    limits=Limits(bad=300),
                    alert="DatsRagQueueOld",
                ),
                Panel(
                    "Outbox",
                    "Our events that the broker has not confirmed.",
                    [gauge("rag_outbox_unsent_events", legend="unsent")],
                    width=4,
                    alert="DatsRagOutboxStuck",
                ),
                Panel(
                    "Oldest unsent",
                    "Age of the oldest of them.",
                    [gauge("rag_outbox_oldest_seconds", legend="age")],
                    unit="s",
                    limits=Limits(bad=30),
                    width=4,
                    alert="DatsRagOutboxStuck",
                ),
            ),
        ),
        Row(
            "What becomes of it",
            (
                Panel(
                    "Verdicts",
                    "Validated events by verdict. `live`: searchable; `failed`: to be tried again or given up.",
                    [rate("rag_events_handled_total", by="verdict")],
                    unit="ops",
                    stacked=True,
                ),
                Panel(
                    "Not acknowledged",
                    "Retried, given back because something is away, or dead-lettered.",
                    [rate("rag_deliveries_not_acknowledged_total", by="how")],
                    unit="ops",
                    stacked=True,
                ),
                Panel(
                    "Dead letters",
                    "Messages that were given up; `dats-rag dlq list` says why.",
                    [gauge("rag_dead_letters", legend="dead letters")],
                    kind="stat",
                    limits=Limits(bad=1),
                    width=4,
                    alert="DatsRagDeadLetters",
                ),
                Panel(
                    "Quarantine",
                    "Versions that wait for an operator.",
                    [gauge("rag_quarantined_events", legend="quarantined")],
                    kind="stat",
                    limits=Limits(bad=1),
                    width=4,
                    alert="DatsRagQuarantined",
                ),
                Panel(
                    "Clocks ahead",
                    "Events whose time was ahead of the ledger's clock: a producer's clock is wrong.",
                    [rate("rag_event_times_clamped_total", legend="clamped")],
                    unit="ops",
                ),
            ),
        ),
        Row(
            "How quick",
            (
                Panel(
                    "Searchable after",
                    "From the producer's time to visibility; dots are single events, each with its trace.",
                    quantiles("rag_event_to_searchable_seconds"),
                    unit="s",
                ),
                Panel(
                    "Batches",
                    "From a batch's receipt to its settlement.",
                    [quantile("rag_embedding_latency_seconds", share) for share in (0.5, 0.95)],
                    unit="s",
                ),
                Panel(
                    "Chunks",
                    "Chunks made searchable.",
                    [rate("rag_embedding_chunks_created_total", legend="chunks")],
                    unit="ops",
                ),
            ),
        ),
    ),
)
