"""`ports.Indexer` over LightRAG's document pipeline. No language model, no network and no file is ever asked."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from dats_common.adapters.lightrag.batch import Document, MicroBatch
from dats_common.domain import sparse
from dats_common.domain.chunking import Chunker, FindDefinitions, Strategy, no_definitions
from dats_common.domain.model import Chunk, ChunkRef, Generation, SparseVector
from dats_common.errors import ConfigurationError, EncoderUnavailable, IndexUnavailable
from dats_common.ports import Encoder
from dats_common.records import IndexJob, Point

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MICRO_BATCH = 32
"""Documents that go through LightRAG together."""

ENCODE_TEXTS = 64  # One call of the encoder: bounds the time that LightRAG's embedding timeout has to cover.
STORE_POINTS = 256  # Handed over at once; the index cuts them as its engine needs.

SPECIAL_TOKENS = 2
"""Tokens of the model's window that a chunk cannot use: the ones that open and close it."""


class PointStore(Protocol):
    """The part of `ports.Index` that indexing needs."""

    async def store(self, points: Sequence[Point]) -> None:
        """See `ports.Index`."""


class ChunkLedger(Protocol):
    """The part of `ports.Ledger` that indexing needs."""

    async def write_chunks(self, documents: Mapping[Generation, Sequence[Chunk]], *, embedding_model: str) -> None:
        """See `ports.Ledger`."""


class LightRagIndexer:
    """Implements `ports.Indexer`. For one event loop; made by `open_lightrag_indexer`."""

    def __init__(
        self,
        *,
        encoder: Encoder,
        index: PointStore,
        ledger: ChunkLedger,
        working_dir: str,
        max_tokens: int,
        overlap_tokens: int,
        strategy: Strategy,
        find_definitions: FindDefinitions,
        timeout_s: float,
    ) -> None:
        """Wire the pipeline; `open` it before use.

        Args:
            encoder: makes the dense vectors; its tokens are the chunker's.
            index: takes the points.
            ledger: takes the chunk rows.
            working_dir: LightRAG wants one; nothing is written there.
            max_tokens, overlap_tokens, strategy, find_definitions: how to cut; see `Chunker`.
            timeout_s: longest time for one micro-batch of at most 32 documents.
        """
        self._encoder = encoder
        self._index = index
        self._ledger = ledger
        self._working_dir = working_dir
        self._chunker = Chunker(
            token_spans=encoder.token_spans,
            window_tokens=encoder.max_tokens - SPECIAL_TOKENS,
            max_tokens=max_tokens,
            overlap_tokens=overlap_tokens,
            strategy=strategy,
            find_definitions=find_definitions,
        )
        self._timeout_s = timeout_s
        self._turn = asyncio.Lock()
        self._batch: MicroBatch | None = None
        self._rag: Any = None

    async def index(self, jobs: Sequence[IndexJob]) -> Mapping[int, int | Exception]:
        """See `ports.Indexer`. Documents that LightRAG dropped among others are tried once more, alone."""
        unique = list({job.generation.number: job for job in jobs}.values())
        outcomes: dict[int, int | Exception] = {}
        async with self._turn:
            for first in range(0, len(unique), MICRO_BATCH):
                part = unique[first : first + MICRO_BATCH]
                dropped = await self._index_together(part, outcomes)
                for job in dropped if len(part) > 1 else ():
                    await self._index_together([job], outcomes)
        return outcomes

    async def open(self) -> None:
        """Build LightRAG around the ports (the first time it imports it: about a second)."""
        with _sealed_environment():
            await asyncio.to_thread(_import_lightrag)
            self._rag = self._build()
        await self._rag.initialize_storages()

    async def close(self) -> None:
        """End LightRAG's tasks."""
        rag, self._rag = self._rag, None
        if rag is not None:
            await rag.finalize_storages()
            await rag.embedding_func.func.shutdown(graceful=False)

    async def _index_together(self, jobs: Sequence[IndexJob], outcomes: dict[int, int | Exception]) -> list[IndexJob]:
        """Run one micro-batch and return the jobs of which LightRAG said nothing."""
        batch = self._batch = self._rag.chunks_vdb.batch = MicroBatch(jobs, write=self._write)
        failure: Exception = IndexUnavailable("LightRAG did not take the document")
        intact = False
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._rag.apipeline_enqueue_documents(
                    batch.names, ids=batch.names, file_paths=batch.names, process_options="!C"
                )
                await self._rag.apipeline_process_enqueue_documents()
                await batch.finish()
            intact = True
        except TimeoutError:
            failure = IndexUnavailable(f"not indexed within {self._timeout_s} s")
        except Exception as error:
            failure = IndexUnavailable(f"LightRAG failed: {type(error).__name__}")
            failure.__cause__ = error
        finally:
            self._batch = self._rag.chunks_vdb.batch = None
            await batch.cancel()
            self._forget()
        unresolved = batch.unresolved
        outcomes.update(batch.outcomes)
        outcomes.update({job.generation.number: failure for job in unresolved})
        if not intact:
            # Its pipeline may still believe to be busy, and would then leave the next batch lying.
            await self.close()
            await self.open()
        return unresolved

    def _forget(self) -> None:
        for storage in (self._rag.full_docs, self._rag.text_chunks, self._rag.llm_response_cache, self._rag.doc_status):
            storage.rows.clear()

    async def _chunk(self, name: str) -> list[dict[str, Any]]:
        """LightRAG's chunking function: the text it was given is a name; the source itself never passed through it."""
        batch = self._batch
        if batch is None:
            raise RuntimeError("no batch is running")
        try:
            job = batch.job(name)
            chunks = await asyncio.to_thread(self._chunker.cut, job.content, job.generation.metadata)
        except Exception as error:
            batch.fail(name, error)
            raise
        if not chunks:
            batch.add(name, ())  # LightRAG would never hand on a document without chunks.
        return [
            {
                "content": chunk.text,
                "tokens": chunk.token_count,
                "chunk_order_index": chunk.index,
                "source_chunk": chunk,
            }
            for chunk in chunks
        ]

    async def _write(self, group: Sequence[Document]) -> None:
        """Embed and store a group; the ledger and the sparse encoder work while the dense one does."""
        texts = [chunk.text for document in group for chunk in document.chunks]
        keyword_texts = [
            sparse.keyword_text(chunk.text, title=document.generation.metadata.title)
            for document in group
            for chunk in document.chunks
        ]
        try:
            async with asyncio.TaskGroup() as together:
                vectors = together.create_task(self._embed(texts), name="embed-group")
                terms = together.create_task(asyncio.to_thread(_sparse, keyword_texts), name="sparse-group")
                together.create_task(self._write_rows(group), name="ledger-group")
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        points = _points(group, vectors.result(), terms.result())
        for first in range(0, len(points), STORE_POINTS):
            await self._index.store(points[first : first + STORE_POINTS])

    async def _embed(self, texts: Sequence[str]) -> list[npt.NDArray[np.float32]]:
        vectors: list[npt.NDArray[np.float32]] = []
        try:
            for first in range(0, len(texts), ENCODE_TEXTS):
                vectors.extend(await self._rag.embedding_func(list(texts[first : first + ENCODE_TEXTS])))
        except TimeoutError as error:  # LightRAG's own, on top of the encoder's.
            raise EncoderUnavailable("no vectors in time") from error
        return vectors

    async def _write_rows(self, group: Sequence[Document]) -> None:
        documents = {document.generation: document.chunks for document in group}
        await self._ledger.write_chunks(documents, embedding_model=self._encoder.model)

    def _build(self) -> Any:
        from lightrag import LightRAG
        from lightrag.utils import EmbeddingFunc, Tokenizer

        from dats_common.adapters.lightrag.storages import KINDS, register

        register()

        # Plain functions: LightRAG deep-copies what it is given, and a bound method would take the model along.
        async def embed(texts: list[str], **_: Any) -> npt.NDArray[np.float32]:
            return await self._encoder.encode(texts, kind="document")

        async def cut(_tokenizer: Any, name: str, *_: Any) -> list[dict[str, Any]]:
            return await self._chunk(name)

        return LightRAG(
            working_dir=self._working_dir,
            workspace=f"dats-{uuid.uuid4().hex}",  # Pipeline state is global in LightRAG, by workspace.
            kv_storage=KINDS["KV_STORAGE"].__name__,
            vector_storage=KINDS["VECTOR_STORAGE"].__name__,
            graph_storage=KINDS["GRAPH_STORAGE"].__name__,
            doc_status_storage=KINDS["DOC_STATUS_STORAGE"].__name__,
            tokenizer=Tokenizer("encoder", _SpanTokenizer(self._encoder)),
            chunking_func=cut,
            chunk_token_size=self._chunker.window_tokens,
            chunk_overlap_token_size=0,  # our chunking function has its own
            embedding_func=EmbeddingFunc(
                embedding_dim=self._encoder.dimension, func=embed, model_name=self._encoder.model
            ),
            embedding_func_max_async=2,
            default_embedding_timeout=math.ceil(self._timeout_s),
            llm_model_func=_no_language_model,
            enable_llm_cache=False,
            enable_llm_cache_for_entity_extract=False,
            max_parallel_insert=MICRO_BATCH,
            max_parallel_parse_native=MICRO_BATCH,
            max_parallel_analyze=MICRO_BATCH,
            queue_size_parse=MICRO_BATCH,
            queue_size_analyze=MICRO_BATCH,
            queue_size_insert=MICRO_BATCH,
            max_pending_documents=0,
        )


class _SpanTokenizer:
    """The encoder's tokenizer as LightRAG counts with it; its own default would be downloaded."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    def __deepcopy__(self, _memo: Any) -> _SpanTokenizer:
        return self

    def encode(self, content: str) -> list[int]:
        return list(range(len(self._encoder.token_spans(content))))

    def decode(self, _tokens: list[int]) -> str:
        raise NotImplementedError("text is cut by offsets and never decoded")


async def _no_language_model(*_: Any, **__: Any) -> str:
    raise RuntimeError("indexing asks no language model")


def _sparse(texts: Sequence[str]) -> list[SparseVector]:
    return [sparse.encode_document(text) for text in texts]


def _points(
    group: Sequence[Document], vectors: Sequence[npt.NDArray[np.float32]], terms: Sequence[SparseVector]
) -> list[Point]:
    places = [(document.generation, chunk) for document in group for chunk in document.chunks]
    return [
        Point(ChunkRef(generation.key, generation.number, chunk.index), generation.metadata, dense, found)
        for (generation, chunk), dense, found in zip(places, vectors, terms, strict=True)
    ]


@contextmanager
def _sealed_environment() -> Iterator[None]:
    """Keep LightRAG from reading a `.env` of the working directory, and from ending the process over a variable."""
    removed = os.environ.pop("ENTITY_TYPES", None)
    before = os.environ.get("PYTHON_DOTENV_DISABLED")
    os.environ["PYTHON_DOTENV_DISABLED"] = "1"
    try:
        yield
    finally:
        if removed is not None:
            os.environ["ENTITY_TYPES"] = removed
        if before is None:
            del os.environ["PYTHON_DOTENV_DISABLED"]
        else:
            os.environ["PYTHON_DOTENV_DISABLED"] = before


def _import_lightrag() -> None:
    try:
        import lightrag.lightrag  # noqa: F401 - the package itself loads nothing
    except ImportError as error:
        raise ConfigurationError("LightRAG is not installed: pip install 'dats-rag[writer]'") from error
    # It writes some eight lines a document to stderr, parts of documents among them. What matters we report ourselves.
    logger = logging.getLogger("lightrag")
    logger.handlers[:] = [logging.NullHandler()]
    logger.setLevel(logging.CRITICAL + 1)


@asynccontextmanager
async def open_lightrag_indexer(
    *,
    encoder: Encoder,
    index: PointStore,
    ledger: ChunkLedger,
    working_dir: str | None = None,
    max_tokens: int = 500,
    overlap_tokens: int = 50,
    strategy: Strategy = "semantic",
    find_definitions: FindDefinitions = no_definitions,
    timeout_s: float = 900.0,
) -> AsyncIterator[LightRagIndexer]:
    """Open the pipeline and own its tasks. Arguments: see `LightRagIndexer`.

    Raises: ConfigurationError: LightRAG is not installed, or is another release than the one this was built for.
    """
    with tempfile.TemporaryDirectory(prefix="lightrag-") as scratch:
        indexer = LightRagIndexer(
            encoder=encoder,
            index=index,
            ledger=ledger,
            working_dir=working_dir or scratch,
            max_tokens=max_tokens,
            overlap_tokens=overlap_tokens,
            strategy=strategy,
            find_definitions=find_definitions,
            timeout_s=timeout_s,
        )
        try:
            await indexer.open()
            yield indexer
        finally:
            await indexer.close()
