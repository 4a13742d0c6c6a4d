"""kill -9 the embedded engine while it is written to: what it confirmed is there, what it confirmed as gone is gone."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from index_engine import FINGERPRINT, index_on, point, running_engine, unit

from dats_common.domain.model import ArtifactKey
from dats_common.errors import IndexUnavailable
from dats_common.ports import Index

KILLS = 8
WRITERS = 3
ARTIFACTS_PER_WRITE = 70  # More than one operation of the engine takes, so that a kill can fall between two.


@dataclass
class Journal:
    """What the engine confirmed. A call that failed may have been applied or not: it proves nothing either way."""

    there: set[ArtifactKey] = field(default_factory=set)
    gone: set[ArtifactKey] = field(default_factory=set)
    written: int = 0
    confirmed: int = 0

    def next_artifacts(self) -> list[str]:
        self.written += 1
        return [f"w{self.written}-{number}" for number in range(ARTIFACTS_PER_WRITE)]


async def write_until_killed(index: Index, journal: Journal, rng: random.Random) -> None:
    while True:
        names = journal.next_artifacts()
        try:
            await index.store([point(name, dense=unit(1, rng.random())) for name in names])
            journal.there.update(ArtifactKey("default", name) for name in names)
            journal.confirmed += 1
            for victim in rng.sample(sorted(journal.there), 2):
                journal.there.discard(victim)
                await index.remove(victim, [1])
                journal.gone.add(victim)
                journal.confirmed += 1
        except IndexUnavailable:
            return


async def present(index: Index) -> set[ArtifactKey]:
    found: set[ArtifactKey] = set()
    async for page in index.scan():
        found.update(page)
    return found


@pytest.mark.slow
@pytest.mark.timeout(240)  # Nine starts of the engine: 15 s on an idle machine, a minute on a busy one.
async def test_no_confirmed_write_is_lost_and_no_confirmed_removal_comes_back(tmp_path: Path) -> None:
    journal, rng = Journal(), random.Random(20)
    for _ in range(KILLS):
        before = journal.confirmed
        async with running_engine(tmp_path) as engine, index_on(engine, collection="c") as index:
            await index.prepare(FINGERPRINT)
            found = await present(index)
            assert journal.there - found == set()
            assert journal.gone & found == set()
            writers = [asyncio.create_task(write_until_killed(index, journal, rng)) for _ in range(WRITERS)]
            async with asyncio.timeout(30):
                while journal.confirmed < before + 5:
                    await asyncio.sleep(0.01)
            # The moment of the kill is the experiment: anywhere within a few commits.
            await asyncio.sleep(rng.uniform(0, 0.15))
            os.kill(engine.pid, signal.SIGKILL)
            await asyncio.wait_for(asyncio.gather(*writers), 30)
            assert await engine.ended() == -signal.SIGKILL
    async with running_engine(tmp_path) as engine, index_on(engine, collection="c") as index:
        found = await present(index)
        assert journal.there - found == set()
        assert journal.gone & found == set()
    assert journal.gone
    assert len(journal.there) > KILLS * ARTIFACTS_PER_WRITE
