"""A watchdog for a handler that hangs while its event loop lives on: the broker would never notice.

The broker's heartbeats are answered by the loop, so a stuck handler keeps its single-active place for ever. A thread
looks at the time of the last progress instead and ends the process; the standby then takes over.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EXIT_CODE = 70  # EX_SOFTWARE of sysexits.h: the supervisor restarts the process


class Progress:
    """When work last moved on. Work that is not under way cannot hang."""

    def __init__(self) -> None:
        self._in_hand = 0
        self._moved_at = time.monotonic()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Around a batch: silence inside it counts as a hang."""
        self._in_hand += 1
        self.moved()
        try:
            yield
        finally:
            self._in_hand -= 1
            self.moved()

    def moved(self) -> None:
        """A step was finished: a batch encoded, a transaction committed."""
        self._moved_at = time.monotonic()

    @property
    def silent_s(self) -> float:
        """Seconds since the last progress while work is in hand, else 0."""
        return time.monotonic() - self._moved_at if self._in_hand else 0.0


def _end_process() -> None:
    # Not sys.exit: the loop or a lock may be what hangs, and unacknowledged messages are safe with the broker.
    os._exit(EXIT_CODE)


@contextmanager
def watchdog(progress: Progress, *, limit_s: float, end: Callable[[], None] = _end_process) -> Iterator[None]:
    """End the process once work in hand has made no progress for `limit_s`."""
    stopped = threading.Event()

    def watch() -> None:
        while not stopped.wait(min(1.0, limit_s / 4)):
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
