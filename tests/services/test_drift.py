"""Ledger and index compared: every difference is told exactly, and what repairs it is held to that."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio
from index_engine import DIMENSION, FINGERPRINT, index_on, point, running_engine
from ledgers import Writer, key, tainted, validated

from dats_common.adapters.memory_encoder import MemoryEncoder
from dats_common.adapters.memory_index import MemoryIndex
from dats_common.adapters.sql.ledger import SqlLedger, open_ledger
from dats_common.domain.model import ArtifactKey, ChunkRef, Generation
from dats_common.embedded.qdrant_edge import EngineProcess
from dats_common.maintenance.drift import compare, still_orphaned, sweep_with_figures
from dats_common.maintenance.reindex import reindex
from dats_common.maintenance.sweep import Sweeper
from dats_common.ports import OperatorsIndex

PARTS = 3


class World:
    """A ledger and an index, and documents that are in both."""

    def __init__(self, ledger: SqlLedger, index: OperatorsIndex) -> None:
        self.ledger = ledger
        self.index = index

    async def publish(self, artifact_id: str, *, content: str = "some words to cut", at_s: float = 0) -> Generation:
        """What the writer does, steps V1 to V4."""
        writer = await Writer.of(self.ledger)
        admission = await writer.prepare(validated(artifact_id, content, at_s=at_s), parts=PARTS)
        generation = admission.generation
        assert generation is not None
        await self.store(artifact_id, generation.number)
        await writer.flip(admission)
        return generation

    async def store(self, artifact_id: str, generation: int, *, chunks: Sequence[int] = range(PARTS)) -> None:
        await self.index.store([point(artifact_id, generation=generation, chunk=chunk) for chunk in chunks])


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[SqlLedger]:
    async with open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as opened:
        assert isinstance(opened, SqlLedger)
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[EngineProcess]:
    async with running_engine() as engine:
        yield engine


@pytest.fixture(params=["memory", "engine"])
async def world(request: pytest.FixtureRequest, ledger: SqlLedger, engine: EngineProcess) -> AsyncIterator[World]:
    if request.param == "memory":
        index: OperatorsIndex = MemoryIndex()
        await index.prepare(FINGERPRINT)
        yield World(ledger, index)
        return
    async with index_on(engine) as real:
        await real.prepare(FINGERPRINT)
        yield World(ledger, real)


async def test_a_fleet_in_order_has_no_drift(world: World) -> None:
    for name in ("a", "b"):
        await world.publish(name)
    drift = await compare(ledger=world.ledger, index=world.index)
    assert drift.is_none
    assert (drift.live_chunks, drift.points) == (2 * PARTS, 2 * PARTS)


async def test_points_that_were_lost_are_missing_and_named(world: World) -> None:
    lost, part_lost = await world.publish("lost"), await world.publish("part-lost")
    await world.publish("whole")
    await world.index.remove(lost.key, [lost.number])
    await world.index.remove(part_lost.key, [part_lost.number])
    await world.store("part-lost", part_lost.number, chunks=[1])
    drift = await compare(ledger=world.ledger, index=world.index)
    assert (drift.missing, drift.missing_examples) == (PARTS + PARTS - 1, (key("lost"), key("part-lost")))
    assert drift.orphaned == 0


async def test_points_that_nobody_sees_are_orphaned_and_a_sweep_removes_exactly_them(world: World) -> None:
    live, replaced = await world.publish("live"), await world.publish("replaced", content="old")
    await world.publish("replaced", content="new", at_s=1)
    await world.publish("tainted")
    await world.ledger.taint(tainted("tainted", at_s=1), skew_s=0)
    await world.store("stranger", 77, chunks=[0])
    drift = await compare(ledger=world.ledger, index=world.index)
    assert drift.missing == 0
    assert drift.orphaned == PARTS + PARTS + 1
    assert drift.orphans[key("replaced"), replaced.number] == PARTS
    assert drift.orphans[key("stranger"), 77] == 1
    assert await still_orphaned(drift.orphans, index=world.index) == drift.orphans

    swept = await sweep_with_figures(ledger=world.ledger, index=world.index)
    assert (swept.points, swept.generations) == (2 * PARTS + 1, 3)
    assert await still_orphaned(drift.orphans, index=world.index) == Counter()
    after = await compare(ledger=world.ledger, index=world.index)
    assert after.is_none
    assert await world.index.generations([live.key]) == {live.key: {live.number}}


async def test_the_periodic_sweep_leaves_the_points_of_another_ledger(world: World) -> None:
    """A writer that was led to another fleet's index must not empty it."""
    replaced = await world.publish("replaced", content="old")
    await world.publish("replaced", content="new", at_s=1)
    await world.store("of-another-fleet", 77, chunks=[0, 1])
    sweeper = Sweeper(ledger=world.ledger, index=world.index)
    assert await sweeper.sweep_all() == (1, 1)
    left = await world.index.generations([replaced.key, key("of-another-fleet")])
    assert left[key("of-another-fleet")] == {77}
    assert replaced.number not in left[replaced.key]
    assert await sweeper.sweep_all() == (0, 1)


async def test_a_point_beyond_the_last_chunk_of_a_live_generation_is_orphaned(world: World) -> None:
    live = await world.publish("live")
    await world.store("live", live.number, chunks=[PARTS])
    drift = await compare(ledger=world.ledger, index=world.index)
    assert drift.orphans == {(live.key, live.number): 1}


async def test_what_is_being_written_is_neither_missing_nor_orphaned(world: World) -> None:
    await world.publish("a")
    writer = await Writer.of(world.ledger)
    admission = await writer.prepare(validated("a", "newer", at_s=5), parts=PARTS)
    assert admission.generation is not None
    await world.store("a", admission.generation.number, chunks=[0])
    assert (await compare(ledger=world.ledger, index=world.index)).is_none


async def test_a_version_that_is_replaced_and_swept_during_the_look_is_not_missing(ledger: SqlLedger) -> None:
    class ReplacedMeanwhile(MemoryIndex):
        """Between the look at the ledger and this one, the version that was live is replaced and swept."""

        async def chunks_of(self, keys: Sequence[ArtifactKey]) -> list[ChunkRef]:
            await world.publish("a", content="newer", at_s=1)
            await self.remove(first.key, [first.number])
            return await super().chunks_of(keys)

    index = ReplacedMeanwhile()
    await index.prepare(FINGERPRINT)
    world = World(ledger, index)
    first = await world.publish("a")
    assert (await compare(ledger=ledger, index=index)).missing == 0


async def test_a_rebuild_repairs_what_is_missing(world: World) -> None:
    await world.index.drop()
    encoder = MemoryEncoder(dimension=DIMENSION)
    await reindex(ledger=world.ledger, index=world.index, encoder=encoder)
    lost = await world.publish("lost")
    await world.index.remove(lost.key, [lost.number])
    assert (await compare(ledger=world.ledger, index=world.index)).missing == PARTS
    await reindex(ledger=world.ledger, index=world.index, encoder=encoder)
    assert (await compare(ledger=world.ledger, index=world.index)).is_none
