"""How many chats run at once, and how many may wait: a loaded Ollama queues by itself, and tells nobody how long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dats_common.errors import LLMConnectionError, LLMTimeoutError

BUSY_RETRY_AFTER_S = 2.0


class Slots:
    """First come, first served, up to a bound."""

    def __init__(self, *, concurrent: int, queue: int) -> None:
        self._free = asyncio.Semaphore(concurrent)
        self._queue = queue
        self._waiting = 0

    @asynccontextmanager
    async def held(self, *, until: float) -> AsyncIterator[None]:
        """One slot, waited for until `until`, by the loop's clock.

        Raises: LLMConnectionError: as many wait as may; LLMTimeoutError: none became free in time.
        """
        if self._free.locked() and self._waiting >= self._queue:
            error = LLMConnectionError("the model is busy, and as many requests wait for it as may")
            error.retry_after_s = BUSY_RETRY_AFTER_S
            raise error
        self._waiting += 1
        try:
            async with asyncio.timeout_at(until):
                await self._free.acquire()
        except TimeoutError as error:
            raise LLMTimeoutError("the model was busy with other requests for the whole time") from error
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._free.release()
