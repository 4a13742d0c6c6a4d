"""An event loop without a clock and without a thread: time jumps, and the seed decides who goes first.

Every callback belongs to a simulated process or to nobody. A process that is frozen keeps its callbacks until it is
thawed, as SIGSTOP does; one that is dead never runs again: not even its `finally`, as after `kill -9`.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import threading
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from enum import Enum
from typing import Any, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MOST_STEPS = 2_000_000
"""Callbacks of one run: beyond it something spins."""


class State(Enum):
    """Whether a process' callbacks run."""

    RUNNING = "running"
    FROZEN = "frozen"
    DEAD = "dead"


class Lane:
    """The callbacks of one process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = State.RUNNING
        self.parked: list[asyncio.Handle] = []


LANE: ContextVar[Lane | None] = ContextVar("lane", default=None)
"""Whose callback it is; a task inherits it from the one that made it."""


class Stuck(RuntimeError):
    """Nothing can ever happen again, or it never ends."""


class VirtualLoop(asyncio.BaseEventLoop):
    """asyncio's loop with the selector and the clock taken out."""

    def __init__(self, order: random.Random) -> None:
        super().__init__()
        self._order = order
        self._now_s = 0.0
        self._thread = threading.get_ident()
        # Handles, of whose insides typeshed says nothing.
        self._ready: list[Any] = []
        self._scheduled: list[Any] = []
        self._timer_cancelled_count = 0
        self._tasks: list[asyncio.Task[Any]] = []  # a dead task that nobody holds would be collected, and run on
        self.steps = 0

    def create_task(self, coro: Any, *, name: object = None, context: Context | None = None) -> asyncio.Task[Any]:
        """See asyncio; the task is held until the end."""
        task = super().create_task(coro, name=name, context=context)
        self._tasks.append(task)
        return task

    def time(self) -> float:
        """Virtual seconds since the start."""
        return self._now_s

    def start(self, lane: Lane, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """A task of a process."""
        context = copy_context()
        context.run(LANE.set, lane)
        return self.create_task(work, name=name, context=context)

    def thaw(self, lane: Lane) -> None:
        """Let a process go on with what waits for it."""
        lane.state = State.RUNNING
        self._ready += lane.parked
        lane.parked = []

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """There are no threads; generators that are let go of end this way."""
        if threading.get_ident() != self._thread:
            raise Stuck("a thread has entered the simulation")
        return self.call_soon(callback, *args, context=context)

    def _run_once(self) -> None:
        timers = self._scheduled
        if not self._ready:
            while timers and timers[0]._cancelled:
                self._forget(heapq.heappop(timers))
            if not timers:
                raise Stuck("nothing is ready and nothing is scheduled")
            self._now_s = max(self._now_s, timers[0]._when)
        while timers and timers[0]._when <= self._now_s:
            due = heapq.heappop(timers)
            self._forget(due)
            if not due._cancelled:
                self._ready.append(due)
        self._step()

    def _forget(self, timer: Any) -> None:
        timer._scheduled = False
        if timer._cancelled:
            self._timer_cancelled_count -= 1

    def _step(self) -> None:
        ready = self._ready
        if not ready:
            return
        chosen = int(self._order.random() * len(ready))
        ready[chosen], ready[-1] = ready[-1], ready[chosen]
        handle = ready.pop()
        if handle._cancelled:
            return
        lane = handle._context.get(LANE)
        if lane is not None and lane.state is not State.RUNNING:
            lane.parked.append(handle)
            return
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise Stuck(f"{MOST_STEPS} steps and no end")
        handle._run()

    def _process_events(self, event_list: Any) -> None:
        raise NotImplementedError

    def _write_to_self(self) -> None:
        raise NotImplementedError

    def end(self, lanes: list[Lane]) -> None:
        """After the last look: cancel what is left, and let it end, also what is dead or frozen."""
        for lane in lanes:
            self.thaw(lane)
        while pending := [task for task in self._tasks if not task.done()]:
            for task in pending:
                task.cancel()
            # Once may not be enough: a wait that ends just now takes the cancellation for itself.
            self.run_until_complete(_a_while())
        self.run_until_complete(self.shutdown_asyncgens())
        self.close()


async def _a_while() -> None:
    for _ in range(100):
        await asyncio.sleep(0.0)
