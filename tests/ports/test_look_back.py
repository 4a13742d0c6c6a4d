"""A ledger that went back in time, and what brings its taints back: the copy, and the replay."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from ledgers import Writer, key, tainted, validated

from dats_common.adapters.memory_bus import MemoryBus
from dats_common.adapters.sql.backup import copy_file
from dats_common.adapters.sql.ledger import SqlLedger, open_ledger
from dats_common.contracts.api import CANARY_PROJECT
from dats_common.contracts.events import SOURCE
from dats_common.domain.model import ArtifactKey
from dats_common.errors import ConfigurationError, LedgerUnavailable
from dats_common.maintenance.look_back import Replayed, replay_taints
from dats_common.maintenance.relay import Relay

SKEW_S = 60.0
ELSEWHERE = ArtifactKey("elsewhere", "a")


async def live(ledger: SqlLedger) -> set[ArtifactKey]:
    return {generation.key async for generation, _ in ledger.live_chunks()}


async def replay(ledger: SqlLedger, bus: MemoryBus) -> Replayed:
    return await replay_taints(ledger=ledger, bus=bus, skew_s=SKEW_S, actor="test")


@dataclass
class Lost:
    """A ledger that is about to be lost, its broker, and a way back to its backup."""

    ledger: SqlLedger
    bus: MemoryBus
    directory: Path

    async def relayed(self) -> None:
        await Relay(ledger=self.ledger, bus=self.bus).drain()

    def back_up(self) -> None:
        assert copy_file(self.directory / "ledger.db", self.directory / "backup.db", timeout_s=10) > 0

    @asynccontextmanager
    async def restored(self) -> AsyncIterator[SqlLedger]:
        async with open_ledger(f"sqlite:///{self.directory / 'backup.db'}") as ledger:
            yield ledger


@pytest.fixture
async def lost(tmp_path: Path) -> AsyncIterator[Lost]:
    """`a` of two tenants, `b` and `c` are live, and told."""
    async with open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        writer = await Writer.of(ledger)
        for artifact in (key("a"), ELSEWHERE, key("b"), key("c")):
            await writer.publish(validated(artifact, at_s=-100))
        lost = Lost(ledger, MemoryBus(), tmp_path)
        await lost.relayed()
        yield lost


async def test_taints_since_the_backup_are_applied_again_with_their_tenant_their_reach_and_only_once(
    lost: Lost,
) -> None:
    lost.back_up()
    receipts = [
        await lost.ledger.taint(tainted("a", at_s=0), skew_s=SKEW_S),
        await lost.ledger.taint(tainted("b", at_s=0, tenant_id=None), skew_s=SKEW_S),
    ]
    await lost.relayed()
    assert await live(lost.ledger) == {ELSEWHERE, key("c")}
    async with lost.restored() as restored:
        assert await live(restored) == {key("a"), ELSEWHERE, key("b"), key("c")}  # what the replay is for
        done = await replay(restored, lost.bus)
        assert (done.taints, done.known, done.is_complete) == (2, 0, True)
        assert await live(restored) == {ELSEWHERE, key("c")}
        # It reaches as far as it did, for versions that come later too.
        assert {receipt.through for receipt in receipts} == {
            (await restored.taint(tainted("a", at_s=0), skew_s=SKEW_S)).through
        }
        await Relay(ledger=restored, bus=lost.bus).drain()
        again = await replay(restored, lost.bus)
        assert (again.taints, again.is_complete) == (0, True)
        assert await live(restored) == {ELSEWHERE, key("c")}


async def test_what_became_searchable_since_the_backup_is_named(lost: Lost) -> None:
    lost.back_up()
    writer = await Writer.of(lost.ledger)
    await writer.publish(validated("late", at_s=-10))
    await writer.publish(validated(key(f"{CANARY_PROJECT}/1/1"), at_s=-10))
    await lost.relayed()
    async with lost.restored() as restored:
        assert (await replay(restored, lost.bus)).forgotten == ("late",)


async def test_events_that_begin_after_the_backup_do_not_count_as_all(lost: Lost) -> None:
    lost.back_up()
    await lost.ledger.taint(tainted("b", at_s=0), skew_s=SKEW_S)
    await lost.relayed()
    lost.bus = MemoryBus()  # it lost what it had
    await lost.ledger.taint(tainted("a", at_s=0), skew_s=SKEW_S)
    await lost.relayed()
    async with lost.restored() as restored:
        done = await replay(restored, lost.bus)
        assert (done.taints, done.is_complete) == (1, False)
        # Also not after a writer has told more, so that broker and ledger have events in common again.
        await (await Writer.of(restored)).publish(validated("new", at_s=-10))
        await Relay(ledger=restored, bus=lost.bus).drain()
        assert not (await replay(restored, lost.bus)).is_complete
    assert not (await replay(lost.ledger, MemoryBus())).is_complete


async def test_an_invalidation_of_the_first_release_names_no_tenant_and_covers_all(lost: Lost) -> None:
    lost.back_up()
    await lost.ledger.taint(tainted("a", at_s=0), skew_s=SKEW_S)
    await lost.relayed()
    older = MemoryBus()
    for body in map(json.loads, await lost.bus.published()):
        body["data"].pop("tenant_id", None)
        await older.publish(body["type"], body, event_id=body["id"])
    async with lost.restored() as restored:
        await replay(restored, older)
        assert await live(restored) == {key("b"), key("c")}


async def test_what_others_publish_under_our_names_keeps_no_taint_from_coming(lost: Lost) -> None:
    lost.back_up()
    ours = {"source": SOURCE, "id": "x", "time": "2026-01-01T12:00:00Z"}
    strange = [
        "not an object",
        {"source": "elsewhere"},
        {"source": SOURCE},
        {**ours, "type": "embedding.invalidated", "data": {"artifact_ids": ["c"]}},
        {**ours, "type": "embedding.invalidated", "data": {"artifact_ids": 3, "through": "now", "cascade_id": None}},
        {**ours, "type": "embedding.completed", "data": None},
        {**ours, "type": "embedding.completed", "time": "noon", "data": {"artifact_id": "c"}},
        {**ours, "type": "embedding.completed", "id": 7, "data": {"artifact_id": "c"}},
    ]
    for body in [b"{", b"\xff", *(json.dumps(each).encode() for each in strange)]:
        lost.bus.inject("embedding.completed", body)
    await lost.ledger.taint(tainted("a", at_s=0), skew_s=SKEW_S)
    await lost.relayed()
    async with lost.restored() as restored:
        done = await replay(restored, lost.bus)
        assert (done.taints, done.forgotten, done.is_complete) == (1, (), True)
        assert await live(restored) == {ELSEWHERE, key("b"), key("c")}


async def test_a_copy_is_of_the_file_that_was_named_whatever_its_name(tmp_path: Path) -> None:
    directory = tmp_path / "a#b"
    directory.mkdir()
    async with open_ledger(f"sqlite:///{directory / 'ledger.db'}"):
        copy_file(directory / "ledger.db", directory / "copy.db", timeout_s=10)
    with closing(sqlite3.connect(directory / "copy.db")) as copy:
        assert copy.execute("SELECT count(*) FROM rag_artifacts").fetchall() == [(0,)]
    assert {each.name for each in tmp_path.iterdir()} == {"a#b"}


async def test_a_copy_appears_whole_or_not_at_all(lost: Lost) -> None:
    lost.back_up()
    with pytest.raises(ConfigurationError, match="exists already"):
        lost.back_up()
    source = lost.directory / "ledger.db"
    with pytest.raises(ConfigurationError, match="cannot write"):
        copy_file(source, lost.directory / "nowhere" / "copy.db", timeout_s=10)
    with pytest.raises(LedgerUnavailable):
        copy_file(lost.directory / "nothing.db", lost.directory / "copy.db", timeout_s=10)
    damaged = lost.directory / "damaged.db"
    whole = (lost.directory / "backup.db").read_bytes()
    damaged.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LedgerUnavailable):
        copy_file(damaged, lost.directory / "copy.db", timeout_s=10)
    assert {each.name for each in lost.directory.glob("*copy*")} | {
        each.name for each in lost.directory.glob("*.part")
    } == set()
