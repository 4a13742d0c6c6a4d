"""The broker and the index as servers, by their own metrics; and what we know of an embedded index."""

from deploy.grafana.panels import Board, Limits, Panel, Query, Row

_QDRANT = "a Qdrant server"


def _queue(metric: str) -> list[Query]:
    return [Query(f'sum by (queue) (rabbitmq_detailed_queue_{metric}{{queue=~"rag-service.*"}})', "{{queue}}")]


def _broker_rate(*metrics: str) -> list[Query]:
    return [
        Query(f"sum(rate(rabbitmq_global_messages_{each}_total[$__rate_interval]))", each.replace("_", " "))
        for each in metrics
    ]


def _qdrant_rate(metric: str, by: str) -> list[Query]:
    return [Query(f'sum by ({by}) (rate({metric}{{job="qdrant"}}[$__rate_interval]))', f"{{{{{by}}}}}")]


SERVERS = Board(
    name="servers",
    title="DATS RAG / RabbitMQ and Qdrant",
    means="The broker's plugin rabbitmq_prometheus, and Qdrant's own metrics where it is a server.",
    jobs="rabbitmq.*|qdrant|rag-query",
    rows=(
        Row(
            "RabbitMQ: our queues",
            (
                Panel(
                    "Ready",
                    "Messages that wait. `rag-service-published` keeps the last 10,000 by design.",
                    _queue("messages_ready"),
                    alert="DatsRagQueueOld",
                ),
                Panel("Handed out", "Messages that a writer has in hand.", _queue("messages_unacked")),
                Panel(
                    "Consumers",
                    "Of `rag-service-events` all writers, of which one is served.",
                    _queue("consumers"),
                    alert="DatsRagNoActiveWriter",
                ),
            ),
        ),
        Row(
            "RabbitMQ: the node",
            (
                Panel(
                    "Messages",
                    "What publishers sent and what was confirmed.",
                    _broker_rate("received", "confirmed", "routed"),
                    unit="ops",
                ),
                Panel(
                    "Delivered",
                    "What consumers got, and what they got again.",
                    _broker_rate("delivered", "redelivered", "acknowledged"),
                    unit="ops",
                ),
                Panel(
                    "Unroutable",
                    "Above 0: the topology is broken, see the queues' bindings.",
                    _broker_rate("unroutable_returned", "unroutable_dropped"),
                    unit="ops",
                    limits=Limits(bad=0.001),
                ),
                Panel(
                    "Memory",
                    "Used, and the limit at which it stops publishers.",
                    [
                        Query("sum by (instance) (rabbitmq_process_resident_memory_bytes)", "used {{instance}}"),
                        Query("sum by (instance) (rabbitmq_resident_memory_limit_bytes)", "limit {{instance}}"),
                    ],
                    unit="bytes",
                ),
                Panel(
                    "Disk",
                    "Free, and the limit at which it stops publishers.",
                    [
                        Query("min by (instance) (rabbitmq_disk_space_available_bytes)", "free {{instance}}"),
                        Query("min by (instance) (rabbitmq_disk_space_available_limit_bytes)", "limit {{instance}}"),
                    ],
                    unit="bytes",
                    alert="DatsRagDiskLow",
                ),
                Panel(
                    "Connections",
                    "Each process has one or two.",
                    [Query("sum(rabbitmq_connections)", "connections"), Query("sum(rabbitmq_channels)", "channels")],
                ),
            ),
        ),
        Row(
            "The index, embedded or not",
            (
                Panel(
                    "Points",
                    "As replicas count them.",
                    [Query("max(rag_index_points)", "points"), Query("max(rag_index_size_total)", "live chunks")],
                ),
                Panel(
                    "Memory",
                    "Of the embedded engine; with a server this is the replica's own.",
                    [Query("max by (instance) (rag_index_memory_bytes)", "{{instance}}")],
                    unit="bytes",
                ),
                Panel(
                    "Answers",
                    "Whether it answered replicas at the last scrape.",
                    [Query('min by (instance) (rag_dependency_up{dependency="index"})', "{{instance}}")],
                    kind="state-timeline",
                    words=((0, "away", "red"), (1, "answers", "green")),
                ),
            ),
        ),
        Row(
            "Qdrant as a server (empty with the embedded engine, which serves no metrics)",
            (
                Panel(
                    "Vectors",
                    "Vectors of all collections.",
                    [Query('sum by (instance) (collections_vector_total{job="qdrant"})', "{{instance}}")],
                    only_with=_QDRANT,
                ),
                Panel(
                    "Calls",
                    "Answered gRPC calls by endpoint.",
                    _qdrant_rate("grpc_responses_total", "endpoint"),
                    unit="ops",
                    only_with=_QDRANT,
                ),
                Panel(
                    "Failed calls",
                    "gRPC calls that failed.",
                    _qdrant_rate("grpc_responses_fail_total", "endpoint"),
                    unit="ops",
                    limits=Limits(bad=0.001),
                    only_with=_QDRANT,
                ),
                Panel(
                    "Duration",
                    "p95 of gRPC calls by endpoint.",
                    [
                        Query(
                            "histogram_quantile(0.95, sum by (endpoint, le) "
                            '(rate(grpc_responses_duration_seconds_bucket{job="qdrant"}[$__rate_interval])))',
                            "{{endpoint}}",
                        )
                    ],
                    unit="s",
                    only_with=_QDRANT,
                ),
                Panel(
                    "Memory",
                    "Resident memory.",
                    [Query('max by (instance) (memory_resident_bytes{job="qdrant"})', "{{instance}}")],
                    unit="bytes",
                    only_with=_QDRANT,
                ),
                Panel(
                    "Dead replicas",
                    "Replicas of shards that are not active (Qdrant 1.16 and later, clusters).",
                    [Query('max by (instance) (collection_dead_replicas{job="qdrant"})', "{{instance}}")],
                    limits=Limits(bad=1),
                    only_with=_QDRANT,
                ),
            ),
        ),
    ),
)
