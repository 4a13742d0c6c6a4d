"""A loop that is cancelled ends, whatever its library makes of the cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

TIMES = 60
STEP_S = 0.0005
DEADLINE_S = 5.0


async def ends_when_cancelled(call: Callable[[], Awaitable[object]]) -> None:
    """Cancel a loop of such calls, each time a little later than before; then it must still work.

    Raises: AssertionError: a cancellation was lost, or another error came out of it.
    """

    async def loop() -> None:
        while True:
            await call()
            await asyncio.sleep(0)  # a twin in memory never waits

    for number in range(TIMES):
        task = asyncio.create_task(loop(), name="cancelled")
        await asyncio.sleep(number * STEP_S)
        task.cancel()
        await asyncio.wait([task], timeout=DEADLINE_S)
        assert task.done(), f"cancelled after {number * STEP_S * 1e3:.1f} ms, and went on"
        assert task.cancelled(), repr(task.exception())
    await call()
