"""A large corpus at little cost: every chunk joins halves of two real ones, and its vector is what the two have in
common. Encoding 100,000 chunks would take half an hour; these have neighbours that mean something all the same.

The same size gives the same chunks and vectors, so that the exact truth is computed again instead of being kept.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
import numpy.typing as npt

from dats_common.domain import sparse
from dats_common.domain.model import ArtifactKey, Chunk, ChunkRef, EventTime, Generation, SourceMetadata, Validated
from dats_common.ports import Encoder, Index, Ledger
from dats_common.records import Point
from tests.bench.corpus import pages
from tests.bench.scene import PROJECT

WORDS_A_CHUNK = 110
CHUNKS_A_DOCUMENT = 10
DOCUMENTS_AT_ONCE = 100
GROUPS_AT_ONCE = 3  # One is in the ledger while another is in the engine.
NOISE = 0.4
"""Length of the noise beside the unit vector of the two halves: two joins of the same halves still differ."""

DOMAIN = "docs"
ALL, SOME, FEW = "all", "some", "few"
SELECTIVITY = {ALL: 1, SOME: 50, FEW: 1000}
"""Every so many documents carry the tag: 100 %, 2 % and 0.1 % of the chunks."""


@dataclass(frozen=True)
class Corpus:
    """Synthetic chunks over real ones.

    Attributes:
        texts: real chunks.
        vectors: shape (len(texts), dimension), float32, of length 1.
    """

    texts: Sequence[str]
    vectors: npt.NDArray[np.float32]

    @classmethod
    async def encoded(cls, encoder: Encoder, *, real_chunks: int) -> Corpus:
        """Real text, read once by the real model."""
        texts = pages(real_chunks, label="part", words=WORDS_A_CHUNK)
        return cls(texts, await encoder.encode(texts, kind="document"))

    @cached_property
    def _halves(self) -> list[tuple[str, str]]:
        split = [text.split(" ") for text in self.texts]
        return [(" ".join(words[: len(words) // 2]), " ".join(words[len(words) // 2 :])) for words in split]

    def document(self, number: int) -> Document:
        """The same number gives the same document."""
        chance = np.random.default_rng(number)
        pairs = chance.integers(len(self.texts), size=(CHUNKS_A_DOCUMENT, 2))
        noise = chance.standard_normal((CHUNKS_A_DOCUMENT, self.vectors.shape[1]), dtype=np.float32)
        joined = _unit(self.vectors[pairs[:, 0]] + self.vectors[pairs[:, 1]]) + NOISE * _unit(noise)
        texts = [f"{self._halves[first][0]} {self._halves[second][1]}" for first, second in pairs]
        return Document(number, texts, _unit(joined))

    def documents(self, chunks: int) -> Iterator[Document]:
        """So many chunks."""
        return map(self.document, range(chunks // CHUNKS_A_DOCUMENT))


def _unit(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    lengths: npt.NDArray[np.float32] = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / lengths).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Document:
    """Ten chunks."""

    number: int
    texts: Sequence[str]
    vectors: npt.NDArray[np.float32]

    @property
    def name(self) -> str:
        """The artifact id."""
        return f"scale-{self.number}"

    @property
    def tags(self) -> tuple[str, ...]:
        """Those that its number carries."""
        return tuple(tag for tag, every in SELECTIVITY.items() if self.number % every == 0)

    @property
    def event(self) -> Validated:
        """As QA would have it; every second one is outside the domain that is asked for."""
        metadata = SourceMetadata(
            project_id=PROJECT,
            provenance_id="bench",
            domain=DOMAIN if self.number % 2 == 0 else "other",
            tags=self.tags,
        )
        key = ArtifactKey("default", self.name)
        return Validated(key, "\n\n".join(self.texts), metadata, EventTime(time.time_ns() // 1000), self.name)

    def chunks(self) -> list[Chunk]:
        """Their places in the content."""
        found, place = [], 0
        for number, text in enumerate(self.texts):
            found.append(Chunk(number, text, len(text) // 4, place, place + len(text)))
            place += len(text) + 2
        return found

    def points(self, generation: Generation) -> list[Point]:
        """What the index gets."""
        return [
            Point(
                ChunkRef(generation.key, generation.number, number),
                generation.metadata,
                self.vectors[number],
                sparse.encode_document(text),
            )
            for number, text in enumerate(self.texts)
        ]


async def fill(ledger: Ledger, index: Index, corpus: Corpus, *, chunks: int, model: str) -> None:
    """The writer's steps V1, V3 and V4 for all documents. No writer may run on this ledger: the epoch is raised."""
    epoch = await ledger.activate("bench-scale")
    groups = _grouped(corpus.documents(chunks), DOCUMENTS_AT_ONCE)
    while some := list(islice(groups, GROUPS_AT_ONCE)):
        async with asyncio.TaskGroup() as storing:
            for group in some:
                storing.create_task(_store(ledger, index, group, epoch=epoch, model=model))


def _grouped(documents: Iterable[Document], size: int) -> Iterator[list[Document]]:
    following = iter(documents)
    while group := list(islice(following, size)):
        yield group


async def _store(ledger: Ledger, index: Index, documents: Sequence[Document], *, epoch: int, model: str) -> None:
    admissions = await ledger.admit([document.event for document in documents], epoch=epoch)
    written: dict[Generation, list[Chunk]] = {}
    points: list[Point] = []
    for admission, document in zip(admissions, documents, strict=True):
        if admission.generation is None:
            raise RuntimeError(f"{document.name} was not admitted: {admission.verdict}")
        written[admission.generation] = document.chunks()
        points += document.points(admission.generation)
    await ledger.write_chunks(written, embedding_model=model)
    await index.store(points)
    await ledger.flip(admissions, epoch=epoch)


class Truth:
    """The exact neighbours, by plain arithmetic over every vector of the corpus."""

    def __init__(self, corpus: Corpus, *, chunks: int) -> None:
        documents = list(corpus.documents(chunks))
        self._vectors = np.concatenate([document.vectors for document in documents])
        self._names = [(document.name, number) for document in documents for number in range(CHUNKS_A_DOCUMENT)]
        self._carries = {
            tag: np.repeat([tag in document.tags for document in documents], CHUNKS_A_DOCUMENT) for tag in SELECTIVITY
        }

    def nearest(self, query: npt.NDArray[np.float32], *, tag: str, limit: int) -> set[tuple[str, int]]:
        """Artifact ids and chunk numbers of the nearest chunks among those that carry the tag."""
        places = np.flatnonzero(self._carries[tag])
        order = np.argsort(-(self._vectors[places] @ query), kind="stable")[:limit]
        return {self._names[place] for place in places[order]}
