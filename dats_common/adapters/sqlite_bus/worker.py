"""The thread that owns the file. Changes of messages that come together share one transaction, hence one fsync."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dats_common.adapters.sqlite_bus.file import QueueFile
from dats_common.errors import BrokerUnavailable

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """One change that waits for its transaction."""

    change: Callable[[QueueFile], object]
    done: asyncio.Future[Any]


class FileThread:
    """The thread that owns the file, seen from the event loop."""

    def __init__(self, path: Path, *, busy_timeout_s: float) -> None:
        self._path = path
        self._busy_timeout_s = busy_timeout_s
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sqlite-bus")
        self._file: QueueFile
        self._jobs: list[_Job] = []
        self._turn = asyncio.Lock()

    async def open(self) -> None:
        self._file = await self._in_thread(lambda: QueueFile(self._path, busy_timeout_s=self._busy_timeout_s))

    async def close(self) -> None:
        if hasattr(self, "_file"):
            await self._in_thread(self._file.close)
        self._thread.shutdown(wait=False)

    async def read(self, question: Callable[[QueueFile], T]) -> T:
        """Ask without a transaction. Raises: BrokerUnavailable."""
        return await self._in_thread(lambda: question(self._file))

    async def lease(self, change: Callable[[QueueFile], T]) -> T:
        """Change claims or leases, at once. Raises: BrokerUnavailable."""

        def run() -> T:
            with self._file.transaction(durable=False):
                return change(self._file)

        return await self._in_thread(run)

    async def write(self, change: Callable[[QueueFile], object]) -> None:
        """Change messages durably, sharing the transaction with whoever writes meanwhile. Raises: BrokerUnavailable."""
        job = _Job(change, asyncio.get_running_loop().create_future())
        self._jobs.append(job)
        async with self._turn:
            if not job.done.done():
                jobs, self._jobs = self._jobs, []
                # A cancelled caller leaves, the transaction of all the others goes on.
                await asyncio.shield(asyncio.create_task(self._commit(jobs), name="sqlite-bus commit"))
        await job.done

    async def _commit(self, jobs: Sequence[_Job]) -> None:
        def run() -> None:
            with self._file.transaction(durable=True):
                for job in jobs:
                    job.change(self._file)

        try:
            await self._in_thread(run)
        except BrokerUnavailable as error:
            for job in jobs:
                job.done.set_exception(error)
                job.done.exception()  # marked as seen: its caller may be gone
        else:
            for job in jobs:
                job.done.set_result(None)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        except sqlite3.Error as error:
            raise BrokerUnavailable(f"the queue's file did not answer: {error}") from error
