"""Sending spans to a collector, in a thread of its own: whoever is traced waits for none of it."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    Decision,
    ParentBased,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace import Link, SpanKind, TraceState, get_current_span
from opentelemetry.util.types import Attributes

from dats_common.settings.sections import Telemetry
from dats_common.telemetry.logs import log
from dats_common.telemetry.tracing.spans import Tracing

FLUSH_S = 3.0
"""Longest wait for the collector at the end of the process; what it has not taken then is lost."""


class LinkedSampler(Sampler):
    """Records a batch if any of its messages is recorded; all else as the chosen sampler has it."""

    def __init__(self, chosen: Sampler) -> None:
        self._chosen = chosen

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """See `Sampler`."""
        if links and not get_current_span(parent_context).get_span_context().is_valid:
            is_recorded = any(each.context.trace_flags.sampled for each in links)
            return SamplingResult(Decision.RECORD_AND_SAMPLE if is_recorded else Decision.DROP, attributes)
        return self._chosen.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)

    def get_description(self) -> str:
        """See `Sampler`."""
        return f"LinkedSampler{{{self._chosen.get_description()}}}"


class ReportingExporter(SpanExporter):
    """Says once that the collector does not take spans, and once that it does again."""

    def __init__(self, exporter: SpanExporter, *, service: str, endpoint: str) -> None:
        self._exporter = exporter
        self._log = log(service)
        self._endpoint = endpoint
        self._is_failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See `SpanExporter`. Called by one thread."""
        result = self._exporter.export(spans)
        is_failing = result is not SpanExportResult.SUCCESS
        if is_failing and not self._is_failing:
            self._log.warning("traces_not_exported", url=self._endpoint, count=len(spans))
        elif self._is_failing and not is_failing:
            self._log.info("traces_exported_again", url=self._endpoint)
        self._is_failing = is_failing
        return result

    def shutdown(self) -> None:
        """See `SpanExporter`."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """See `SpanExporter`."""
        return self._exporter.force_flush(timeout_millis)


@asynccontextmanager
async def open_tracing(telemetry: Telemetry, *, role: str) -> AsyncIterator[Tracing]:
    """Spans of this process to the collector that is set (OTLP over gRPC); nothing of it can fail a request.

    The SDK reads the other OTEL_ variables: limits of the queue and of the batches, headers, certificates.

    Args:
        role: `query` or `writer`: which process of the service.
    """
    # Its lines come with every failure; what matters is said once, above.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
    provider = TracerProvider(
        resource=Resource.create(
            {
                "service.name": telemetry.service_name,
                "service.version": version("dats-rag"),
                "service.instance.id": f"{role}:{socket.gethostname()}:{os.getpid()}",
            }
        ),
        sampler=LinkedSampler(_sampler(telemetry)),
        shutdown_on_exit=False,
    )
    endpoint = telemetry.collector
    exporter = ReportingExporter(OTLPSpanExporter(endpoint=endpoint), service=role, endpoint=endpoint)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    try:
        yield Tracing(provider.get_tracer("dats_rag"))
    finally:
        await _flushed(provider)


def _sampler(telemetry: Telemetry) -> Sampler:
    by_id = TraceIdRatioBased(telemetry.sampler_ratio)
    root = {"always_on": ALWAYS_ON, "always_off": ALWAYS_OFF, "traceidratio": by_id}
    chosen = root[telemetry.sampler.removeprefix("parentbased_")]
    return ParentBased(chosen) if telemetry.sampler.startswith("parentbased_") else chosen


async def _flushed(provider: TracerProvider) -> None:
    """Give the collector what is left, for at most `FLUSH_S`."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def flush() -> None:
        provider.shutdown()
        with suppress(RuntimeError):  # the loop is gone: the collector took longer than we waited
            loop.call_soon_threadsafe(done.set)

    # A daemon, not the loop's executor: the end of the process waits for the threads of that.
    threading.Thread(target=flush, name="traces-flush", daemon=True).start()
    try:
        async with asyncio.timeout(FLUSH_S):
            await done.wait()
    except TimeoutError:
        log("traces").warning("traces_not_exported", waited_s=FLUSH_S)
