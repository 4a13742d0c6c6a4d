"""Searches that wait at the same time share a pass over the vectors, as writes share a flush.

An exact search reads every vector that its filter lets through, and judges the filter for every point. The engine does
both once for queries that stand side by side in a batch and differ in their vectors alone: of 16 such searches over
100,000 points each costs a fifth of what it costs alone (measured), and their results are the same to the last bit.
A search that finds nobody else waiting starts at once.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

MOST_QUERIES_A_PASS = 32
"""More hardly saves anything, and all of them wait for the whole pass."""
PASSES_AT_ONCE = max(1, (os.cpu_count() or 2) // 2)
"""Of each lane. Two lanes keep all cores busy; more passes would share less."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One query for the engine.

    Attributes:
        shape: the same for queries that differ in their vectors alone.
        scans: whether it goes through all vectors.
    """

    request: Any
    shape: bytes
    scans: bool = False


@dataclass(slots=True)
class _Search:
    """Queries of one caller, and who waits for their answers."""

    queries: Sequence[Wanted]
    done: asyncio.Future[list[Any]]


class Lane:
    """Searches of one kind, in the order in which they came."""

    def __init__(self, query_batch: Callable[[Sequence[Any]], list[Any]], executor: Executor) -> None:
        """Args: query_batch: answers engine requests in their order; runs in the executor."""
        self._query_batch = query_batch
        self._executor = executor
        self._waiting: deque[_Search] = deque()
        self._passes: set[asyncio.Task[None]] = set()

    async def search(self, queries: Sequence[Wanted]) -> list[Any]:
        """An answer for each query, in their order. Raises: what the engine raised for these queries."""
        done: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Search(queries, done))
        self._start()
        return await done

    async def close(self) -> None:
        """Once every search that came before has its answer."""
        while self._passes:
            await asyncio.gather(*self._passes, return_exceptions=True)

    def _start(self) -> None:
        while self._waiting and len(self._passes) < PASSES_AT_ONCE:
            if group := self._next_group():
                task = asyncio.create_task(self._pass(group), name="engine-search")
                self._passes.add(task)
                task.add_done_callback(self._passed)

    def _passed(self, task: asyncio.Task[None]) -> None:
        self._passes.discard(task)
        self._start()

    def _next_group(self) -> list[_Search]:
        group: list[_Search] = []
        queries = 0
        while self._waiting and (not group or queries + len(self._waiting[0].queries) <= MOST_QUERIES_A_PASS):
            search = self._waiting.popleft()
            if not search.done.done():  # Else its caller has gone.
                group.append(search)
                queries += len(search.queries)
        return group

    async def _pass(self, group: Sequence[_Search]) -> None:
        try:
            answers = await self._ask([search.queries for search in group])
        except Exception as error:
            if len(group) > 1:  # One of them is at fault: each alone, and only that one fails.
                for search in group:
                    await self._pass([search])
                return
            for search in group:
                if not search.done.done():
                    search.done.set_exception(error)
            return
        for search, answer in zip(group, answers, strict=True):
            if not search.done.done():
                search.done.set_result(answer)

    async def _ask(self, searches: Sequence[Sequence[Wanted]]) -> list[list[Any]]:
        """Answers for each search, after one call of the engine for all of them."""
        places = [(one, two) for one, queries in enumerate(searches) for two in range(len(queries))]
        places.sort(key=lambda place: searches[place[0]][place[1]].shape)  # Side by side, else nothing is shared.
        requests = [searches[one][two].request for one, two in places]
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._executor, self._query_batch, requests)
        answers: list[list[Any]] = [[None] * len(queries) for queries in searches]
        for (one, two), hits in zip(places, found, strict=True):
            answers[one][two] = hits
        return answers


class Lanes:
    """Scans of all vectors apart from the others, which are short: on two cores a hybrid search has both at once."""

    def __init__(self, query_batch: Callable[[Sequence[Any]], list[Any]], executor: Executor) -> None:
        self._scans = Lane(query_batch, executor)
        self._others = Lane(query_batch, executor)

    async def search(self, queries: Sequence[Wanted]) -> list[Any]:
        """An answer for each query, in their order. Raises: what the engine raised for these queries."""
        sides = [
            (lane, [place for place, query in enumerate(queries) if query.scans is scans])
            for lane, scans in ((self._scans, True), (self._others, False))
        ]
        asked = [(lane, places) for lane, places in sides if places]
        found = await asyncio.gather(*(lane.search([queries[place] for place in places]) for lane, places in asked))
        answers: list[Any] = [None] * len(queries)
        for (_, places), hits in zip(asked, found, strict=True):
            for place, hit in zip(places, hits, strict=True):
                answers[place] = hit
        return answers

    async def close(self) -> None:
        """Once every search that came before has its answer."""
        await asyncio.gather(self._scans.close(), self._others.close())
