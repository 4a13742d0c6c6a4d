"""One micro-batch on its way through LightRAG: its sources, the groups in which it is written, and what came of each.

LightRAG flushes once for each document. Here every document waits for the next common group instead, so that one call
of the encoder serves all documents in flight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from dats_common.domain.model import Chunk, Generation
from dats_common.errors import Unavailable
from dats_common.records import IndexJob

GROUP_CHUNKS = 64
"""A group is written once it has so many chunks: enough to fill a GPU, small enough that chunking the next documents
goes on meanwhile."""

GROUPS_IN_FLIGHT = 2  # While one is being stored the next is being embedded.

LINGER_S = 0.2
"""How long a smaller group waits for documents that were announced but have not come (LightRAG refused them)."""

UNAVAILABLE_IN_A_ROW = 2
"""After so many documents of a failed group found the same system away, the rest of the group is not tried."""


@dataclass(frozen=True, slots=True)
class Document:
    """A generation cut into chunks."""

    generation: Generation
    chunks: tuple[Chunk, ...]


def document_name(generation: Generation) -> str:
    """Unique for ever, so LightRAG never takes a document for a copy or an update of another."""
    return f"{generation.key.document_id}@{generation.number}"


class MicroBatch:
    """Collects chunked documents and writes them in groups; one failing document fails alone."""

    def __init__(self, jobs: Sequence[IndexJob], *, write: Callable[[Sequence[Document]], Awaitable[None]]) -> None:
        """Announce the documents.

        Args:
            jobs: one for each generation.
            write: embeds and stores a group; all of it is durable when it returns.
        """
        self.outcomes: dict[int, int | Exception] = {}
        self._jobs = {document_name(job.generation): job for job in jobs}
        self._awaited = set(self._jobs)
        self._write = write
        self._pending: list[Document] = []
        self._linger: asyncio.TimerHandle | None = None
        self._groups: set[asyncio.Task[None]] = set()
        self._next_group: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._slots = asyncio.Semaphore(GROUPS_IN_FLIGHT)

    @property
    def names(self) -> list[str]:
        """The documents' names, in the order of the jobs."""
        return list(self._jobs)

    @property
    def unresolved(self) -> list[IndexJob]:
        """Jobs of which nothing was heard."""
        return [job for job in self._jobs.values() if job.generation.number not in self.outcomes]

    def job(self, name: str) -> IndexJob:
        """Raises: KeyError: no document of this batch."""
        return self._jobs[name]

    def add(self, name: str, chunks: Sequence[Chunk]) -> None:
        """Hand over a document's chunks; they are written with the next group."""
        self._pending.append(Document(self._jobs[name].generation, tuple(chunks)))
        self._arrived(name)

    def fail(self, name: str, error: Exception) -> None:
        """Record that a document could not be chunked."""
        self.outcomes[self._jobs[name].generation.number] = error
        self._arrived(name)

    async def commit(self) -> None:
        """Wait until all that was added before is written, or has failed."""
        waiting: set[asyncio.Future[None]] = {*self._groups}
        if self._pending:
            waiting.add(self._next_group)
        if waiting:
            await asyncio.wait(waiting)

    async def finish(self) -> None:
        """Write what is left and wait for it."""
        self._start_group()
        if self._groups:
            await asyncio.wait(self._groups)

    async def cancel(self) -> None:
        """End the tasks of this batch; what they have written stays invisible."""
        self._stop_lingering()
        self._next_group.cancel()
        for task in self._groups:
            task.cancel()
        await asyncio.gather(*self._groups, return_exceptions=True)

    def _arrived(self, name: str) -> None:
        self._awaited.discard(name)
        if not self._awaited or sum(len(document.chunks) for document in self._pending) >= GROUP_CHUNKS:
            self._start_group()
        elif self._pending and self._linger is None:
            self._linger = asyncio.get_running_loop().call_later(LINGER_S, self._start_group)

    def _start_group(self) -> None:
        self._stop_lingering()
        if self._pending:
            group, self._pending = self._pending, []
            written, self._next_group = self._next_group, asyncio.get_running_loop().create_future()
            task = asyncio.create_task(self._run(group, written), name="index-group")
            self._groups.add(task)
            task.add_done_callback(self._groups.discard)

    def _stop_lingering(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None

    async def _run(self, group: Sequence[Document], written: asyncio.Future[None]) -> None:
        try:
            async with self._slots:
                await self._write_group(group)
        finally:
            written.cancel()  # Wakes those who wait for it; the outcomes tell how it went.

    async def _write_group(self, group: Sequence[Document]) -> None:
        error = await self._try(group)
        if error is not None and len(group) > 1:
            # The error may be one document's alone: try each, but do not wait out the timeout of a system that is away.
            away = 0
            for document in group:
                if away < UNAVAILABLE_IN_A_ROW:
                    error = await self._try([document])
                    away = away + 1 if isinstance(error, Unavailable) else 0
                else:
                    self.outcomes[document.generation.number] = error or Unavailable("not tried")

    async def _try(self, group: Sequence[Document]) -> Exception | None:
        try:
            await self._write(group)
        except Exception as error:
            self.outcomes.update({document.generation.number: error for document in group})
            return error
        self.outcomes.update({document.generation.number: len(document.chunks) for document in group})
        return None
