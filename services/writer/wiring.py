"""The composition root of a writer."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Literal

from dats_common.adapters.definitions import find_definitions
from dats_common.adapters.lightrag import open_lightrag_indexer
from dats_common.domain.model import Chunk, Generation
from dats_common.errors import Unavailable
from dats_common.maintenance.relay import Relay
from dats_common.maintenance.sweep import Sweeper
from dats_common.ports import Encoder, Index, Indexer, Ledger
from dats_common.records import IndexJob, Point
from dats_common.settings import Settings
from dats_common.telemetry.in_hand import MeasuredBus
from dats_common.telemetry.writer_metrics import WriterMetrics
from services.backends import (
    open_bus,
    open_encoder,
    open_evidence,
    open_index,
    open_ledger,
    open_tracing,
    prepare_index,
)
from services.writer.consumer import Consumer, Limits
from services.writer.handlers import EventHandlers
from services.writer.leadership import Leadership
from services.writer.observer import MetricsObserver
from services.writer.pipeline import EmbeddingPipeline
from services.writer.ports import WriterPorts
from services.writer.probes import Watched
from services.writer.progress import Progress, Turn, waiting
from services.writer.writer import Writer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_PING_TIMEOUT_S = 3.0

INDEXERS = 2
"""While one batch is cut, stored and made visible, another one keeps the encoder busy."""


class ProgressEncoder:
    """An encoder that reports each encoded batch as progress: a hung one is what the watchdog is for."""

    def __init__(self, encoder: Encoder, turn: Turn) -> None:
        self._encoder = encoder
        self._turn = turn
        self.model = encoder.model
        self.backend = encoder.backend
        self.dimension = encoder.dimension
        self.max_tokens = encoder.max_tokens
        self.token_spans = encoder.token_spans

    async def encode(self, texts: Sequence[str], *, kind: Literal["query", "document"]) -> npt.NDArray[np.float32]:
        """As the encoder, in batches small enough to be called progress."""
        try:
            with self._turn.working():
                return await self._encoder.encode(texts, kind=kind)
        finally:
            self._turn.moved()


class ProgressStore:
    """An index that reports each call's end as progress, also a failed one: waiting out a timeout is no hang."""

    def __init__(self, index: Index, turn: Turn) -> None:
        self._index = index
        self._turn = turn

    async def store(self, points: Sequence[Point]) -> None:
        """As the index."""
        try:
            with self._turn.working():
                await self._index.store(points)
        finally:
            self._turn.moved()


class BatchLedger:
    """A ledger whose chunk rows are written in the trace of the batch they belong to."""

    def __init__(self, ledger: Ledger, turn: Turn) -> None:
        self._ledger = ledger
        self._turn = turn

    async def write_chunks(self, documents: Mapping[Generation, Sequence[Chunk]], *, embedding_model: str) -> None:
        """As the ledger."""
        with self._turn.working():
            await self._ledger.write_chunks(documents, embedding_model=embedding_model)


class WatchedIndexer:
    """An indexer whose encoder and store report to the batch it works for."""

    def __init__(self, indexer: Indexer, turn: Turn) -> None:
        self._indexer = indexer
        self._turn = turn

    async def index(self, jobs: Sequence[IndexJob]) -> Mapping[int, int | Exception]:
        """As the indexer."""
        with self._turn.taken():
            return await self._indexer.index(jobs)


class Lanes:
    """Several indexers as one: each takes one batch at a time, whichever is free."""

    def __init__(self, indexers: Sequence[Indexer]) -> None:
        self._free: asyncio.Queue[Indexer] = asyncio.Queue(len(indexers))
        for indexer in indexers:
            self._free.put_nowait(indexer)

    async def index(self, jobs: Sequence[IndexJob]) -> Mapping[int, int | Exception]:
        """As the indexer."""
        with waiting():
            indexer = await self._free.get()
        try:
            return await indexer.index(jobs)
        finally:
            self._free.put_nowait(indexer)


@asynccontextmanager
async def open_writer_ports(settings: Settings) -> AsyncIterator[WriterPorts]:
    """The adapters that the settings name; it waits for the broker, saying so.

    Raises: ConfigurationError: a setting is wrong, the promised GPU is missing, or the collection is another model's.
    """
    async with (
        open_tracing(settings, role="writer") as tracing,
        open_ledger(settings) as ledger,
        open_evidence(settings) as evidence,
        open_encoder(settings, for_writer=True) as encoder,
        open_index(settings) as index,
        open_bus(settings, name="writer") as bus,
    ):
        await prepare_index(index, encoder)
        ports = WriterPorts(ledger=ledger, evidence=evidence, encoder=encoder, index=index, bus=bus)
        if tracing is not None:
            from services.writer.tracing import traced

            ports = traced(ports, tracing, settings)
        yield ports


@asynccontextmanager
async def open_writer(settings: Settings, ports: WriterPorts) -> AsyncIterator[Writer]:
    """A writer over `ports`, with indexers of its own.

    Raises: ConfigurationError: LightRAG is not installed, or is another release than the one this was built for.
    """
    async with AsyncExitStack() as lanes:
        indexers = [await lanes.enter_async_context(_open_lane(settings, ports)) for _ in range(INDEXERS)]
        yield build_writer(
            settings,
            ports,
            indexer=ports.around_indexer(Lanes(indexers)),
            progress=Progress(),
            writer_id=f"{socket.gethostname()}:{os.getpid()}",
        )


@asynccontextmanager
async def _open_lane(settings: Settings, ports: WriterPorts) -> AsyncIterator[Indexer]:
    chunking = settings.lightrag.chunking
    turn = Turn()
    async with open_lightrag_indexer(
        encoder=ProgressEncoder(ports.encoder, turn),
        index=ProgressStore(ports.index, turn),
        ledger=BatchLedger(ports.ledger, turn),
        working_dir=str(settings.working_dir),
        max_tokens=chunking.max_chunk_size,
        overlap_tokens=chunking.overlap,
        strategy=chunking.strategy,
        find_definitions=find_definitions,
    ) as indexer:
        yield WatchedIndexer(indexer, turn)


def build_writer(
    settings: Settings, ports: WriterPorts, *, indexer: Indexer, progress: Progress, writer_id: str
) -> Writer:
    """Pure assembly: the parts of a writer, wired."""
    metrics = WriterMetrics()
    metrics.watch_disk(settings.data_dir)
    ledger, index, bus = ports.ledger, ports.index, MeasuredBus(ports.bus, metrics)
    leadership = Leadership(ledger, writer_id)
    metrics.writer_active.set_function(lambda: leadership.is_active)
    sweeper = Sweeper(ledger=ledger, index=index)
    relay = Relay(ledger=ledger, bus=bus)
    pipeline = EmbeddingPipeline(ledger=ledger, indexer=indexer, leadership=leadership, sweeper=sweeper)
    consumer = Consumer(
        bus=bus,
        ledger=ledger,
        handlers=EventHandlers(ledger=ledger, pipeline=pipeline, skew_s=settings.events.skew_s),
        leadership=leadership,
        relay=relay,
        sweeper=sweeper,
        evidence=ports.evidence,
        progress=progress,
        observer=MetricsObserver(metrics, handling=ports.handling),
        healthy=lambda: _all_answer(ports),
        limits=Limits(
            batch_size=settings.embedding.batch_size,
            linger_s=settings.embedding.linger_ms / 1e3,
            prefetch=min(settings.embedding.queue_max_size, 4 * settings.embedding.batch_size),
            retry_attempts=settings.embedding.retry_attempts,
        ),
    )
    return Writer(
        writer_id=writer_id,
        consumer=consumer,
        leadership=leadership,
        relay=relay,
        sweeper=sweeper,
        evidence=ports.evidence,
        ledger=ledger,
        index=index,
        bus=bus,
        encoder=ports.encoder,
        metrics=metrics,
        progress=progress,
        sweep_interval_s=settings.events.sweep_interval_s,
        answers_kept_s=settings.answers.kept_days * 86_400.0,
    )


def watched(settings: Settings, writer: Writer) -> Watched:
    """What the probes look at. The encoder is not asked: one that is away is no reason to take a writer's place."""
    return Watched(
        progress=writer.progress,
        silence_limit_s=settings.events.watchdog_s,
        needs={"ledger": writer.ledger.ping, "index": writer.index.ping, "broker": writer.bus.ping},
        metrics=writer.metrics,
    )


async def _all_answer(ports: WriterPorts) -> bool:
    """Whether what every event needs is there: if not, no event is to blame for failing."""
    try:
        async with asyncio.timeout(_PING_TIMEOUT_S):
            await ports.ledger.ping()
            await ports.index.ping()
            await ports.bus.ping()
            await ports.encoder.encode(["ping"], kind="query")  # Another server's may be away too; queries go first.
    except (Unavailable, TimeoutError):
        return False
    return True
