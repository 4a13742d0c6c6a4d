"""What grows with the index: 1,000, 10,000 and 100,000 chunks side by side, asked in turn, each by its own replica.

The sizes run at the same time and take turns question by question, so that whatever else the machine does meanwhile
is shared by all of them and their ratio holds.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from dats_common.clients.errors import RAGError
from dats_common.clients.rag import RAGClient
from dats_common.domain import sparse
from dats_common.domain.access import LAPTOP
from dats_common.embedded.qdrant_edge import EngineProcess, open_engine_process
from dats_common.ports import Encoder, Index
from dats_common.records import SearchFilter
from dats_common.settings import Settings
from services.backends import engine_dir, open_encoder, open_index, open_ledger, prepare_index
from services.lifeline import WITH_PARENT
from tests.bench.corpus import questions
from tests.bench.figures import Figure, Kind, latencies, percentile
from tests.bench.scale_corpus import ALL, DOMAIN, SELECTIVITY, Corpus, Truth, fill
from tests.bench.scale_in_process import InProcess, open_in_process
from tests.bench.scene import PROJECT, scratch_settings
from tests.servers import free_port

SIZES = (1_000, 10_000, 100_000)
GROWTH = 2.0  # Source: issue 5, "Scale".
LEAST_RECALL = 0.99  # Source: likewise.
OVER_IN_PROCESS = 1.5  # Source: issue 5, "Must show".
P95_MS = 60.0  # Source: likewise.
REAL_CHUNKS = 1000
CROWD = 50
TOGETHER = 16
CANDIDATES = 50  # The service's own default: `query.candidates`.
START_TIMEOUT_S = 60.0
_FILTER = {"tags": [ALL], "verified_only": True}
_BOTH = frozenset({"dense", "sparse"})
_WHERE = SearchFilter(LAPTOP, project_id=PROJECT, domain=DOMAIN, tags=(ALL,), verified_only=True)


@dataclass(frozen=True, slots=True)
class Place:
    """One size: its data, its engine, and its first replica."""

    chunks: int
    settings: Settings
    engine: EngineProcess
    client: RAGClient

    @property
    def label(self) -> str:
        """For figures."""
        return f"{self.chunks // 1000}k chunks"


async def scale(*, quick: bool, sizes: Sequence[int] = SIZES, data: Path | None = None) -> list[Figure]:
    """Fill, then measure.

    Args:
        quick: smaller samples, over fewer real chunks; the sizes are the same.
        data: keep the filled directories here, and use those that are there.
    """
    count = 60 if quick else 240
    figures: list[Figure] = []
    async with AsyncExitStack() as stack:
        prepared = []
        # Each size has its own environment while its processes start; they are put back in reverse order at the end.
        for chunks in sizes:
            settings = stack.enter_context(scratch_settings())
            if data is not None:
                kept = data.absolute() / str(chunks)
                kept.mkdir(parents=True, exist_ok=True)
                settings = settings.model_copy(update={"data_dir": kept})
            prepared.append(settings)
        encoder = await stack.enter_async_context(open_encoder(prepared[0], for_writer=False))
        corpus = await Corpus.encoded(encoder, real_chunks=100 if quick else REAL_CHUNKS)
        for chunks, settings in zip(sizes, prepared, strict=True):
            figures += await _fill(settings, encoder, corpus, chunks=chunks)
        places = [
            await stack.enter_async_context(_open_place(chunks, settings))
            for chunks, settings in zip(sizes, prepared, strict=True)
        ]
        figures += await _measure_api(places, count=count)
        largest = places[-1]
        figures += _measure_size(places)
        figures += await _measure_index(largest, corpus, encoder, count=count // 2)
        figures += await _measure_crowd(largest, count=2 * count)
    return figures


async def _fill(settings: Settings, encoder: Encoder, corpus: Corpus, *, chunks: int) -> list[Figure]:
    done, made = settings.data_dir / "filled", f"{chunks} chunks over {len(corpus.texts)} real ones"
    if done.exists() and done.read_text(encoding="utf-8") == made:
        return []
    for part in settings.data_dir.iterdir():  # What a run that was cut short, or of another corpus, has left.
        shutil.rmtree(part) if part.is_dir() else part.unlink()
    started = time.perf_counter()
    async with (
        open_engine_process(engine_dir(settings)),
        open_ledger(settings) as ledger,
        open_index(settings) as index,
    ):
        await prepare_index(index, encoder)
        await fill(ledger, index, corpus, chunks=chunks, model=encoder.model)
    done.write_text(made, encoding="utf-8")
    rate = chunks / (time.perf_counter() - started)
    return [Figure("scale", f"{chunks // 1000}k chunks: filled", rate, "chunks/s", note="without encoding")]


@asynccontextmanager
async def _open_place(chunks: int, settings: Settings) -> AsyncIterator[Place]:
    async with (
        open_engine_process(engine_dir(settings)) as engine,
        _open_replica(settings) as url,
        RAGClient(url, timeout=60) as client,
    ):
        yield Place(chunks, settings, engine, client)


@asynccontextmanager
async def _open_replica(settings: Settings) -> AsyncIterator[str]:
    """One more query replica on the data directory, once it answers."""
    port = free_port()
    environment = os.environ | {"DATS_DATA_DIR": str(settings.data_dir), "PORT": str(port)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.query", WITH_PARENT, env=environment, stdin=asyncio.subprocess.PIPE
    )
    url = f"http://127.0.0.1:{port}/api/v1"
    try:
        async with RAGClient(url, timeout=5) as client:
            await _answers(client)
        yield url
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _answers(client: RAGClient) -> None:
    async with asyncio.timeout(START_TIMEOUT_S):
        while True:
            try:
                await client.query("anything", PROJECT)
            except RAGError:  # Not there yet, or not ready yet.
                await asyncio.sleep(0.2)
            else:
                return


# --------------------------------------------------------------------------------------------------------------- API


async def _measure_api(places: Sequence[Place], *, count: int) -> list[Figure]:
    """Every question to every size in turn, the order of sizes drawn anew each time."""
    seconds: dict[int, list[float]] = defaultdict(list)
    stages: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    sources: dict[int, int] = defaultdict(int)
    chance = random.Random(1)
    for number, question in enumerate(questions(count + 20)):
        for place in chance.sample(places, len(places)):
            started = time.perf_counter()
            answer = await place.client.query(question, PROJECT, DOMAIN, filters=_FILTER)
            spent = time.perf_counter() - started
            if number < 20:
                continue
            seconds[place.chunks].append(spent)
            sources[place.chunks] += len(answer.sources)
            for stage, spent_ms in answer.metadata["stages_ms"].items():
                stages[place.chunks][stage].append(spent_ms)
    figures = []
    for place in places:
        figures += latencies(
            "scale",
            f"{place.label}, 1 client",
            seconds[place.chunks],
            50,
            95,
            limits_ms={95: P95_MS} if place.chunks >= SIZES[-1] else {},
        )
        figures += [
            Figure("scale", f"{place.label}, 1 client: {stage}, p50", percentile(spent, 50), "ms")
            for stage, spent in stages[place.chunks].items()
        ]
        figures.append(Figure("scale", f"{place.label}: sources an answer", sources[place.chunks] / count, note="mean"))
    first, last = places[0], places[-1]
    if first is not last:
        for percent, limit in ((50, None), (95, GROWTH)):
            grown = percentile(seconds[last.chunks], percent) / percentile(seconds[first.chunks], percent)
            figures.append(
                Figure(
                    "scale",
                    f"p{percent} at {last.label} / at {first.label}, 1 client",
                    grown,
                    kind=Kind.RATIO,
                    at_most=limit,
                    note=f"in turn, {count} questions each; filter of project, domain and tag",
                )
            )
    return figures


async def _measure_crowd(place: Place, *, count: int) -> list[Figure]:
    """Fifty clients at once, on one replica and then on two."""
    figures = []
    async with _open_replica(place.settings) as second, RAGClient(second, timeout=60) as other:
        for replicas, clients in ((1, [place.client]), (2, [place.client, other])):
            asked = questions(count, seed=replicas + 1)
            await _crowd(clients, questions(CROWD, seed=replicas + 5))  # others: a replica knows what it was asked
            started = time.perf_counter()
            seconds, errors = await _crowd(clients, asked)
            took_s = time.perf_counter() - started
            label = f"{place.label}, {CROWD} clients, {replicas} replica{'s' if replicas > 1 else ''}"
            figures += [
                *latencies("scale", label, seconds, 50, 95),
                Figure("scale", f"{label}: throughput", len(seconds) / took_s, "queries/s"),
                Figure("scale", f"{label}: errors", errors, kind=Kind.PROMISE, at_most=0, note=f"of {count}"),
            ]
    return figures


async def _crowd(clients: Sequence[RAGClient], asked: Sequence[str]) -> tuple[list[float], int]:
    """Seconds of the answers, and how many failed. Each client asks its share one after the other."""
    seconds: list[float] = []
    errors = 0

    async def one(number: int) -> None:
        nonlocal errors
        for question in asked[number::CROWD]:
            started = time.perf_counter()
            try:
                await clients[number % len(clients)].query(question, PROJECT, DOMAIN, filters=_FILTER)
            except RAGError:
                errors += 1
            else:
                seconds.append(time.perf_counter() - started)

    await asyncio.gather(*(one(number) for number in range(CROWD)))
    return seconds, errors


# ------------------------------------------------------------------------------------------------------------- index


async def _measure_index(place: Place, corpus: Corpus, encoder: Encoder, *, count: int) -> list[Figure]:
    asked = questions(count, seed=4)
    vectors = await encoder.encode(asked, kind="query")
    truth = Truth(corpus, chunks=place.chunks)
    async with open_index(place.settings) as index:
        recalls = {
            tag: [await _recall(index, truth, vector, tag=tag) for vector in vectors[:60]] for tag in SELECTIVITY
        }
        copied = open_in_process(place.settings, where=_WHERE, limit=CANDIDATES, dimension=encoder.dimension)
        async with copied as shard:
            over_wire, in_process = await _compare(index, shard, asked, vectors)
            alone_s, shared_s = _compare_shared(shard, asked, vectors)
    return [
        *(
            Figure(
                "scale",
                f"{place.label}: recall@10 where {100 / SELECTIVITY[tag]:g} % of the chunks pass the filter",
                float(np.mean(recall)),
                kind=Kind.RATIO,
                at_least=LEAST_RECALL,
                note=f"vector leg against exact arithmetic, {len(recall)} questions",
            )
            for tag, recall in recalls.items()
        ),
        Figure(
            "scale",
            f"{place.label}: both legs over gRPC / in process",
            median(over_wire) / median(in_process),
            kind=Kind.RATIO,
            at_most=OVER_IN_PROCESS if place.chunks >= SIZES[-1] else None,
            note=f"{median(over_wire) * 1e3:.1f} and {median(in_process) * 1e3:.1f} ms, medians of {count}, in turn",
        ),
        Figure("scale", f"{place.label}: the engine's CPU of a search alone", alone_s * 1e3, "ms"),
        Figure(
            "scale", f"{place.label}: the engine's CPU of one of {TOGETHER} that wait together", shared_s * 1e3, "ms"
        ),
    ]


async def _recall(index: Index, truth: Truth, vector: np.ndarray, *, tag: str) -> float:
    wanted = truth.nearest(vector, tag=tag, limit=10)
    where = replace(_WHERE, domain=None, tags=(tag,))
    found = await index.search(dense=vector, sparse=None, legs=frozenset({"dense"}), where=where, limit=10)
    return len(wanted & {(each.ref.key.artifact_id, each.ref.chunk_index) for each in found}) / len(wanted)


async def _compare(
    index: Index, shard: InProcess, asked: Sequence[str], vectors: np.ndarray
) -> tuple[list[float], list[float]]:
    """Seconds of the same searches through our adapter and straight in the engine."""
    over_wire: list[float] = []
    in_process: list[float] = []
    for question, vector in zip(asked, vectors, strict=True):
        terms = sparse.encode_query(question)
        wanted = shard.prepared(vector, terms)
        started = time.perf_counter()
        await index.search(dense=vector, sparse=terms, legs=_BOTH, where=_WHERE, limit=CANDIDATES)
        over_wire.append(time.perf_counter() - started)
        started = time.perf_counter()
        shard.search(wanted)
        in_process.append(time.perf_counter() - started)
    return over_wire, in_process


def _compare_shared(shard: InProcess, asked: Sequence[str], vectors: np.ndarray) -> tuple[float, float]:
    """CPU seconds of a search alone, and of one among others."""
    searches = [
        shard.prepared(vector, sparse.encode_query(question)) for question, vector in zip(asked, vectors, strict=True)
    ]
    groups = [searches[first : first + TOGETHER] for first in range(0, len(searches), TOGETHER)]
    started = time.process_time()
    for search in searches:
        shard.search(search)
    alone = time.process_time() - started
    started = time.process_time()
    for group in groups:
        shard.search(*group)
    return alone / len(searches), (time.process_time() - started) / len(searches)


# -------------------------------------------------------------------------------------------------------------- size


def _measure_size(places: Sequence[Place]) -> list[Figure]:
    figures = [
        Figure("scale", f"{place.label}: the engine's memory", _resident_bytes(place) / 2**20, "MiB")
        for place in places
    ]
    last = places[-1]
    disk = {"index": engine_dir(last.settings), "ledger": last.settings.data_dir / "ledger.db"}
    for name, path in disk.items():
        kilobytes = _disk_bytes(path) / last.chunks / 1000
        figures.append(Figure("scale", f"{last.label}: the {name} on disk", kilobytes, "kB a chunk"))
    if len(places) > 1:
        first = places[0]
        more = (_resident_bytes(last) - _resident_bytes(first)) / (last.chunks - first.chunks) / 1000
        figures.append(Figure("scale", f"from {first.label} to {last.label}: memory", more, "kB a chunk"))
    return figures


def _resident_bytes(place: Place) -> int:
    status = Path(f"/proc/{place.engine.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def _disk_bytes(path: Path) -> int:
    """What the file system gave, not how long sparse files look."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return sum(each.stat().st_blocks * 512 for each in files)
