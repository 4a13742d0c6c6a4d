"""A watchdog for a handler that hangs while its event loop lives on: the broker would never notice.

The broker's heartbeats are answered by the loop, so a stuck handler keeps its single-active place for ever. A thread
looks at when each batch in hand last moved on and ends the process; the standby then takes over. Each batch is looked
at by itself: others that move on must not hide one that is stuck.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from dats_common.trace_context import TraceContext, current_trace, within_trace

EXIT_CODE = 70  # EX_SOFTWARE of sysexits.h: the supervisor restarts the process

_SHORTEST_LOOK_S = 0.05


@dataclass(eq=False, slots=True)
class Work:
    """A batch in hand: when it last moved on, and whether it waits for something else, which is watched instead."""

    moved_at: float = field(default_factory=time.monotonic)
    waits: bool = False

    def moved(self) -> None:
        """A step was finished: a batch encoded, a transaction committed."""
        self.moved_at = time.monotonic()


_in_hand: ContextVar[Work | None] = ContextVar("the batch that this task handles", default=None)


@contextmanager
def waiting() -> Iterator[None]:
    """Around waiting for what bounds its own time, such as another batch: to wait in line is no hang."""
    work = _in_hand.get()
    if work is None:
        yield
        return
    work.waits = True
    try:
        yield
    finally:
        work.waits = False
        work.moved()


class Turn:
    """Whose batch a shared part works for now. The part's own tasks cannot tell: they outlive batches."""

    def __init__(self) -> None:
        self._work: Work | None = None
        self._trace: TraceContext | None = None

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Around what the part does for the batch of this task."""
        self._work, self._trace = _in_hand.get(), current_trace()
        try:
            yield
        finally:
            self._work = self._trace = None

    def working(self) -> AbstractContextManager[None]:
        """Around a step that one of the part's own tasks takes for the batch: in the batch's trace."""
        return within_trace(self._trace)

    def moved(self) -> None:
        """The part finished a step."""
        if self._work is not None:
            self._work.moved()


class Progress:
    """The batches in hand. Work that is not under way cannot hang."""

    def __init__(self) -> None:
        self._works: set[Work] = set()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Around a batch: silence inside it counts as a hang."""
        work = Work()
        self._works.add(work)
        token = _in_hand.set(work)
        try:
            yield
        finally:
            _in_hand.reset(token)
            self._works.discard(work)

    def moved(self) -> None:
        """The batch of this task finished a step."""
        work = _in_hand.get()
        if work is not None:
            work.moved()

    @property
    def silent_s(self) -> float:
        """Seconds since the batch moved on that has been silent for longest; 0 when none is in hand."""
        now = time.monotonic()
        return max((now - work.moved_at for work in tuple(self._works) if not work.waits), default=0.0)


def _end_process() -> None:
    # Not sys.exit: the loop or a lock may be what hangs, and unacknowledged messages are safe with the broker.
    os._exit(EXIT_CODE)


@contextmanager
def watchdog(progress: Progress, *, limit_s: float, end: Callable[[], None] = _end_process) -> Iterator[None]:
    """End the process once work in hand has made no progress for `limit_s`."""
    stopped = threading.Event()

    def watch() -> None:
        # Work that began since the last look cannot have been silent for long enough before the next one.
        while not stopped.wait(max(_SHORTEST_LOOK_S, limit_s - progress.silent_s)):
            if progress.silent_s > limit_s:
                end()
                return

    thread = threading.Thread(target=watch, name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(timeout=2.0)
