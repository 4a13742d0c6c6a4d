"""Searches that wait together share one call of the engine; each gets its own answers, or its own error."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from dats_common.embedded import qdrant_lanes
from dats_common.embedded.qdrant_lanes import MOST_QUERIES_A_PASS, Lane, Wanted

PATIENCE_S = 10


class Engine:
    """Answers a request with itself; holds its first call until it is let go, and records what came together."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.let_go = threading.Event()
        self.entered = threading.Event()

    def query_batch(self, requests: Sequence[str]) -> list[str]:
        self.calls.append(list(requests))
        self.entered.set()
        if len(self.calls) == 1:
            assert self.let_go.wait(PATIENCE_S)
        if "bad" in requests:
            raise ValueError("bad")
        return [f"hits of {request}" for request in requests]


def wanted(*names: str, shape: bytes = b"") -> list[Wanted]:
    return [Wanted(name, shape) for name in names]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr(qdrant_lanes, "PASSES_AT_ONCE", 1)  # Of this machine's cores nothing here is to depend.
    return Engine()


async def held(engine: Engine, lane: Lane) -> asyncio.Task[list[str]]:
    """A first search that keeps the lane busy."""
    task = asyncio.create_task(lane.search(wanted("first")))
    assert await asyncio.to_thread(engine.entered.wait, PATIENCE_S)
    return task


async def waiting(lane: Lane, *searches: list[Wanted]) -> list[asyncio.Task[list[str]]]:
    tasks = [asyncio.create_task(lane.search(each)) for each in searches]
    await asyncio.sleep(0)  # They run up to where they wait.
    return tasks


async def test_one_search_alone_starts_at_once(engine: Engine) -> None:
    engine.let_go.set()
    with ThreadPoolExecutor(2) as threads:
        lane = Lane(engine.query_batch, threads)
        assert await lane.search(wanted("a", "b")) == ["hits of a", "hits of b"]
    assert engine.calls == [["a", "b"]]


async def test_those_that_wait_go_together_and_each_gets_its_own(engine: Engine) -> None:
    with ThreadPoolExecutor(2) as threads:
        lane = Lane(engine.query_batch, threads)
        first = await held(engine, lane)
        tasks = await waiting(lane, *(wanted(f"{n}", f"{n}'") for n in range(5)))
        engine.let_go.set()
        assert await asyncio.gather(*tasks) == [[f"hits of {n}", f"hits of {n}'"] for n in range(5)]
        assert await first == ["hits of first"]
    assert len(engine.calls) == 2


async def test_queries_of_one_shape_stand_side_by_side(engine: Engine) -> None:
    with ThreadPoolExecutor(2) as threads:
        lane = Lane(engine.query_batch, threads)
        first = await held(engine, lane)
        pairs = [[Wanted(f"x{n}", b"x"), Wanted(f"y{n}", b"y")] for n in range(3)]
        tasks = await waiting(lane, *pairs)
        engine.let_go.set()
        assert await asyncio.gather(*tasks) == [[f"hits of x{n}", f"hits of y{n}"] for n in range(3)]
        await first
    assert engine.calls[1] == ["x0", "x1", "x2", "y0", "y1", "y2"]


async def test_a_pass_is_bounded(engine: Engine) -> None:
    with ThreadPoolExecutor(2) as threads:
        lane = Lane(engine.query_batch, threads)
        first = await held(engine, lane)
        tasks = await waiting(lane, *(wanted(str(n)) for n in range(MOST_QUERIES_A_PASS + 5)))
        engine.let_go.set()
        await asyncio.gather(first, *tasks)
    assert [len(call) for call in engine.calls] == [1, MOST_QUERIES_A_PASS, 5]


async def test_a_query_that_the_engine_refuses_fails_alone(engine: Engine) -> None:
    with ThreadPoolExecutor(2) as threads:
        lane = Lane(engine.query_batch, threads)
        first = await held(engine, lane)
        tasks = await waiting(lane, wanted("a"), wanted("bad"), wanted("c"))
        engine.let_go.set()
        outcomes = await asyncio.gather(first, *tasks, return_exceptions=True)
    assert outcomes[1] == ["hits of a"]
    assert isinstance(outcomes[2], ValueError)
    assert outcomes[3] == ["hits of c"]


async def test_a_caller_that_has_gone_is_not_asked_for(engine: Engine) -> None:
    with ThreadPoolExecutor(2) as threads:
        lane = Lane(engine.query_batch, threads)
        first = await held(engine, lane)
        gone, stays = await waiting(lane, wanted("gone"), wanted("stays"))
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        engine.let_go.set()
        await asyncio.gather(first, stays)
    assert engine.calls[1] == ["stays"]


async def test_closing_waits_for_the_searches_that_came_before(engine: Engine) -> None:
    with ThreadPoolExecutor(2) as threads:
        lane = Lane(engine.query_batch, threads)
        first = await held(engine, lane)
        (after,) = await waiting(lane, wanted("after"))
        closing = asyncio.create_task(lane.close())
        await asyncio.sleep(0)
        assert not closing.done()
        engine.let_go.set()
        await asyncio.wait_for(closing, PATIENCE_S)
        assert first.done()
        assert after.done()
