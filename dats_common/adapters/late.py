"""A model that may take its time to come, or not come at all: the service starts without it, and says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Generic, TypeVar

from dats_common.domain.grounding import Pair
from dats_common.errors import ConfigurationError, RerankerUnavailable, Unavailable
from dats_common.ports import Reranker, SupportScorer
from dats_common.records import Scored

T = TypeVar("T")


class Late(Generic[T]):
    """What is there, or why it is not; see `open_late`."""

    def __init__(self) -> None:
        self.there: T | None = None
        self.reason = "it is still being loaded"


class LateScorer(Late[SupportScorer]):
    """`ports.SupportScorer` that scores nothing until the real one is there."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    async def score(self, pairs: Sequence[Pair]) -> Scored:
        """See `ports.SupportScorer`."""
        if self.there is None:
            return Scored((None,) * len(pairs), self.reason if pairs else "")
        return await self.there.score(pairs)

    async def ping(self) -> None:
        """See `ports.SupportScorer`."""
        if self.there is None:
            raise Unavailable(self.reason)
        await self.there.ping()


class LateReranker(Late[Reranker]):
    """`ports.Reranker` that orders nothing until the real one is there."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self.model = model

    async def rerank(self, query: str, passages: Sequence[str]) -> list[float]:
        """See `ports.Reranker`."""
        return await self._ready().rerank(query, passages)

    async def ping(self) -> None:
        """See `ports.Reranker`."""
        await self._ready().ping()

    def _ready(self) -> Reranker:
        if self.there is None:
            raise RerankerUnavailable(self.reason)
        return self.there


L = TypeVar("L", bound=Late[Any])


@asynccontextmanager
async def open_late(
    late: L, opening: AbstractAsyncContextManager[Any], *, report: Callable[[ConfigurationError], None]
) -> AsyncIterator[L]:
    """A stand-in at once, and behind it what `opening` gives, as soon as it does.

    A model is loaded in seconds, but a hub that does not answer is asked for almost a minute before it is given up.

    Args:
        report: told once if it does not come at all.
    """
    stop = asyncio.Event()

    async def hold() -> None:
        try:
            async with opening as there:
                late.there = there
                await stop.wait()
        except ConfigurationError as error:
            late.reason = str(error)
            report(error)
        except Exception as error:  # libraries have errors of their own, and nobody else would ever hear of this one
            late.reason = f"it could not be opened: {type(error).__name__}"
            report(ConfigurationError(late.reason))
        finally:
            late.there = None

    task = asyncio.create_task(hold(), name="late")
    try:
        yield late
    finally:
        stop.set()
        if late.there is None:
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
