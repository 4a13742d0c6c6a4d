"""Spans of a writer and a replica in one process, a real collector, and what a bad one does to requests: nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from time import perf_counter
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from otlp_receiver import Receiver, open_receiver, tree
from rig import Rig
from servers import free_port
from structlog.testing import capture_logs

from dats_common.adapters.memory_reranker import MemoryReranker
from dats_common.clients.rag import RAGClient
from dats_common.domain.access import Caller
from dats_common.errors import ConfigurationError, Unauthenticated
from dats_common.settings import Settings, load_settings
from dats_common.telemetry.tracing.attributes import ATTRIBUTES, allowed, id_or_none
from dats_common.telemetry.tracing.export import FLUSH_S
from dats_common.telemetry.tracing.models import TracedReranker
from dats_common.telemetry.tracing.spans import Tracing
from dats_common.trace_context import TraceContext, current_trace, within_trace
from services.backends import open_tracing
from services.query.reranking import RerankRules
from services.query.tracing import QueryTracing

REPORT = "a report on invoices with totals and dates"
ABOVE = TraceContext("a" * 32, "b" * 16, is_sampled=True, is_remote=True)


@pytest.fixture
def collector() -> Iterator[Receiver]:
    with open_receiver() as receiver:
        yield receiver


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")


@asynccontextmanager
async def tracing_to(url: str, **variables: str) -> AsyncIterator[Tracing]:
    """As a replica has it with these variables in its environment."""
    settings = load_settings(None, {"OTEL_EXPORTER_OTLP_ENDPOINT": url, **variables})
    async with open_tracing(settings, role="query") as tracing:
        assert tracing is not None
        yield tracing


@asynccontextmanager
async def traced_replica(rig: Rig, tracing: Tracing) -> AsyncIterator[httpx.AsyncClient]:
    """A replica on the twins with the spans that the wiring puts around."""
    rig.validated("invoices", REPORT)
    async with rig.writer():
        await rig.all_live("invoices")
    async with rig.replica(tracing=QueryTracing(tracing, Settings())) as client:
        yield client


async def asked(client: httpx.AsyncClient, **more: Any) -> float:
    """Seconds that a query took."""
    started = perf_counter()
    headers = {"traceparent": ABOVE.traceparent}
    answer = await client.post("/api/v1/query", json={"query": REPORT, **more}, headers=headers)
    assert answer.status_code == 200
    assert len(answer.json()["sources"]) == 1
    return perf_counter() - started


async def test_a_reranker_is_a_step_of_the_query_and_its_latency_names_the_trace(rig: Rig, collector: Receiver) -> None:
    async with tracing_to(collector.url) as tracing:
        rig.reranker, rig.rerank = (
            TracedReranker(MemoryReranker(), tracing),
            RerankRules(deadline_s=30.0, certain_lead=1.0),
        )
        async with traced_replica(rig, tracing) as client:
            await asked(client, rerank=True)
            shown = await client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert f'trace_id="{ABOVE.trace_id}"' in shown.text, "an exemplar of the query's latency"
    spans = collector.trace(ABOVE.trace_id)
    (query,) = [span for span in spans if span.name == "rag.query"]
    assert "rerank" in tree(spans, below=query.span_id)
    (rerank,) = [span for span in spans if span.name == "rerank"]
    assert rerank.attributes["rag.items"] == 1


# ----------------------------------------------------------------------------------------------------- bad collectors


async def test_a_collector_that_hangs_delays_no_request_and_is_named_once(
    rig: Rig, collector: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "64")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "32")
    collector.hangs = True
    with capture_logs() as lines:
        async with tracing_to(collector.url) as tracing, traced_replica(rig, tracing) as client:
            await asked(client)
            assert await asyncio.to_thread(collector.asked.wait, 10), "the collector has a batch, and hangs"
            slowest = max([await asked(client) for _ in range(100)])  # more spans than the queue holds
            assert slowest < 0.9, "a request that waited for the collector would take its second"
            async with asyncio.timeout(10):
                while not any(line["event"] == "traces_not_exported" for line in lines):
                    await asyncio.sleep(0.02)
                await asyncio.sleep(1.5)  # the next batch fails as well
    said = [line for line in lines if line["event"] == "traces_not_exported" and "url" in line]
    assert [line["url"] for line in said] == [collector.url]


async def test_a_collector_that_is_away_fails_no_request_and_its_return_is_told(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    with capture_logs() as lines:
        async with tracing_to(f"http://127.0.0.1:{free_port()}") as tracing, traced_replica(rig, tracing) as client:
            for _ in range(3):
                await asked(client)
                await asyncio.sleep(0.7)
    assert [line["event"] for line in lines if line["event"].startswith("traces_")] == ["traces_not_exported"]


async def test_what_waits_is_sent_before_the_process_ends(collector: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "600000")
    async with tracing_to(collector.url) as tracing:
        with within_trace(ABOVE), tracing.step("rag.query", {"rag.query.mode": "hybrid"}):
            pass
        assert collector.spans == []
    assert [(span.name, span.parent_id) for span in collector.spans] == [("rag.query", ABOVE.span_id)]


async def test_the_end_of_the_process_waits_for_no_hanging_collector(collector: Receiver) -> None:
    collector.hangs = True
    async with tracing_to(collector.url) as tracing:
        with within_trace(ABOVE), tracing.step("rag.query", {}):
            pass
        started = perf_counter()
    assert perf_counter() - started < FLUSH_S + 1.0


# ------------------------------------------------------------------------------------------- what is recorded, and how


@pytest.mark.parametrize(
    ("variables", "parent", "recorded"),
    [
        ({}, None, True),
        ({}, ABOVE, True),
        ({}, TraceContext("a" * 32, "b" * 16, is_sampled=False), False),
        ({"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"}, None, False),
        ({"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"}, ABOVE, True),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"}, ABOVE, False),
        ({"OTEL_TRACES_SAMPLER": "always_off"}, ABOVE, False),
    ],
)
async def test_the_sampler_says_what_is_recorded_and_a_batch_is_if_any_of_its_messages_is(
    collector: Receiver,
    variables: dict[str, str],
    parent: TraceContext | None,
    recorded: bool,
) -> None:
    async with tracing_to(collector.url, **variables) as tracing:
        span = tracing.begin("request", kind=SpanKind.SERVER, parent=parent, attributes={})
        assert span.context is not None
        assert span.context.is_sampled is recorded
        with within_trace(span.context), tracing.step("rag.query", {}):
            assert current_trace() is not None
        span.end()
        batch = tracing.begin("b", kind=SpanKind.INTERNAL, parent=None, links=[span.context], attributes={})
        batch.end()
    assert [each.name for each in collector.spans] == (["rag.query", "request", "b"] if recorded else [])


async def test_an_error_is_told_by_its_class_and_a_cancelled_step_is_none(collector: Receiver) -> None:
    async with tracing_to(collector.url) as tracing:
        with within_trace(ABOVE):
            with pytest.raises(ValueError, match="secret"), tracing.step("fails", {}):
                raise ValueError("secret")
            with suppress(TimeoutError):
                async with asyncio.timeout(0):
                    with tracing.step("left", {}):
                        await asyncio.sleep(10)
    named = {span.name: span for span in collector.spans}
    assert (named["fails"].is_error, dict(named["fails"].attributes)) == (True, {"error.type": "ValueError"})
    assert (named["left"].is_error, dict(named["left"].attributes)) == (False, {"rag.cancelled": True})
    assert b"secret" not in b"".join(collector.raw)


async def test_an_iterated_step_is_current_only_while_an_item_is_made(collector: Receiver) -> None:
    seen: list[TraceContext | None] = []

    async def items() -> AsyncIterator[int]:
        for number in range(2):
            seen.append(current_trace())
            yield number

    async with tracing_to(collector.url) as tracing:
        with within_trace(ABOVE):
            async for span, _ in tracing.steps("made", {}, items(), kind=SpanKind.INTERNAL):  # type: ignore[arg-type]
                assert current_trace() == ABOVE
                assert span.context in seen
    assert [span.name for span in collector.spans] == ["made"]


def test_only_listed_attributes_are_told_and_ids_only_if_they_look_like_ones() -> None:
    told = dict(allowed({"rag.query.mode": "x" * 900, "query": "secret", "rag.items": None}))
    assert told == {"rag.query.mode": "x" * 200}
    assert id_or_none("emb-1.2:3") == "emb-1.2:3"
    assert [id_or_none(text) for text in (None, "", "two words", "x" * 81, "ä", "a\n")] == [None] * 6
    assert all(name == name.strip() and said for name, said in ATTRIBUTES.items())


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_TRACES_SAMPLER", "parentbased_ratio"),
        ("OTEL_TRACES_SAMPLER_ARG", "5"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
    ],
)
def test_a_setting_that_would_be_ignored_stops_the_start(variable: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=variable):
        load_settings(None, {variable: value})


# ------------------------------------------------------------------------------------------------------ nobody traces


async def test_without_a_collector_nothing_is_loaded_and_nothing_is_wrapped() -> None:
    loaded = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, services.query.__main__, services.query.app, services.query.wiring, services.writer.__main__\n"
            "import services.writer.wiring\n"
            "ours = ('dats_common.telemetry.tracing', 'services.query.tracing', 'services.writer.tracing')\n"
            "sdk = ('opentelemetry.sdk', 'opentelemetry.exporter', 'opentelemetry.proto')\n"
            "print([name for name in sys.modules if name.startswith((*ours, *sdk))])",
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert loaded.stdout.strip() == "[]"
    for environ in ({}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317", "OTEL_SDK_DISABLED": "true"}):
        async with open_tracing(load_settings(None, environ), role="query") as tracing:
            assert tracing is None


async def test_what_no_request_or_event_asked_for_has_no_span(collector: Receiver, rig: Rig) -> None:
    async with tracing_to(collector.url) as tracing:
        async with traced_replica(rig, tracing) as client:
            for path in ("/metrics", "/api/v1/health", "/api/v1/health/ready"):
                assert (await client.get(path)).status_code == 200
        with tracing.step("sweep", {}):
            assert current_trace() is None
    assert collector.spans == []


class Nobody:
    """An authenticator that knows nobody."""

    async def identify(self, headers: object) -> Caller | None:
        raise Unauthenticated("no such key")


async def test_a_stranger_puts_no_span_into_anybodys_trace(collector: Receiver, rig: Rig) -> None:
    async with (
        tracing_to(collector.url) as tracing,
        rig.replica(tracing=QueryTracing(tracing, Settings()), authenticator=lambda _: Nobody()) as client,
    ):
        headers = {"traceparent": ABOVE.traceparent}
        assert (await client.post("/api/v1/query", json={"query": "q"}, headers=headers)).status_code == 401
    assert collector.spans == []


async def test_the_frameworks_own_spans_are_off(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a host program has set up OpenTelemetry they would hold paths, and the messages of errors."""
    provider, told = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(told))
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    async with rig.replica() as client:
        assert (await client.get("/api/v1/answers/a-1")).status_code == 404
    assert told.get_finished_spans() == ()


# ------------------------------------------------------------------------------------------------------------- clients


async def test_a_client_in_a_traced_program_sends_its_trace() -> None:
    sent: list[httpx.Headers] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers)
        return httpx.Response(200, json={"artifact_id": "a", "removed_chunks": 0})

    tracer = TracerProvider().get_tracer("worker")
    async with RAGClient("http://replica/api/v1", transport=httpx.MockTransport(answer)) as client:
        with tracer.start_as_current_span("task") as span:
            await client.invalidate("a")
        await client.invalidate("a")
    here = span.get_span_context()
    assert sent[0]["traceparent"] == f"00-{here.trace_id:032x}-{here.span_id:016x}-01"
    assert "traceparent" not in sent[1]


def test_the_client_does_not_load_opentelemetry() -> None:
    code = (
        "import sys\nfrom dats_common.clients.rag import RAGClientSync\nfrom dats_common.trace_context import *\n"
        "assert callers_trace() is None\nprint([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
