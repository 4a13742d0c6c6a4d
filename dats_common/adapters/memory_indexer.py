"""The indexer's twin without LightRAG: chunk, encode, write rows, store points; one document after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from dats_common.domain import sparse
from dats_common.domain.chunking import Chunker, FindDefinitions, Strategy, no_definitions
from dats_common.domain.model import Chunk, ChunkRef, Generation
from dats_common.ports import Encoder
from dats_common.records import IndexJob, Point

SPECIAL_TOKENS = 2


class PointStore(Protocol):
    """The part of `ports.Index` that indexing needs."""

    async def store(self, points: Sequence[Point]) -> None:
        """See `ports.Index`."""


class ChunkLedger(Protocol):
    """The part of `ports.Ledger` that indexing needs."""

    async def write_chunks(self, documents: Mapping[Generation, Sequence[Chunk]], *, embedding_model: str) -> None:
        """See `ports.Ledger`."""


class MemoryIndexer:
    """Implements `ports.Indexer` in the plainest way."""

    def __init__(
        self,
        *,
        encoder: Encoder,
        index: PointStore,
        ledger: ChunkLedger,
        max_tokens: int = 500,
        overlap_tokens: int = 50,
        strategy: Strategy = "semantic",
        find_definitions: FindDefinitions = no_definitions,
    ) -> None:
        """How to cut: see `Chunker`."""
        self._encoder = encoder
        self._index = index
        self._ledger = ledger
        self._chunker = Chunker(
            token_spans=encoder.token_spans,
            window_tokens=encoder.max_tokens - SPECIAL_TOKENS,
            max_tokens=max_tokens,
            overlap_tokens=overlap_tokens,
            strategy=strategy,
            find_definitions=find_definitions,
        )

    async def index(self, jobs: Sequence[IndexJob]) -> Mapping[int, int | Exception]:
        """See `ports.Indexer`."""
        outcomes: dict[int, int | Exception] = {}
        for job in jobs:
            try:
                outcomes[job.generation.number] = await self._index_one(job)
            except Exception as error:
                outcomes[job.generation.number] = error
        return outcomes

    async def _index_one(self, job: IndexJob) -> int:
        generation = job.generation
        chunks = self._chunker.cut(job.content, generation.metadata)
        vectors = await self._encoder.encode([chunk.text for chunk in chunks], kind="document")
        await self._ledger.write_chunks({generation: chunks}, embedding_model=self._encoder.model)
        points = [
            Point(
                ChunkRef(generation.key, generation.number, chunk.index),
                generation.metadata,
                vector,
                sparse.encode_document(sparse.keyword_text(chunk.text, title=generation.metadata.title)),
            )
            for chunk, vector in zip(chunks, vectors, strict=True)
        ]
        if points:
            await self._index.store(points)
        return len(chunks)
