"""How many chats run at once, and how many may wait: a loaded Ollama queues by itself, and tells nobody how long."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dats_common.errors import LLMConnectionError, LLMTimeoutError

BUSY_RETRY_AFTER_S = 2.0


class Slots:
    """First come, first served, up to a bound; what is urgent goes before all that is not, and is never refused.

    A slot that is given back is handed on at the loop's next turn: whoever gave it back may take it up again in between
    for something urgent, so that an answer whose draft is done is finished before another draft begins.
    """

    def __init__(self, *, concurrent: int, queue: int) -> None:
        self._free = concurrent
        self._queue = queue
        self._urgent: deque[asyncio.Future[None]] = deque()
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def held(self, *, until: float, urgent: bool = False) -> AsyncIterator[None]:
        """One slot, waited for until `until`, by the loop's clock.

        Raises: LLMConnectionError: not urgent, and as many wait as may; LLMTimeoutError: none became free in time.
        """
        if self._free and not self._urgent and (urgent or not self._waiting):
            self._free -= 1
        elif not urgent and len(self._waiting) >= self._queue:
            error = LLMConnectionError("the model is busy, and as many requests wait for it as may")
            error.retry_after_s = BUSY_RETRY_AFTER_S
            raise error
        else:
            try:
                async with asyncio.timeout_at(until):
                    await self._given(self._urgent if urgent else self._waiting)
            except TimeoutError as error:
                raise LLMTimeoutError("the model was busy with other requests for the whole time") from error
        try:
            yield
        finally:
            self._give_back()

    async def _given(self, line: deque[asyncio.Future[None]]) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place in line:
                line.remove(place)
            elif not place.cancelled():  # it was given a slot in the same turn
                self._give_back()
            raise

    def _give_back(self) -> None:
        self._free += 1
        asyncio.get_running_loop().call_soon(self._hand_on)

    def _hand_on(self) -> None:
        while self._free and (line := self._urgent or self._waiting):
            place = line.popleft()
            if not place.cancelled():
                self._free -= 1
                place.set_result(None)
