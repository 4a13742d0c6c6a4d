"""The whole event path against the bare encoder, over exactly the same chunks, in one run."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from dats_common.contracts.topology import EMBEDDING_COMPLETED
from dats_common.domain.chunking import Chunker
from dats_common.domain.model import SourceMetadata
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
    documents, rounds = (100, 3) if quick else (600, 3)
    with scratch_settings() as settings:
        figures = await measure(settings, None, documents, rounds)
    try:
        async with open_servers() as servers:
            with scratch_settings(servers) as settings:
                figures += await measure(settings, servers, documents, rounds)
    except ServerMissing as error:
        print(f"ingest: embedded only: {error}")
    return figures


async def measure(settings: Settings, servers: Servers | None, documents: int, rounds: int) -> list[Figure]:
    name = servers.name if servers else "embedded"
    texts: list[str] = []
    raw: list[_Spent] = []
    paths: list[_Spent] = []
    async with open_scene(settings, servers) as scene:
        await _index(scene, {f"warm-{n}": text for n, text in enumerate(pages(20, label="warm"))})
        for number in range(rounds):
            label = f"{name} {number}"
            wanted = {f"page-{number}-{n}": text for n, text in enumerate(pages(documents, label=label))}
            cut = _cut(scene, wanted)
            before = await _raw(scene, cut)
            path, chunks = await _index(scene, wanted)
            after = await _raw(scene, cut)
            if chunks != len(cut):
                raise DatsError("the writer cut other chunks than the ones that the bare encoder was given")
            texts += cut
            paths.append(path)
            # Beside each path, before and after it: shared machines change their speed by a third within a minute.
            raw.append(_Spent((before.wall_s + after.wall_s) / 2, (before.cpu_s + after.cpu_s) / 2))
    if not await _same_chunks(settings, texts):
        raise DatsError("the writer cut other chunks than the ones that the bare encoder was given")
    ratios = [bare.wall_s / path.wall_s for bare, path in zip(raw, paths, strict=True)]
    path_s, raw_s = sum(path.wall_s for path in paths), sum(bare.wall_s for bare in raw)
    per_chunk_ms = 1e3 / len(texts)
    raw_cpu_s = sum(bare.cpu_s for bare in raw)
    return [
        Figure(
            "ingest",
            f"{name}: event path / raw encoder",
            statistics.median(ratios),
            kind=Kind.RATIO,
            at_least=0.90,
            note=f"median of {rounds} rounds ({min(ratios):.2f} to {max(ratios):.2f}), {documents} documents and about "
            f"{len(texts) // rounds} chunks each",
        ),
        Figure("ingest", f"{name}: documents of a page each", rounds * documents / path_s, "documents/s", at_least=10),
        Figure("ingest", f"{name}: event path", len(texts) / path_s, "chunks/s"),
        Figure("ingest", f"{name}: raw encoder", len(texts) / raw_s, "chunks/s", note="before and after each round"),
        Figure(
            "ingest",
            f"{name}: non-encoder CPU a chunk",
            (sum(path.cpu_s for path in paths) - raw_cpu_s) * per_chunk_ms,
            "ms",
            at_most=3,
            note="writer + engine + ledger, less the raw encoder's CPU for the same chunks",
        ),
        Figure("ingest", f"{name}: encoder CPU a chunk", raw_cpu_s * per_chunk_ms, "ms"),
    ]


def _cut(scene: Scene, documents: dict[str, str]) -> list[str]:
    """The chunks that the writer will make, for the encoder alone."""
    chunking = scene.settings.lightrag.chunking
    chunker = Chunker(
        token_spans=scene.encoder.token_spans,
        window_tokens=scene.encoder.max_tokens - _SPECIAL_TOKENS,
        max_tokens=chunking.max_chunk_size,
        overlap_tokens=chunking.overlap,
        strategy=chunking.strategy,
    )
    plain = SourceMetadata("")  # The corpus names no file and no kind, so that no profile is chosen for it.
    return [each.text for content in documents.values() for each in chunker.cut(content, plain)]


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
