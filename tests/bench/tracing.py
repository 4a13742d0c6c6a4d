"""What traces cost a search: the same questions to three replicas by turns, one without a collector, one that records
nothing and one that records everything. CPU time is the replica's own, so that others on the machine count less."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from dats_common.clients.rag import RAGClient
from dats_common.settings.sections import Telemetry
from dats_common.telemetry.tracing.export import open_tracing
from dats_common.trace_context import TraceContext, within_trace
from tests.bench.corpus import questions
from tests.bench.figures import Figure, percentile
from tests.bench.query import index_real
from tests.bench.replica import open_replica
from tests.bench.scene import open_scene, scratch_settings

ROUNDS = 20
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass
class _Replica:
    """One of the three, and what was measured of it."""

    name: str
    client: RAGClient
    pid: int
    seconds: list[float] = field(default_factory=list)
    cpu_s: float = 0.0

    async def ask(self, asked: list[str]) -> None:
        before = _cpu_s(self.pid)
        for question in asked:
            started = time.perf_counter()
            await self.client.query(question)
            self.seconds.append(time.perf_counter() - started)
        self.cpu_s += _cpu_s(self.pid) - before

    @property
    def cpu_ms(self) -> float:
        return self.cpu_s / len(self.seconds) * 1e3


async def tracing(*, quick: bool) -> list[Figure]:
    """Beside a running fleet, on its engine and ledger."""
    each_round = 20 if quick else 60
    with scratch_settings() as settings, _collector() as endpoint:
        recorded = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
        unrecorded = {**recorded, "OTEL_TRACES_SAMPLER": "parentbased_always_off"}
        async with AsyncExitStack() as stack:
            scene = await stack.enter_async_context(open_scene(settings))
            await index_real(scene)
            replicas = []
            for name, variables in (("off", {}), ("none recorded", unrecorded), ("all recorded", recorded)):
                url, pid, _ = await stack.enter_async_context(open_replica(scene, **variables))
                client = await stack.enter_async_context(RAGClient(f"{url}/api/v1", timeout=60))
                replicas.append(_Replica(name, client, pid))
                await replicas[-1].ask(questions(50, seed=2))
                replicas[-1].seconds.clear()
                replicas[-1].cpu_s = 0.0
            asked = questions(ROUNDS * each_round)
            for number in range(ROUNDS):
                part = asked[number * each_round : (number + 1) * each_round]
                for offset in range(len(replicas)):  # nobody always goes first
                    await replicas[(number + offset) % len(replicas)].ask(part)
    off = replicas[0]
    figures = []
    for each in replicas:
        figures.append(
            Figure("tracing", f"{each.name}: CPU a query", each.cpu_ms, "ms", note=f"n = {len(each.seconds)}")
        )
        figures.append(Figure("tracing", f"{each.name}: latency p50", percentile(each.seconds, 50) * 1e3, "ms"))
    for each in replicas[1:]:
        ratio = statistics.median(each.seconds) / statistics.median(off.seconds)
        figures.append(Figure("tracing", f"{each.name}: CPU, ratio to off", each.cpu_ms / off.cpu_ms, ""))
        figures.append(Figure("tracing", f"{each.name}: latency p50, ratio to off", ratio, ""))
    return figures + await _one_step(20_000)


async def _one_step(count: int) -> list[Figure]:
    """CPU time of one span with five attributes: in the thread of the requests, and in all, its sending included."""
    figures = []
    with _collector() as endpoint:
        async with open_tracing(Telemetry(otlp_endpoint=endpoint), role="query") as spans:
            for name, is_sampled in (("recorded", True), ("not recorded", False)):
                with within_trace(TraceContext("a" * 32, "b" * 16, is_sampled=is_sampled)):
                    thread_s, process_s = time.thread_time(), time.process_time()
                    for number in range(count):
                        with spans.step("read ledger", {**_ATTRIBUTES, "rag.items": number}):
                            pass
                        if not number % 200:  # as between requests: the other thread has its turn
                            await asyncio.sleep(0.01)
                    thread_s, process_s = time.thread_time() - thread_s, time.process_time() - process_s
                figures.append(Figure("tracing", f"one span, {name}: here", thread_s / count * 1e6, "us"))
                figures.append(Figure("tracing", f"one span, {name}: in all", process_s / count * 1e6, "us"))
    return figures


_ATTRIBUTES = {"db.system.name": "sqlite", "db.operation.name": "read", "rag.kept": 7, "rag.legs": "dense"}


def _cpu_s(pid: int) -> float:
    used = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(used[11]) + int(used[12])) / _TICKS_A_SECOND


@contextmanager
def _collector() -> Iterator[str]:
    """One that takes everything and reads nothing: its work is no part of the cost."""
    take = grpc.unary_unary_rpc_method_handler(lambda request, context: b"")
    handler = grpc.method_handlers_generic_handler(
        "opentelemetry.proto.collector.trace.v1.TraceService", {"Export": take}
    )
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop(grace=0).wait(5)
