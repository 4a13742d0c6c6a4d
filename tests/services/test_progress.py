"""What the watchdog takes for a hang: each batch in hand by itself, and none that only waits for another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from dats_common.domain.model import ArtifactKey, Generation, SourceMetadata
from dats_common.records import IndexJob
from services.writer.progress import Progress, Turn, watchdog
from services.writer.wiring import Lanes, WatchedIndexer

LIMIT_S = 0.4
KEY = ArtifactKey("default", "a")
JOB = IndexJob(Generation(number=1, key=KEY, version=1, metadata=SourceMetadata(project_id="p")), "text")


class Indexing:
    """An indexer whose long-lived task reports each step; it ends when it is told to."""

    def __init__(self) -> None:
        self.turn = Turn()
        self.end = asyncio.Event()
        self.began = asyncio.Event()

    async def index(self, jobs: Sequence[IndexJob]) -> Mapping[int, int | Exception]:
        self.began.set()
        await self.end.wait()
        return {}


async def _batch(progress: Progress, lanes: Lanes) -> None:
    with progress.working():
        await lanes.index([JOB])


async def _for(seconds: float, *moving: Turn) -> None:
    """Let time pass in which these parts report steps."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for turn in moving:
            turn.moved()
        await asyncio.sleep(0.02)


async def test_a_stuck_batch_is_found_although_another_one_moves_on() -> None:
    stuck, moving = Indexing(), Indexing()
    progress, ended_at = Progress(), list[float]()
    lanes = Lanes([WatchedIndexer(each, each.turn) for each in (stuck, moving)])
    started = time.monotonic()
    with watchdog(progress, limit_s=LIMIT_S, end=lambda: ended_at.append(time.monotonic())):
        async with asyncio.TaskGroup() as batches:
            for indexing in (stuck, moving):
                batches.create_task(_batch(progress, lanes))
                await indexing.began.wait()
            await _for(3 * LIMIT_S, moving.turn)
            for indexing in (stuck, moving):
                indexing.end.set()
    assert len(ended_at) == 1
    assert ended_at[0] - started >= LIMIT_S


async def test_a_batch_that_waits_for_a_free_lane_is_not_taken_for_a_hang() -> None:
    busy = Indexing()
    progress = Progress()
    lanes = Lanes([WatchedIndexer(busy, busy.turn)])
    longest_s = 0.0
    async with asyncio.TaskGroup() as batches:
        batches.create_task(_batch(progress, lanes))
        await busy.began.wait()
        batches.create_task(_batch(progress, lanes))
        for _ in range(6):
            await _for(LIMIT_S / 4, busy.turn)
            longest_s = max(longest_s, progress.silent_s)
        busy.end.set()
    assert longest_s < LIMIT_S
    assert progress.silent_s == 0.0
