"""Whether time grows with an input or with the square of it: a ratio, which holds on a slow machine too."""

from __future__ import annotations

import time
from collections.abc import Callable

SHARE = 8
"""The large input is so many times the small one: a square takes 64 times as long."""

SLACK = 3.0
"""More than `SHARE` times the time, by so much, is no longer linear: caches miss more often on large inputs."""

LEAST_S = 0.05
"""What a small input takes at least: below that the clock and whatever else runs here decide."""


def assert_grows_linearly(work: Callable[[str], object], text: str) -> None:
    """Fails where `work` takes far longer for `text` than in proportion to an eighth of it, in CPU time."""
    spent = []
    for part in (text[: len(text) // SHARE], text):
        started = time.process_time()
        work(part)
        spent.append(time.process_time() - started)
    small_s, large_s = spent
    told = f"{small_s:.3f} s, and {large_s:.3f} s for {SHARE} times as much"
    assert large_s <= SLACK * SHARE * max(small_s, LEAST_S), told
