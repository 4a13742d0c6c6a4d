"""Who has a slot next: drafts in their order, and before them what is asked about drafts that are done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dats_common.adapters.ollama.slots import Slots
from dats_common.errors import LLMConnectionError, LLMTimeoutError

LATER_S = 5.0


class Scene:
    """Slots, and who has had one, in order."""

    def __init__(self, *, concurrent: int = 1, queue: int = 8) -> None:
        self.slots = Slots(concurrent=concurrent, queue=queue)
        self.served: list[str] = []

    @asynccontextmanager
    async def held(self, name: str, *, urgent: bool = False, within_s: float = LATER_S) -> AsyncIterator[None]:
        until = asyncio.get_running_loop().time() + within_s
        async with self.slots.held(until=until, urgent=urgent):
            self.served.append(name)
            yield

    async def ask(self, name: str, *, urgent: bool = False, within_s: float = LATER_S) -> None:
        async with self.held(name, urgent=urgent, within_s=within_s):
            await asyncio.sleep(0)

    async def waits(self, name: str, *, urgent: bool = False, within_s: float = LATER_S) -> asyncio.Task[None]:
        """It has come as far as it can."""
        asking = asyncio.create_task(self.ask(name, urgent=urgent, within_s=within_s))
        await asyncio.sleep(0)
        assert not asking.done()
        return asking


async def test_drafts_are_served_in_their_order_and_what_is_urgent_before_them() -> None:
    scene = Scene()
    async with scene.held("first"):
        asking = [
            await scene.waits("draft a"),
            await scene.waits("rating a", urgent=True),
            await scene.waits("draft b"),
            await scene.waits("rating b", urgent=True),
        ]
    await asyncio.gather(*asking)
    assert scene.served == ["first", "rating a", "rating b", "draft a", "draft b"]


async def test_what_is_urgent_is_neither_refused_nor_counted_where_the_line_is_full() -> None:
    scene = Scene(queue=1)
    async with scene.held("first"):
        ratings = [await scene.waits(f"rating {n}", urgent=True) for n in range(3)]
        draft = await scene.waits("draft")
        with pytest.raises(LLMConnectionError, match="busy"):
            await scene.ask("one too many")
    await asyncio.gather(*ratings, draft)
    assert scene.served == ["first", "rating 0", "rating 1", "rating 2", "draft"]


async def test_who_gives_a_slot_back_may_go_on_with_something_urgent_before_the_next_draft() -> None:
    scene = Scene()

    async def answer(name: str) -> None:
        await scene.ask(f"draft {name}")
        await scene.ask(f"verdict {name}", urgent=True)
        await scene.ask(f"rating {name}", urgent=True)

    await asyncio.gather(*map(answer, "abc"))
    assert scene.served == [f"{what} {name}" for name in "abc" for what in ("draft", "verdict", "rating")]


async def test_who_gives_a_slot_back_does_not_take_it_again_from_a_draft_that_waits() -> None:
    scene = Scene()
    async with scene.held("first"):
        waiting = await scene.waits("second")
    await scene.ask("first again")
    await waiting
    assert scene.served == ["first", "second", "first again"]


async def test_no_slot_in_time_is_a_timeout_and_leaves_no_place_behind() -> None:
    scene = Scene(queue=1)
    async with scene.held("first"):
        for urgent in (False, True, False, True):
            with pytest.raises(LLMTimeoutError, match="whole time"):
                await scene.ask("late", urgent=urgent, within_s=0.0)
    await scene.ask("second")
    assert scene.served == ["first", "second"]


@pytest.mark.parametrize("urgent", [False, True], ids=["draft", "urgent"])
@pytest.mark.parametrize("turns", [None, 0, 1], ids=["waiting", "before it is given one", "given one"])
async def test_who_is_cancelled_takes_no_slot_along(turns: int | None, urgent: bool) -> None:
    scene = Scene()
    async with scene.held("first"):
        waiting = await scene.waits("cancelled", urgent=urgent)
        behind = await scene.waits("behind")
        if turns is None:
            waiting.cancel()
    for _ in range(turns or 0):
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.wait_for(behind, LATER_S)
    assert scene.served == ["first", "behind"]
    async with scene.held("next"):
        with pytest.raises(LLMTimeoutError):
            await scene.ask("a second slot", within_s=0.0)
