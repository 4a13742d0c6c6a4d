"""/query over HTTP at two sizes of the index, hybrid, under a filter of project, domain, tags and verified_only."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from dats_common.clients.rag import RAGClient
from dats_common.contracts.topology import EMBEDDING_COMPLETED
from dats_common.settings import Settings
from services.backends import open_encoder
from tests.bench.corpus import pages, questions
from tests.bench.figures import Figure, latencies, percentile
from tests.bench.filling import Filled, fill
from tests.bench.scene import PROJECT, Scene, completions, open_scene, scratch_settings

SIZES = (2_000, 20_000)
CLIENTS = 8
QUERY_P95_MS = 500.0  # Source: spec 1, acceptance criteria.
REAL_PAGES = 60
TAG = "kept"
"""The filter keeps the real pages and a quarter of the filler."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What one client saw of one query."""

    seconds: float
    inside_ms: float
    stages_ms: dict[str, float]
    sources: int


async def query(*, quick: bool) -> list[Figure]:
    """Real pages come through the event path and are what is asked for; the rest of the index is filler."""
    count = 120 if quick else 400
    figures: list[Figure] = []
    with scratch_settings() as settings:
        filled = Filled()
        async with open_encoder(settings, for_writer=True) as encoder:
            for size in SIZES:
                filled = await fill(settings, encoder, filled, chunks=size, domain="docs", tag=TAG)
                figures += await _measure(settings, size=size, count=count)
    return figures


async def _measure(settings: Settings, *, size: int, count: int) -> list[Figure]:
    async with open_scene(settings) as scene:
        await index_real(scene)
        asked, others = questions(count), questions(count, seed=3)  # a replica knows the vectors of what it was asked
        await _ask(scene.client, questions(20, seed=2))
        one = await _ask(scene.client, asked)
        again = await _ask(scene.client, asked)
        started = time.perf_counter()
        several = await asyncio.gather(*(_ask(scene.client, others[first::CLIENTS]) for first in range(CLIENTS)))
        seconds = time.perf_counter() - started
    together = [each for client in several for each in client]
    label = f"{size // 1000}k chunks"
    stages: dict[str, list[float]] = defaultdict(list)
    for each in one:
        for stage, spent in each.stages_ms.items():
            stages[stage].append(spent)
        stages["inside the service"].append(each.inside_ms)
    return [
        *latencies("query", f"{label}, 1 client", [each.seconds for each in one], 50, 95, limits_ms={95: QUERY_P95_MS}),
        *latencies("query", f"{label}, 1 client, questions asked before", [each.seconds for each in again], 50, 95),
        *latencies(
            "query",
            f"{label}, {CLIENTS} clients",
            [each.seconds for each in together],
            50,
            95,
            limits_ms={95: QUERY_P95_MS},
        ),
        Figure("query", f"{label}, {CLIENTS} clients", len(together) / seconds, "queries/s"),
        *(
            Figure("query", f"{label}, 1 client: {stage}, p50", percentile(spent, 50), "ms")
            for stage, spent in stages.items()
        ),
        Figure("query", f"{label}: sources an answer", statistics.fmean(each.sources for each in one), "", note="mean"),
    ]


async def index_real(scene: Scene) -> None:
    """Pages that come through the event path; returns once they are found."""
    documents = {f"real-{n}": text for n, text in enumerate(pages(REAL_PAGES, label="page"))}
    async with scene.bus.watch(EMBEDDING_COMPLETED) as completed:
        await scene.publish(documents, tags=[TAG])
        await completions(completed, list(documents))


async def _ask(client: RAGClient, asked: Sequence[str]) -> list[_Asked]:
    """One after the other, as one client does."""
    answers = []
    for question in asked:
        started = time.perf_counter()
        answer = await client.query(question, PROJECT, "docs", filters={"tags": [TAG], "verified_only": True})
        seconds = time.perf_counter() - started
        metadata = answer.metadata
        answers.append(_Asked(seconds, metadata["latency_ms"], metadata["stages_ms"], len(answer.sources)))
    return answers
