"""Filler for a large index, written straight through ledger and index: encoding it would take minutes.

Its texts are variations of real chunks, its vectors are the real chunks' with random noise, so that both legs find
filler about as similar as other text of the same kind. Only what came through the event path is real.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dats_common.domain import sparse
from dats_common.domain.model import ArtifactKey, Chunk, ChunkRef, EventTime, Generation, SourceMetadata, Validated
from dats_common.embedded.qdrant_edge import open_engine_process
from dats_common.ports import Encoder, Index, Ledger
from dats_common.records import Point
from dats_common.settings import Settings
from services.backends import engine_dir, open_index, open_ledger, prepare_index
from tests.bench.corpus import Filler, filler, pages
from tests.bench.scene import PROJECT

CHUNKS_A_DOCUMENT = 20
DOCUMENTS_AT_ONCE = 50
MODEL_TEXTS = 200
WORDS_A_CHUNK = 150
NOISE = 0.75
"""Length of the noise beside a unit vector: a cosine of 0.8 to the chunk that it resembles."""


@dataclass(frozen=True, slots=True)
class Filled:
    """How much is there already."""

    chunks: int = 0


async def fill(settings: Settings, encoder: Encoder, filled: Filled, *, chunks: int, domain: str, tag: str) -> Filled:
    """Bring the index up to `chunks` chunks of filler. A quarter of the documents carry domain and tag.

    No fleet may run on the settings' data directory: this raises the writer's epoch and owns the engine.
    """
    texts = pages(MODEL_TEXTS, label="filler", words=WORDS_A_CHUNK)
    vectors = await encoder.encode(texts, kind="document")
    wanted = list(filler(texts, chunks - filled.chunks, seed=filled.chunks))
    async with (
        open_engine_process(engine_dir(settings)),
        open_ledger(settings) as ledger,
        open_index(settings) as index,
    ):
        await prepare_index(index, encoder)
        epoch = await ledger.activate("bench-filler")
        step = CHUNKS_A_DOCUMENT * DOCUMENTS_AT_ONCE
        for first in range(0, len(wanted), step):
            documents = [
                wanted[place : place + CHUNKS_A_DOCUMENT]
                for place in range(first, min(first + step, len(wanted)), CHUNKS_A_DOCUMENT)
            ]
            names = [f"filler-{filled.chunks + first}-{place}" for place in range(len(documents))]
            events = [
                _event(name, part, domain=domain, tag=tag, keeps=place % 4 == 0)
                for place, (name, part) in enumerate(zip(names, documents, strict=True))
            ]
            await _store(ledger, index, events, documents, vectors, epoch=epoch, model=encoder.model)
    return Filled(chunks)


def _event(name: str, part: Sequence[Filler], *, domain: str, tag: str, keeps: bool) -> Validated:
    metadata = SourceMetadata(
        project_id=PROJECT,
        provenance_id="bench",
        domain=domain if keeps else "other",
        tags=(tag,) if keeps else ("other",),
    )
    content = "\n\n".join(each.text for each in part)
    return Validated(ArtifactKey("default", name), content, metadata, EventTime(time.time_ns() // 1000), name)


async def _store(
    ledger: Ledger,
    index: Index,
    events: Sequence[Validated],
    documents: Sequence[Sequence[Filler]],
    vectors: npt.NDArray[np.float32],
    *,
    epoch: int,
    model: str,
) -> None:
    """The writer's steps V1, V3 and V4."""
    admissions = await ledger.admit(events, epoch=epoch)
    written: dict[Generation, list[Chunk]] = {}
    points: list[Point] = []
    for admission, part in zip(admissions, documents, strict=True):
        if admission.generation is None:
            raise RuntimeError(f"filler was not admitted: {admission.verdict}")
        written[admission.generation] = _chunks(part)
        points += _points(admission.generation, part, vectors)
    await ledger.write_chunks(written, embedding_model=model)
    await index.store(points)
    await ledger.flip(admissions, epoch=epoch)


def _chunks(part: Sequence[Filler]) -> list[Chunk]:
    chunks, place = [], 0
    for number, each in enumerate(part):
        end = place + len(each.text)
        chunks.append(Chunk(number, each.text, len(each.text) // 4, place, end))
        place = end + 2
    return chunks


def _points(generation: Generation, part: Sequence[Filler], vectors: npt.NDArray[np.float32]) -> list[Point]:
    chance = np.random.default_rng(generation.number)
    noise = chance.standard_normal((len(part), vectors.shape[1]), dtype=np.float32)
    noise *= NOISE / np.linalg.norm(noise, axis=1, keepdims=True)
    mixed = vectors[[each.resembles for each in part]] + noise
    mixed /= np.linalg.norm(mixed, axis=1, keepdims=True)
    return [
        Point(
            ChunkRef(generation.key, generation.number, number),
            generation.metadata,
            mixed[number],
            sparse.encode_document(each.text),
        )
        for number, each in enumerate(part)
    ]
