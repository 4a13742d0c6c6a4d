"""Latencies point to the traces they were measured in, for whoever asks for OpenMetrics."""

from __future__ import annotations

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from dats_common.telemetry.replica_metrics import QueryMetrics
from dats_common.trace_context import TraceContext, within_trace

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
TRACE = TraceContext("a" * 32, "b" * 16, is_sampled=True)


def exemplars(metrics: QueryMetrics, name: str) -> list[dict[str, str]]:
    shown, content_type = metrics.exposition(OPENMETRICS)
    assert content_type.startswith("application/openmetrics-text")
    families = text_string_to_metric_families(shown.decode())
    samples = next(family for family in families if family.name == name).samples
    return [sample.exemplar.labels for sample in samples if sample.exemplar]


def test_an_observation_in_a_recorded_trace_names_it() -> None:
    metrics = QueryMetrics()
    with within_trace(TRACE), metrics.timed(metrics.query_latency, mode="hybrid"):
        pass
    with within_trace(TRACE):
        metrics.answer_latency.observe(0.2)
    named = [{"trace_id": "a" * 32, "span_id": "b" * 16}]
    assert exemplars(metrics, "rag_query_latency_seconds") == named
    assert exemplars(metrics, "rag_answer_latency_seconds") == named
    assert b"trace_id" not in metrics.exposition()[0]


def test_one_without_a_trace_and_one_that_nobody_records_name_none() -> None:
    metrics = QueryMetrics()
    metrics.answer_latency.observe(0.2)
    with within_trace(TraceContext("a" * 32, "b" * 16, is_sampled=False)):
        metrics.answer_latency.observe(0.3)
    assert exemplars(metrics, "rag_answer_latency_seconds") == []
