"""The whole event path against the bare encoder, over exactly the same chunks, in one run."""

from __future__ import annotations

import time
from dataclasses import dataclass

from dats_common.contracts.topology import EMBEDDING_COMPLETED
from dats_common.domain.chunking import chunk, within_window
from dats_common.errors import DatsError
from dats_common.settings import Settings
from services.backends import open_ledger
from tests.bench.corpus import pages
from tests.bench.figures import Figure, Kind
from tests.bench.scene import Scene, Servers, completions, open_scene, open_servers, scratch_settings
from tests.servers import ServerMissing

_SPECIAL_TOKENS = 2  # Of the model's window; a chunk cannot use them.
_PATH = ("writer", "engine", "ledger")


@dataclass(frozen=True, slots=True)
class _Spent:
    """Seconds of the clock and of the CPU."""

    wall_s: float
    cpu_s: float


async def ingest(*, quick: bool) -> list[Figure]:
    """On the embedded fleet, and with RabbitMQ and PostgreSQL where they are installed."""
    documents = 80 if quick else 300
    with scratch_settings() as settings:
        figures = await _measure(settings, None, documents)
    try:
        async with open_servers() as servers:
            with scratch_settings(servers) as settings:
                figures += await _measure(settings, servers, documents)
    except ServerMissing as error:
        print(f"ingest: embedded only: {error}")
    return figures


async def _measure(settings: Settings, servers: Servers | None, documents: int) -> list[Figure]:
    name = servers.name if servers else "embedded"
    async with open_scene(settings, servers) as scene:
        await _index(scene, {f"warm-{n}": text for n, text in enumerate(pages(20, label="warm"))})
        wanted = {f"page-{n}": text for n, text in enumerate(pages(documents, label=name))}
        texts = _cut(scene, wanted)
        before = await _raw(scene, texts)
        path, chunks = await _index(scene, wanted)
        after = await _raw(scene, texts)
    if chunks != len(texts) or not await _same_chunks(settings, texts):
        raise DatsError("the writer cut other chunks than the ones that the bare encoder was given")
    raw = _Spent((before.wall_s + after.wall_s) / 2, (before.cpu_s + after.cpu_s) / 2)
    per_chunk_ms = 1e3 / chunks
    overhead_ms = (path.cpu_s - raw.cpu_s) * per_chunk_ms
    return [
        Figure(
            "ingest",
            f"{name}: event path / raw encoder",
            raw.wall_s / path.wall_s,
            kind=Kind.RATIO,
            at_least=0.85,
            note=f"{documents} documents, {chunks} chunks",
        ),
        Figure("ingest", f"{name}: documents of a page each", documents / path.wall_s, "documents/s", at_least=10),
        Figure("ingest", f"{name}: event path", chunks / path.wall_s, "chunks/s"),
        Figure(
            "ingest",
            f"{name}: raw encoder, mean of before and after",
            chunks / raw.wall_s,
            "chunks/s",
            note=f"before {chunks / before.wall_s:.0f}, after {chunks / after.wall_s:.0f}",
        ),
        Figure(
            "ingest",
            f"{name}: non-encoder CPU a chunk",
            overhead_ms,
            "ms",
            at_most=5,
            note="writer + engine + ledger, less the raw encoder's CPU for the same chunks",
        ),
        Figure("ingest", f"{name}: encoder CPU a chunk", raw.cpu_s * per_chunk_ms, "ms"),
    ]


def _cut(scene: Scene, documents: dict[str, str]) -> list[str]:
    """The chunks that the writer will make, for the encoder alone."""
    chunking = scene.settings.lightrag.chunking
    longest, overlap = within_window(
        max_tokens=chunking.max_chunk_size,
        overlap_tokens=chunking.overlap,
        window_tokens=scene.encoder.max_tokens - _SPECIAL_TOKENS,
    )
    return [
        each.text
        for content in documents.values()
        for each in chunk(
            content,
            scene.encoder.token_spans(content),
            max_tokens=longest,
            overlap_tokens=overlap,
            strategy=chunking.strategy,
        )
    ]


async def _same_chunks(settings: Settings, texts: list[str]) -> bool:
    stored: list[str] = []
    async with open_ledger(settings) as ledger:
        async for generation, chunks in ledger.live_chunks():
            if generation.key.artifact_id.startswith("page-"):
                stored += [each.text for each in chunks]
    return sorted(stored) == sorted(texts)


async def _raw(scene: Scene, texts: list[str]) -> _Spent:
    """Encode everything in this process while the fleet waits."""
    wall, cpu = time.perf_counter(), time.process_time()
    await scene.encoder.encode(texts, kind="document")
    return _Spent(time.perf_counter() - wall, time.process_time() - cpu)


async def _index(scene: Scene, documents: dict[str, str]) -> tuple[_Spent, int]:
    """From the first `task.validated` to the last `embedding.completed`; returns the number of chunks too."""
    async with scene.bus.watch(EMBEDDING_COMPLETED) as completed:
        cpu, wall = scene.cpu_s(*_PATH), time.perf_counter()
        await scene.publish(documents)
        done = await completions(completed, list(documents))
        spent = _Spent(time.perf_counter() - wall, scene.cpu_s(*_PATH) - cpu)
    return spent, sum(chunks for _, chunks in done.values())
