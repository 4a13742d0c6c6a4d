"""Registries of processes: what is there from the start, what keeps them small, what they are never mixed with."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from prometheus_client import parser
from prometheus_client.core import Metric
from prometheus_client.openmetrics import parser as openmetrics

from dats_common.records import Drafted
from dats_common.telemetry.metrics import Metrics
from dats_common.telemetry.page import documented
from dats_common.telemetry.replica_metrics import MOST_MODELS, MOST_PROJECTS, QueryMetrics
from dats_common.telemetry.watch_metrics import WatchMetrics
from dats_common.telemetry.writer_metrics import WriterMetrics

PROCESSES = [QueryMetrics, WriterMetrics, lambda: WatchMetrics(["one", "two"])]
PROMETHEUS_ACCEPTS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,"
    "text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)
"""What release 3 sends with each scrape."""


def values_of(metrics: Metrics, label: str, *, of: str) -> set[str]:
    """The values that the label has in the samples of a family."""
    families = [family for family in metrics.registry.collect() if family.name == of]
    return {sample.labels[label] for family in families for sample in family.samples}


def read_back(metrics: Metrics, accept: str) -> tuple[Iterator[Metric], str]:
    body, content_type = metrics.exposition(accept)
    read = openmetrics if content_type.startswith("application/openmetrics-text") else parser
    return read.text_string_to_metric_families(body.decode()), content_type


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize(
    "accept", ["", "text/plain", "*/*", PROMETHEUS_ACCEPTS, "application/openmetrics-text", ";;=,"]
)
def test_whatever_is_accepted_can_be_read_back_whole(process: type[Metrics], accept: str) -> None:
    metrics = process()
    families, content_type = read_back(metrics, accept)
    samples = {sample.name for family in families for sample in family.samples}
    assert samples == {sample.name for family in metrics.registry.collect() for sample in family.samples}
    assert ("openmetrics" in accept) == ("openmetrics" in content_type)


@pytest.mark.parametrize("process", PROCESSES)
def test_counters_and_histograms_with_known_labels_are_there_from_the_start(process: type[Metrics]) -> None:
    metrics = process()
    there = {sample.name for family in metrics.registry.collect() for sample in family.samples}
    for family in metrics.families:
        is_known = not any(isinstance(values, str) for values in family.labels.values())
        if family.kind != "gauge" and is_known:
            assert (family.name if family.kind == "counter" else f"{family.name}_count") in there, family.name


def test_no_series_says_when_another_one_was_created() -> None:
    text = QueryMetrics().exposition()[0].decode()
    assert "_created{" not in text
    assert "_created " not in text


def test_what_is_documented_is_what_processes_show() -> None:
    """Also of what has no series yet; the library's own process metrics are not ours to document."""
    shown = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for process in PROCESSES
        for family in process().registry.collect()
        if not family.name.startswith("process_")
    }
    assert shown == {family.name for family, _ in documented()}


def test_a_flood_of_projects_and_models_ends_in_one_series() -> None:
    metrics = QueryMetrics()
    for number in range(1000):
        metrics.searched(
            mode="hybrid", project_id=f"project-{number}", tokens=1, top_k=5, relevant_from=0.3, sources=[(0.5, 0)]
        )
        metrics.spent(Drafted(f"model-{number}", prompt_tokens=3, response_tokens=2))
    metrics.searched(mode="hybrid", project_id=None, tokens=1, top_k=5, relevant_from=0.3, sources=[])
    projects = values_of(metrics, "project_id", of="rag_query_tokens_used")
    assert projects == {f"project-{number}" for number in range(MOST_PROJECTS)} | {"other", "none"}
    models = values_of(metrics, "model", of="rag_model_tokens")
    assert models == {f"model-{number}" for number in range(MOST_MODELS)} | {"other"}
    counted = metrics.registry.get_sample_value("rag_model_tokens_total", {"model": "other", "kind": "prompt"})
    assert counted == 3 * (1000 - MOST_MODELS)


def test_two_registries_of_one_process_share_nothing() -> None:
    one, two = QueryMetrics(), QueryMetrics()
    one.guard_drops.inc(5)
    assert two.registry.get_sample_value("rag_guard_dropped_candidates_total") == 0


@pytest.mark.parametrize("variable", ["PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"])
def test_values_that_would_be_shared_through_files_are_refused(variable: str, tmp_path: os.PathLike[str]) -> None:
    program = (
        "from dats_common.errors import ConfigurationError\n"
        "from dats_common.telemetry.replica_metrics import QueryMetrics\n"
        "try:\n    QueryMetrics()\n"
        "except ConfigurationError as error:\n    print(error)\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, variable: str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert "PROMETHEUS_MULTIPROC_DIR is set" in told
