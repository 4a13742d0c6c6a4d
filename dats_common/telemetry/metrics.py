"""What every process measures, and how: a registry of its own, in which each metric says what it means.

Latencies are histograms: the Python client has no quantiles, p95 comes from recording rules.
docs/metrics.md is written from these declarations (`dats_common.telemetry.page`).
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Literal, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    values,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics import MetricWrapperBase

from dats_common.contracts.topology import COMMANDS_QUEUE, TAINTS_QUEUE, VALIDATED_QUEUE
from dats_common.errors import ConfigurationError
from dats_common.telemetry.exemplars import LinkedHistogram

# From a cache hit to the deadline; 0.5 s is spec 1's p95 and must be a bound.
LATENCY_BUCKETS_S = (
    0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.075, 0.1, 0.125, 0.15, 0.2, 0.25, 0.35, 0.5, 0.75,
    1.0, 1.5, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
CHUNK_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

WORK_QUEUES = (VALIDATED_QUEUE, COMMANDS_QUEUE, TAINTS_QUEUE)

Labels = Mapping[str, Sequence[str] | str]
"""The values of each label: all of them, or in words where they come from outside and are bounded."""

_M = TypeVar("_M", bound=MetricWrapperBase)


@dataclass(frozen=True, slots=True)
class Family:
    """One metric as operators know it.

    Attributes:
        name: as it is scraped; a histogram has `_bucket`, `_sum` and `_count` behind it.
        unit: of its value.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    unit: str
    labels: Labels = field(default_factory=dict)


class FirstNames:
    """Names from outside as values of a label, bounded: the first ones by themselves, later ones together."""

    def __init__(self, most: int, *, others: str = "other") -> None:
        self._most = most
        self._others = others
        self._names: set[str] = set()

    def of(self, name: str) -> str:
        """The label's value for `name`."""
        if name not in self._names and len(self._names) >= self._most:
            return self._others
        self._names.add(name)
        return name


class Metrics:
    """Metrics of one process, in a registry of its own, so that nothing is registered at import.

    A process is scraped at a port of its own, and Prometheus adds up: docs/adr/0010-one-registry-a-process.md.

    Raises: ConfigurationError: the client library was told to share its values with other processes.
    """

    def __init__(self) -> None:
        if values.ValueClass.__name__ != "MutexValue":
            raise ConfigurationError(
                "PROMETHEUS_MULTIPROC_DIR is set: metrics of several processes would be mixed in its files; unset it, "
                "and scrape each process at its own port (docs/metrics.md)"
            )
        # A series more for each that there is, and no dashboard asks for it.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.families: list[Family] = []
        ProcessCollector(registry=self.registry)
        build = self.gauge("rag_build_info", "1; which release this process runs", unit="1", labels={"version": "one"})
        build.labels(version=version("dats-rag")).set(1)

    def counter(
        self, name: str, meaning: str, *, unit: str, labels: Labels | None = None, only: Iterable[Sequence[str]] = ()
    ) -> Counter:
        """A counter, named without `_total`. See `_declared`."""
        family = Family(f"{name}_total", "counter", meaning, unit, labels or {})
        return self._declared(family, Counter(name, meaning, tuple(family.labels), registry=self.registry), only)

    def gauge(self, name: str, meaning: str, *, unit: str, labels: Labels | None = None) -> Gauge:
        """A gauge. One with labels has no series until it is set."""
        family = Family(name, "gauge", meaning, unit, labels or {})
        self.families.append(family)
        return Gauge(name, meaning, tuple(family.labels), registry=self.registry)

    def histogram(
        self, name: str, meaning: str, buckets: Sequence[float], *, unit: str = "seconds", labels: Labels | None = None
    ) -> Histogram:
        """A histogram. See `_declared`."""
        family = Family(name, "histogram", meaning, unit, labels or {})
        made = LinkedHistogram(name, meaning, tuple(family.labels), registry=self.registry, buckets=buckets)
        return self._declared(family, made, ())

    def _declared(self, family: Family, metric: _M, only: Iterable[Sequence[str]]) -> _M:
        """The metric, with a series at 0 for each combination of known labels (or for `only` those): the first
        increment of one that appears with it would be hidden from rate()."""
        self.families.append(family)
        known = [each for each in family.labels.values() if not isinstance(each, str)]
        if family.labels and len(known) == len(family.labels):
            for combination in only or product(*known):
                metric.labels(*combination)
        return metric

    @contextmanager
    def timed(self, latency: Histogram, **labels: str) -> Iterator[None]:
        """Observe how long the block takes, also when it raises."""
        started = perf_counter()
        try:
            yield
        finally:
            (latency.labels(**labels) if labels else latency).observe(perf_counter() - started)

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """What Prometheus scrapes and its content type: OpenMetrics for whoever accepts that, else the plain text."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type


class ServiceMetrics(Metrics):
    """What replicas and writers have in common.

    Spec 1's names are at every replica, also those that only a writer moves; dashboards are built on them.
    """

    def __init__(self, *, taints_by: Sequence[str]) -> None:
        super().__init__()
        self.embedding_latency = self.histogram(
            "rag_embedding_latency_seconds",
            "From a batch's receipt to its settlement; replicas show 0",
            CHUNK_BUCKETS_S,
        )
        self.chunks_created = self.counter(
            "rag_embedding_chunks_created", "Chunks that became searchable; replicas show 0", unit="chunks"
        )
        self.queue_size = self.gauge(
            "rag_embedding_queue_size", "Messages that wait for embedding, events and commands", unit="messages"
        )
        self.queue_oldest = self.gauge(
            "rag_queue_oldest_seconds",
            "Of a writer: age of the message that it has had in hand longest (0: none), by its AMQP timestamp, else "
            "its own time, else since its receipt; those that wait came later. Of a replica: for how long it has seen "
            "messages wait while no writer reports (0: not so)",
            unit="seconds",
            labels={"queue": WORK_QUEUES},
        )
        self.invalidations = self.counter(
            "rag_invalidation_count",
            "Committed taints, by the way they came: events, DELETE /embeddings, POST /embeddings/batch-invalidate",
            unit="taints",
            labels={"reason": taints_by},
        )
        self.chunks_removed = self.counter(
            "rag_invalidation_chunks_removed", "Chunks that were visible before a taint took them away", unit="chunks"
        )
        self.taint_to_invisible = self.histogram(
            "rag_taint_to_invisible_seconds",
            "From a taint's own time, else from its receipt, to its commit: invisible from then on, everywhere",
            CHUNK_BUCKETS_S,
        )
        self.answers_recalled = self.counter(
            "rag_answers_recalled", "Answers recalled because what they stood on was withdrawn", unit="answers"
        )
        self.data_free = self.gauge(
            "rag_data_free_bytes", "Free space of the file system that the data directory is on", unit="bytes"
        )
        self.data_size = self.gauge("rag_data_size_bytes", "Size of that file system", unit="bytes")

    def tainted(self, *, reason: str, chunks: int, claimed: int | None, waited_s: float) -> None:
        """A taint, or a part of one, was committed just now.

        Args:
            claimed: its own time (ORD), if it has one.
            waited_s: since it was received here.
        """
        self.invalidations.labels(reason=reason).inc()
        self.chunks_removed.inc(chunks)
        self.taint_to_invisible.observe(waited_s if claimed is None else max(0.0, time.time() - claimed / 1e6))

    def watch_disk(self, data_dir: Path) -> None:
        """Have each scrape look at the data directory's file system, also before there is such a directory."""
        self.data_free.set_function(lambda: disk_of(data_dir)[0])
        self.data_size.set_function(lambda: disk_of(data_dir)[1])


def disk_of(path: Path) -> tuple[float, float]:
    """Free bytes and all of them; not a number where the system does not tell."""
    there = next((each for each in (path, *path.absolute().parents) if each.exists()), path)
    try:
        usage = shutil.disk_usage(there)
    except OSError:
        return math.nan, math.nan
    return float(usage.free), float(usage.total)
