"""A scorer that may take its time to come, or not come at all: the service starts without it, and says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from dats_common.domain.grounding import Pair
from dats_common.errors import ConfigurationError, Unavailable
from dats_common.ports import SupportScorer
from dats_common.records import Scored


class LateScorer:
    """`ports.SupportScorer` that scores nothing until the real one is there; made by `open_late`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.scorer: SupportScorer | None = None
        self.reason = "it is still being loaded"

    async def score(self, pairs: Sequence[Pair]) -> Scored:
        """See `ports.SupportScorer`."""
        if self.scorer is None:
            return Scored((None,) * len(pairs), self.reason if pairs else "")
        return await self.scorer.score(pairs)

    async def ping(self) -> None:
        """See `ports.SupportScorer`."""
        if self.scorer is None:
            raise Unavailable(self.reason)
        await self.scorer.ping()


@asynccontextmanager
async def open_late(
    name: str, opening: AbstractAsyncContextManager[SupportScorer], *, report: Callable[[ConfigurationError], None]
) -> AsyncIterator[LateScorer]:
    """A stand-in at once, and behind it what `opening` gives, as soon as it does.

    A model is loaded in seconds, but a hub that does not answer is asked for almost a minute before it is given up.

    Args:
        report: told once if it does not come at all.
    """
    late = LateScorer(name)
    stop = asyncio.Event()

    async def hold() -> None:
        try:
            async with opening as scorer:
                late.scorer = scorer
                await stop.wait()
        except ConfigurationError as error:
            late.reason = str(error)
            report(error)
        except Exception as error:  # libraries have errors of their own, and nobody else would ever hear of this one
            late.reason = f"it could not be opened: {type(error).__name__}"
            report(ConfigurationError(late.reason))
        finally:
            late.scorer = None

    task = asyncio.create_task(hold(), name=name)
    try:
        yield late
    finally:
        stop.set()
        if late.scorer is None:
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
