"""Whether time grows with an input or with the square of it: a ratio, which holds on a slow machine too."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

SHARE = 8
"""The large input is so many times the small one: a square takes 64 times as long."""

SLACK = 3.0
"""More than `SHARE` times the time, by so much, is no longer linear: caches miss more often on large inputs."""

LEAST_S = 0.1
"""What a small input takes at least: below that the clock and whatever else runs here decide."""


def assert_grows_linearly(work: Callable[[str], object], text: str) -> None:
    """Fails where `work` takes far longer for `text` than in proportion to an eighth of it, in CPU time."""
    small_s, large_s = spent_s(work, text[: len(text) // SHARE]), spent_s(work, text)
    told = f"{small_s:.3f} s, and {large_s:.3f} s for {SHARE} times as much"
    assert large_s <= SLACK * SHARE * max(small_s, LEAST_S), told


def spent_s(work: Callable[[str], object], text: str) -> float:
    """Without the collector, which goes through all that other tests have left whenever much is made anew."""
    gc.collect()
    gc.disable()
    try:
        started = time.process_time()
        work(text)
        return time.process_time() - started
    finally:
        gc.enable()
