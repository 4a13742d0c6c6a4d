"""What the routes stand on, put together by the wiring."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp

from dats_common.contracts.answers import AnswerRequest
from dats_common.contracts.api import QueryRequest, SearchMode
from dats_common.errors import Unavailable
from dats_common.maintenance.relay import Relay
from dats_common.maintenance.sweep import Sweeper
from dats_common.ports import Bus, Encoder, Evidence, Generator, Index, Ledger
from dats_common.telemetry.logs import log
from dats_common.telemetry.replica_metrics import QueryMetrics
from services.query.answering import Answering
from services.query.engine import Retrieval
from services.query.streams import Streams

_MOST_ERRANDS = 256


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """Bounds that the settings fix."""

    deadline_s: float
    answer_deadline_s: float
    embed_wait_s: float
    queue_max_size: int
    skew_s: float


@dataclass(frozen=True, slots=True)
class QueryDefaults:
    """What a request leaves open."""

    search_mode: SearchMode
    max_tokens: int
    top_k: int
    answer_chunks: int

    def context_chunks(self, request: AnswerRequest) -> int:
        """How many chunks an answer may be made from."""
        return request.max_context_chunks if "max_context_chunks" in request.model_fields_set else self.answer_chunks

    def fill(self, request: QueryRequest) -> QueryRequest:
        """The request with these values where it names none of its own."""
        named = request.model_fields_set
        return request.model_copy(
            update={name: getattr(self, name) for name in ("search_mode", "max_tokens", "top_k") if name not in named}
        )


class Errands:
    """Work that an answer need not wait for: relaying and sweeping after a taint. Bounded; the writer's periodic
    relay and sweep do what is dropped or fails here."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self, name: str, work: Callable[[], Awaitable[Any]]) -> None:
        """Start `work` unless too much is under way already."""
        if len(self._tasks) >= _MOST_ERRANDS:
            return
        task = asyncio.create_task(self._quietly(name, work), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _quietly(self, name: str, work: Callable[[], Awaitable[Any]]) -> None:
        try:
            await work()
        except Unavailable as error:
            log("query").warning("errand_postponed", component=name, detail=str(error))

    async def finish(self, *, timeout_s: float) -> None:
        """Let what is under way end, for at most `timeout_s`."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=timeout_s)
            for task in late:
                task.cancel()


@dataclass(frozen=True, slots=True)
class QueryServices:
    """One replica's parts.

    Attributes:
        model: the default model of the model server; None: answers need none.
        trace_requests: puts a span around each request that was let in; None: nobody traces.
        disk_bytes: free and all of the data directory's file system; not a number where the system does not tell.
    """

    engine: Retrieval
    answers: Answering
    streams: Streams
    generator: Generator
    model: str | None
    evidence: Evidence
    encoder: Encoder
    index: Index
    ledger: Ledger
    bus: Bus
    relay: Relay
    sweeper: Sweeper
    metrics: QueryMetrics
    limits: QueryLimits
    defaults: QueryDefaults
    index_memory: Callable[[], int]
    disk_bytes: Callable[[], tuple[float, float]]
    errands: Errands
    trace_requests: Callable[[ASGIApp], ASGIApp] | None = None
