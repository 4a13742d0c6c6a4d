"""How a delivery ends: acknowledged, retried, given back or dead-lettered; and what each of them leaves behind."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
import time
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rig import POISON, Rig, Switch, encoded, eventually

from dats_common.adapters.sql.identity import open_key_store
from dats_common.contracts.topology import (
    ARTIFACT_TAINTED,
    COMMANDS_QUEUE,
    DEAD_LETTERS_QUEUE,
    PUBLISHED_QUEUE,
    TAINTS_QUEUE,
    TASK_VALIDATED,
    VALIDATED_QUEUE,
)
from dats_common.domain.model import ArtifactKey, EventTime, SourceMetadata, Taint, Validated
from dats_common.errors import LedgerUnavailable
from dats_common.maintenance.sweep import Sweeper
from dats_common.records import TaintReceipt
from services.writer.leadership import Leadership
from services.writer.progress import EXIT_CODE, Progress, watchdog


def key(artifact_id: str) -> ArtifactKey:
    return ArtifactKey("default", artifact_id)


def text(artifact_id: str) -> str:
    return f"a report on {artifact_id} and its invoices"


def moment(seconds: float) -> str:
    """A producer's time, so many seconds from ten minutes ago."""
    return (datetime.now(UTC) - timedelta(minutes=10) + timedelta(seconds=seconds)).isoformat()


# ------------------------------------------------------------------------------------------------------- bad messages

GOOD = {"artifact_id": "a", "content": "long enough content", "metadata": {"project_id": "p"}}

UNREADABLE = {
    "not JSON": b"certainly not JSON",
    "empty": b"",
    "NaN": b'{"data": {"artifact_id": "a", "content": "long enough", "metadata": {"project_id": "p", "x": NaN}}}',
    "duplicate keys": b'{"data": {}, "data": {}}',
    "an array": b"[]",
    "a body of another type": encoded({"data": "text"}),
    "no artifact_id": encoded({"data": {**GOOD, "artifact_id": None}}),
    "a number as id": encoded({"data": {**GOOD, "artifact_id": 7}}),
    "an id of 300 characters": encoded({"data": {**GOOD, "artifact_id": "x" * 300}}),
    "empty content": encoded({"data": {**GOOD, "content": ""}}),
    "content of blanks": encoded({"data": {**GOOD, "content": " " * 9}}),
    "content over 1 MB": encoded({"data": {**GOOD, "content": "x" * 1_048_577}}),
    "invalid UTF-8": encoded({"data": GOOD}).replace(b"long", b"\xff\xfe"),
    "a lone surrogate": encoded({"data": {**GOOD, "content": "long enough \ud800"}}),
    "a null character": encoded({"data": {**GOOD, "content": "long enough \0"}}),
    "metadata of the wrong type": encoded({"data": {**GOOD, "metadata": []}}),
    "a time without offset": encoded({"data": GOOD, "time": "2026-01-01T12:00:00"}),
    "over 8 MB": encoded({"data": {**GOOD, "extra": "x" * 8 * 1024 * 1024}}),
    "true and lists where text is asked": encoded({"data": {"artifact_id": True, "content": [], "metadata": "p"}}),
    "nested too deep": b'{"data": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}


@pytest.mark.parametrize("body", UNREADABLE.values(), ids=UNREADABLE)
async def test_a_message_that_breaks_the_contract_is_dead_lettered_with_its_reason_and_reported(
    rig: Rig, body: bytes
) -> None:
    rig.bus.inject(TASK_VALIDATED, body)
    rig.validated("good", text("good"))
    async with rig.writer(retry_attempts=3):
        (headers,) = await rig.dead_letters(1)
        await rig.all_live("good")
        await rig.settled()
    assert headers["x-source-queue"] == VALIDATED_QUEUE
    assert headers["x-attempts"] == 1
    assert headers["x-reason"]
    assert "long enough" not in headers["x-reason"], "a reason quotes nothing"
    (failed,) = rig.published("embedding.failed")
    assert failed["reason"] == headers["x-reason"]
    assert rig.bus.queue(DEAD_LETTERS_QUEUE)[0].body == body


@pytest.mark.parametrize("broken", [{"content": ""}, {"metadata": {"tenant_id": "acme"}}])
async def test_the_report_of_a_refused_event_names_what_can_be_read_of_it(
    rig: Rig, broken: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    rig.bus.inject(TASK_VALIDATED, encoded({"id": "7", "data": {**GOOD, "tenant_id": "acme", **broken}}))
    async with rig.writer():
        await rig.dead_letters(1)
        await rig.settled()
    (failed,) = rig.published("embedding.failed")
    assert (failed["artifact_id"], failed["tenant_id"], failed["event_id"]) == ("a", "acme", "7")
    assert "event_id=7" in capsys.readouterr().out


async def test_what_was_approved_is_indexed_however_short(rig: Rig) -> None:
    rig.bus.inject(TASK_VALIDATED, encoded({"id": "7", "data": {**GOOD, "content": "x[::-1]"}}))
    async with rig.writer():
        await rig.settled()
    (completed,) = rig.published("embedding.completed")
    assert (completed["status"], completed["chunks"]) == ("indexed", 1)


async def test_a_million_characters_in_one_line_are_indexed(rig: Rig) -> None:
    rig.validated("line", "word " * 200_000)
    async with rig.writer():
        await rig.all_live("line")


async def test_an_event_with_ids_of_the_longest_kind_can_still_fail_in_order(rig: Rig) -> None:
    message = {"id": "i" * 256, "source": "s" * 256, "data": {**GOOD, "content": f"{POISON} in a document"}}
    rig.bus.inject(TASK_VALIDATED, encoded(message))
    async with rig.writer():
        await rig.dead_letters(1)
        await rig.settled()
    assert [data["artifact_id"] for data in rig.published("embedding.failed")] == ["a"]


@pytest.mark.parametrize("body", [b"nope", encoded({"data": {}}), encoded({"data": {"artifact_ids": [7, ""]}})])
async def test_a_taint_without_a_usable_id_is_dead_lettered(rig: Rig, body: bytes) -> None:
    rig.bus.inject(ARTIFACT_TAINTED, body)
    async with rig.writer():
        (headers,) = await rig.dead_letters(1)
        await rig.settled()
    assert headers["x-source-queue"] == TAINTS_QUEUE
    assert rig.published("embedding.invalidated") == []


FLAWS_OF_TAINTS: dict[str, dict[str, Any]] = {
    "a reason too long": {"data": {"reason": "hunter2 " * 600}},
    "a reason with a null character": {"data": {"reason": "hunter2\0"}},
    "a reason that is an object": {"data": {"reason": {"hunter2": 1}}},
    "a number as cascade": {"data": {"cascade_id": 7}},
    "metadata that is text": {"data": {"metadata": "hunter2"}},
    "a time that is none": {"time": "hunter2"},
    "a time of 1970": {"time": "1970-01-01T00:00:00Z"},
    "an id too long": {"id": "hunter2" * 40},
    "a source with a line break": {"id": "1", "source": "hunter2\n"},
    "a tenant too long": {"data": {"tenant_id": "hunter2" * 40}},
    "NaN": {"score": float("nan")},
}


@pytest.mark.parametrize("flawed", FLAWS_OF_TAINTS.values(), ids=FLAWS_OF_TAINTS)
async def test_a_taint_with_a_flaw_beside_its_ids_hides_them_and_is_dead_lettered(
    rig: Rig, tmp_path: Path, flawed: dict[str, Any]
) -> None:
    rig.validated("a", text("a"))
    async with rig.writer():
        await rig.all_live("a")
        rig.bus.inject(ARTIFACT_TAINTED, encoded({**flawed, "data": {"artifact_id": "a", **flawed.get("data", {})}}))
        (headers,) = await rig.dead_letters(1)
        await rig.settled()
    assert await rig.live("a") == set()
    assert [data["artifact_ids"] for data in rig.published("embedding.invalidated")] == [["a"]]
    (failed,) = rig.published("embedding.failed")
    assert failed["reason"] == headers["x-reason"]
    assert "hunter2" not in headers["x-reason"]
    assert "hunter2" not in json.dumps(rig.bus.bodies(PUBLISHED_QUEUE))
    async with open_key_store(f"sqlite:///{tmp_path / 'ledger.db'}") as keys:
        (entry,) = await keys.audit(limit=2)
    assert "hunter2" not in repr(entry), "what cannot be used does not enter the audit"


async def test_a_taint_with_some_bad_ids_covers_the_good_ones_and_is_dead_lettered(rig: Rig) -> None:
    rig.validated("good", text("good"))
    async with rig.writer():
        await rig.all_live("good")
        rig.tainted(7, "good", "x" * 300)
        (headers,) = await rig.dead_letters(1)
        await rig.settled()
    assert await rig.live("good") == set()
    assert "data.artifact_ids[0]" in headers["x-reason"]
    assert "data.artifact_ids[2]" in headers["x-reason"]
    assert [data["artifact_ids"] for data in rig.published("embedding.invalidated")] == [["good"]]


# ------------------------------------------------------------------------------------------------- outages and poison


async def test_an_outage_gives_events_back_uncounted_and_they_succeed_afterwards(rig: Rig) -> None:
    rig.index.switch.away = True
    rig.validated("a", text("a"))
    async with rig.writer(retry_attempts=0):

        async def given_back() -> bool:
            (message,) = rig.bus.queue(VALIDATED_QUEUE)
            return message.redelivered

        await eventually(given_back)
        assert [message.attempt for message in rig.bus.queue(VALIDATED_QUEUE)] == [1]
        rig.index.switch.away = False
        await rig.all_live("a")
    assert rig.bus.queue(DEAD_LETTERS_QUEUE) == []
    assert rig.published("embedding.failed") == []


async def test_a_whole_batch_in_an_outage_waits_once_and_is_not_taken_for_a_hang(rig: Rig) -> None:
    rig.index.switch.away = True
    for number in range(10):
        rig.validated(f"a{number}", text(f"a{number}"))
    progress = Progress()
    longest_s = 0.0
    async with rig.writer(retry_attempts=0, progress=progress):

        async def all_given_back() -> bool:
            nonlocal longest_s
            longest_s = max(longest_s, progress.silent_s)
            return all(message.redelivered for message in rig.bus.queue(VALIDATED_QUEUE))

        started = time.monotonic()
        await eventually(all_given_back)
        took_s = time.monotonic() - started
        rig.index.switch.away = False
        await rig.all_live(*(f"a{number}" for number in range(10)))
    assert took_s < 5.0, "each event waited out a pause of its own"
    assert longest_s < 4.0


async def test_a_batch_whose_events_wait_for_the_broker_is_not_taken_for_a_hang(rig: Rig) -> None:
    rig.bus.confirming.hold()
    rig.validated("a", text("a"))
    progress = Progress()
    async with rig.writer(progress=progress):
        await asyncio.wait_for(rig.bus.confirming.reached.wait(), 5)
        assert len(rig.bus.queue(VALIDATED_QUEUE)) == 1, "the batch is in hand"
        assert progress.silent_s == 0.0
        rig.bus.confirming.open.set()
        await rig.all_live("a")


async def test_a_poisonous_document_fails_alone(rig: Rig) -> None:
    good = [f"good{number}" for number in range(5)]
    for artifact in good[:3]:
        rig.validated(artifact, text(artifact))
    rig.validated("bad", f"{POISON} in a document")
    for artifact in good[3:]:
        rig.validated(artifact, text(artifact))
    async with rig.writer(retry_attempts=0):
        await rig.all_live(*good)
        (headers,) = await rig.dead_letters(1)
        await rig.settled()
    assert "gave up after 1 attempts" in headers["x-reason"]
    assert POISON not in headers["x-reason"]
    assert [data["artifact_id"] for data in rig.published("embedding.failed")] == ["bad"]
    assert await rig.index.generations([key("bad")]) == {}


async def test_a_ledger_error_that_one_event_causes_falls_back_to_one_by_one(rig: Rig) -> None:
    class Picky(type(rig.ledger)):  # type: ignore[misc]
        async def admit(self, events: Any, *, epoch: int) -> Any:
            if any(event.key.artifact_id == "bad" for event in events):
                raise ValueError("one row breaks the transaction")
            return await super().admit(events, epoch=epoch)

    rig.ledger = Picky(rig.ledger._database)  # type: ignore[attr-defined]
    for artifact in ("one", "bad", "two"):
        rig.validated(artifact, text(artifact))
    async with rig.writer(retry_attempts=0):
        await rig.all_live("one", "two")
        await rig.dead_letters(1)
        await rig.settled()
    assert [data["artifact_id"] for data in rig.published("embedding.failed")] in (["bad"], [None])


async def test_retries_are_counted_and_end_as_a_dead_letter(rig: Rig) -> None:
    rig.validated("bad", f"{POISON} in a document")
    async with rig.writer(retry_attempts=1):
        (headers,) = await rig.dead_letters(1)
    assert headers["x-attempts"] == 2
    assert len([texts for texts in rig.encoder.calls if POISON in texts[0]]) == 2
    (failed,) = rig.published("embedding.failed")
    assert failed["attempts"] == 2


# ----------------------------------------------------------------------------------------------- taints and embedding


async def test_a_taint_is_committed_while_embedding_hangs(rig: Rig) -> None:
    rig.validated("a", text("a"))
    rig.encoder.documents.hold()
    async with rig.writer():
        await asyncio.wait_for(rig.encoder.documents.reached.wait(), 5)
        rig.tainted("a")

        async def acknowledged() -> bool:
            return rig.bus.queue(TAINTS_QUEUE) == [] and len(rig.published("embedding.invalidated")) == 1

        await eventually(acknowledged)
        rig.encoder.documents.open.set()
        await rig.settled()
    assert await rig.live("a") == set()
    assert rig.published("embedding.completed") == []
    await Sweeper(ledger=rig.ledger, index=rig.index).sweep_all()
    assert await rig.index.count() == 0


async def test_a_taint_between_storing_and_flipping_wins(rig: Rig) -> None:
    rig.validated("a", text("a"))
    rig.index.storing.hold()
    async with rig.writer():
        await asyncio.wait_for(rig.index.storing.reached.wait(), 5)
        rig.tainted("a")

        async def invalidated() -> bool:
            return len(rig.published("embedding.invalidated")) == 1

        await eventually(invalidated)
        rig.index.storing.open.set()
        await rig.settled()
    assert len(rig.index.stored) == 1, "the window was not hit"
    assert await rig.live("a") == set()


def brief(ledger: Any, *, most_ids: int, commit: Switch) -> Any:
    """The ledger, where a taint of many ids is never done in time; `commit` holds up or fails those of several."""

    class Brief(type(ledger)):  # type: ignore[misc]
        async def taint(self, taint: Taint, *, skew_s: float) -> TaintReceipt:
            if len(taint.artifact_ids) > most_ids:
                raise LedgerUnavailable("the ledger did not answer in time")
            if len(taint.artifact_ids) > 1:
                await commit.passed()
                if commit.away:
                    raise LedgerUnavailable("the ledger did not answer in time")
            receipt: TaintReceipt = await super().taint(taint, skew_s=skew_s)
            return receipt

    return Brief(ledger._database)


async def test_a_taint_of_very_many_ids_is_committed_in_parts_each_announced_by_itself(rig: Rig) -> None:
    rig.ledger = brief(rig.ledger, most_ids=1000, commit=Switch())
    for artifact in ("first", "last"):
        rig.validated(artifact, text(artifact))
    async with rig.writer():
        await rig.all_live("first", "last")
        ids = ["first", *(f"never seen {number}" for number in range(2500)), "last"]
        rig.tainted(*ids)
        await rig.settled()
    assert await rig.live("first", "last") == set()
    announced = [data["artifact_ids"] for data in rig.published("embedding.invalidated")]
    assert [len(part) for part in announced] == [1000, 1000, 502]
    assert [artifact for part in announced for artifact in part] == ids
    assert await rig.index.count() == 0, "each part is swept"
    assert rig.bus.queue(DEAD_LETTERS_QUEUE) == []


async def test_other_taints_are_committed_between_the_parts_of_a_large_one(rig: Rig) -> None:
    commit = Switch()
    rig.ledger = brief(rig.ledger, most_ids=1000, commit=commit)
    rig.validated("urgent", text("urgent"))
    async with rig.writer():
        await rig.all_live("urgent")
        commit.hold()
        rig.tainted(*(f"a{number}" for number in range(1500)))
        await asyncio.wait_for(commit.reached.wait(), 5)
        rig.tainted("urgent")

        async def announced() -> bool:
            return len(rig.published("embedding.invalidated")) > 0

        await eventually(announced)
        assert [data["artifact_ids"] for data in rig.published("embedding.invalidated")] == [["urgent"]]
        assert await rig.live("urgent") == set()
        commit.open.set()
        await rig.settled()
    assert len(rig.published("embedding.invalidated")) == 3


async def test_a_large_taint_that_fails_between_its_parts_goes_on_where_it_stopped(rig: Rig, tmp_path: Path) -> None:
    commit = Switch()
    rig.ledger = brief(rig.ledger, most_ids=1000, commit=commit)
    message = {"id": "large", "data": {"artifact_ids": [f"a{number}" for number in range(1500)]}}
    async with rig.writer():

        async def announced(parts: int) -> None:
            async def done() -> bool:
                return len(rig.published("embedding.invalidated")) >= parts

            await eventually(done)

        commit.hold()
        rig.bus.inject(ARTIFACT_TAINTED, encoded(message))
        await asyncio.wait_for(commit.reached.wait(), 5)
        commit.hold_the_next()
        await announced(1)
        await asyncio.wait_for(commit.reached.wait(), 5)
        commit.away = True
        commit.open.set()

        async def tried_again() -> bool:
            return any(message.attempt > 1 for message in rig.bus.queue(TAINTS_QUEUE))

        await eventually(tried_again)
        commit.away = False
        await rig.settled()
    assert [len(data["artifact_ids"]) for data in rig.published("embedding.invalidated")] == [1000, 500]
    first, second = (data["through"] for data in rig.published("embedding.invalidated"))
    assert first < second, "what came in between without a time is covered too"
    async with open_key_store(f"sqlite:///{tmp_path / 'ledger.db'}") as keys:
        done = [entry.artifact_count for entry in await keys.audit(limit=10)]
    assert done == [500, 1000], "the newest first; what was done is not done again"
    assert rig.bus.queue(DEAD_LETTERS_QUEUE) == []


async def test_a_taint_is_acknowledged_while_the_index_is_away_and_its_points_go_later(rig: Rig) -> None:
    rig.validated("a", text("a"))
    async with rig.writer():
        await rig.all_live("a")
        rig.index.switch.away = True
        rig.tainted("a")
        await rig.settled()
        assert await rig.live("a") == set()
    rig.index.switch.away = False  # only now: a writer that lives would sweep by itself
    assert await rig.index.count() == 1
    assert await Sweeper(ledger=rig.ledger, index=rig.index).sweep_all() == (1, 0)
    assert await rig.index.count() == 0


# ------------------------------------------------------------------------------------------------- copies and versions


async def test_the_same_artifact_twice_in_one_batch_is_handled_in_order(rig: Rig) -> None:
    rig.validated("a", "the first version of it", time=moment(0))
    rig.validated("a", "the second version of it", time=moment(1))
    async with rig.writer():
        await rig.settled()
        await rig.all_live("a")
    assert [each["generation"] for each in rig.published("embedding.completed")] == sorted(
        each["generation"] for each in rig.published("embedding.completed")
    )
    texts = [chunk.text async for _, chunks in rig.ledger.live_chunks() for chunk in chunks]
    assert texts == ["the second version of it"]
    assert await rig.index.count() == 1, "the replaced generation was swept"


async def test_the_same_event_many_times_at_once_makes_one_generation_and_writes_its_points_once(rig: Rig) -> None:
    at = moment(0)
    for _ in range(8):
        rig.validated("a", text("a"), time=at)
    async with rig.writer(batch_size=2):  # two batches run side by side
        await rig.settled()
    assert len(rig.index.stored) == 1
    assert len(rig.published("embedding.completed")) == 1
    assert await rig.index.generations([key("a")]) == {key("a"): {1}}


async def test_unchanged_content_under_a_newer_time_writes_no_points(rig: Rig) -> None:
    rig.validated("a", text("a"), time=moment(0))
    async with rig.writer():
        await rig.all_live("a")
        await rig.settled()
        rig.validated("a", text("a"), time=moment(5))
        await rig.settled()
    assert len(rig.index.stored) == 1
    completed = rig.published("embedding.completed")
    assert [each["status"] for each in completed] == ["indexed", "unchanged"]
    assert completed[1]["version"] - completed[0]["version"] >= 4_000_000
    assert completed[1]["generation"] == completed[0]["generation"]


async def test_a_new_version_sweeps_the_old_generation(rig: Rig) -> None:
    async with rig.writer():
        for number in range(3):
            rig.validated("a", f"version {number} of the report", time=moment(number))
            await rig.settled()
    assert len(rig.index.stored) == 3
    assert await rig.index.generations([key("a")]) == {key("a"): {3}}


# ---------------------------------------------------------------------------------------------------- two writers


async def test_a_fenced_writer_gives_back_and_activates_again(rig: Rig) -> None:
    rig.validated("before", text("before"))
    async with rig.writer() as leadership:
        await rig.all_live("before")
        rig.encoder.documents.hold()
        rig.validated("fenced", text("fenced"))
        await asyncio.wait_for(rig.encoder.documents.reached.wait(), 5)
        first = leadership.held
        assert first is not None
        assert await rig.ledger.activate("another") == first + 1
        rig.encoder.documents.open.set()
        await rig.all_live("before", "fenced")
        assert leadership.held == first + 2
        await rig.settled()
    assert rig.bus.queue(DEAD_LETTERS_QUEUE) == []


async def test_what_a_lost_connection_left_behind_does_not_take_the_epoch_from_another_writer(rig: Rig) -> None:
    """The writer hung, and the broker serves another one now: what is still in hand here must not activate again."""
    for number in (1, 2):  # of one artifact: the second waits behind the first, before it asks for the epoch
        rig.validated("a", text(f"a, version {number}"), time=moment(number))
    rig.encoder.documents.hold()
    async with AsyncExitStack() as hung:
        leadership = await hung.enter_async_context(rig.writer("hung", batch_size=1))
        waiting = rig.bus.queue(VALIDATED_QUEUE)

        async def busy() -> bool:
            return leadership.is_active and all(message.holder for message in waiting)

        await eventually(busy)
        async with rig.bus.subscribe(VALIDATED_QUEUE, prefetch=1):
            for connection in {id(message.holder): message.holder for message in waiting}.values():
                assert connection is not None
                connection.disconnect()
            epoch = await rig.ledger.activate("another")
            await hung.aclose()
            assert not leadership.is_active
            (admission,) = await rig.ledger.admit(
                [Validated(key("b"), text("b"), SourceMetadata(project_id="p"), EventTime(), "e")], epoch=epoch
            )
            assert admission.generation is not None


async def test_a_generation_reclaimed_by_another_writer_is_never_acknowledged_unwritten(rig: Rig) -> None:
    """The new writer reclaims the pending row, then dies; ours must not believe that its flip happened."""
    rig.validated("a", text("a"))
    rig.index.storing.hold()
    async with rig.writer():
        await asyncio.wait_for(rig.index.storing.reached.wait(), 5)
        epoch = await rig.ledger.activate("another")
        await rig.ledger.admit(
            [Validated(key("b"), text("b"), SourceMetadata(project_id="p"), EventTime(), "e")], epoch=epoch
        )
        rig.index.storing.open.set()
        await rig.all_live("a")


async def test_a_command_goes_to_where_the_active_writer_is(rig: Rig) -> None:
    """One process is served the commands, another the validated events: only the latter raises the epoch."""
    async with rig.bus.subscribe(VALIDATED_QUEUE, prefetch=1) as elsewhere, rig.writer() as leadership:
        await rig.bus.command({"type": "rag.embed"}, event_id="e")
        (delivery,) = await elsewhere.batch(max_items=1, max_wait_s=0.0)
        assert delivery.event_type == "rag.embed"
        assert not leadership.is_active
        assert rig.bus.queue(COMMANDS_QUEUE) == []
        await elsewhere.ack(delivery)


# ----------------------------------------------------------------------------------------------------- outbox, drain


async def test_events_wait_in_the_outbox_while_the_broker_is_away(rig: Rig) -> None:
    rig.validated("a", text("a"))
    rig.bus.switch.away = True
    async with rig.writer():
        await rig.settled()
        assert await rig.live("a") == {"a"}
        assert rig.published("embedding.completed") == []
        assert (await rig.ledger.counts()).unsent_events == 1
        rig.bus.switch.away = False
        assert await rig.relay.drain() == 1
        assert len(rig.published("embedding.completed")) == 1
        assert (await rig.ledger.counts()).unsent_events == 0


async def test_a_consumer_that_is_stopped_before_it_has_begun_takes_nothing_and_ends(rig: Rig) -> None:
    rig.tainted("a")
    rig.validated("b", "content of b")
    consumer = rig.consumer(Leadership(rig.ledger, "early"))
    await consumer.stop(timeout_s=5.0)
    assert not consumer.is_consuming
    async with asyncio.timeout(5):
        await consumer.run()
    assert [len(rig.bus.queue(queue)) for queue in (TAINTS_QUEUE, VALIDATED_QUEUE)] == [1, 1]


async def test_what_is_in_hand_is_finished_when_the_consumer_is_stopped(rig: Rig) -> None:
    for number in range(30):
        rig.validated(f"a{number}", text(f"a{number}"))
    rig.encoder.documents.hold()
    async with rig.writer(batch_size=5):
        await asyncio.wait_for(rig.encoder.documents.reached.wait(), 5)
    waiting = rig.bus.queue(VALIDATED_QUEUE)
    live = await rig.live(*(f"a{number}" for number in range(30)))
    assert len(live) == 10, "two batches were in hand"
    assert len(waiting) == 20
    assert not any(message.holder for message in waiting)


async def test_a_consumer_that_stops_keeps_its_place_until_what_it_has_in_hand_is_done(rig: Rig) -> None:
    """Else the broker would serve a standby at once, whose epoch would fence the work in hand."""
    in_hand = ["a", "b"]
    for artifact in in_hand:
        rig.validated(artifact, text(artifact))
    rig.encoder.documents.hold()
    async with AsyncExitStack() as first:
        await first.enter_async_context(rig.writer("first", batch_size=1))

        async def busy() -> bool:
            return all(message.holder for message in rig.bus.queue(VALIDATED_QUEUE))

        await eventually(busy)
        async with rig.bus.subscribe(VALIDATED_QUEUE, prefetch=1) as standby:
            served = asyncio.create_task(standby.batch(max_items=1, max_wait_s=0.0))
            rig.validated("later", text("later"))
            done_before: list[int] = []
            served.add_done_callback(lambda _: done_before.append(len(rig.index.stored)))
            await first.aclose()
            (delivery,) = await asyncio.wait_for(served, 5)
            assert b'"later"' in delivery.body
            await standby.ack(delivery)
    assert done_before == [2], "the standby was served while work was in hand"
    assert await rig.live(*in_hand) == {*in_hand}


async def test_no_loss_when_every_delivery_comes_twice_in_any_order(rig: Rig) -> None:
    ids = [f"a{number}" for number in range(20)]
    for artifact in ids:
        rig.validated(artifact, text(artifact), time=moment(0))
    rig.bus.shuffle(7)
    rig.bus.duplicate_next(20)
    async with rig.writer(batch_size=3):
        await rig.all_live(*ids)
        rig.bus.redeliver_unacked()
        await rig.settled()
    assert sorted(point.ref.key.artifact_id for points in rig.index.stored for point in points) == sorted(ids)


# ------------------------------------------------------------------------------------------------------------ watchdog


def test_the_watchdog_ends_a_process_whose_work_is_stuck() -> None:
    program = textwrap.dedent(
        """
        import threading
        from services.writer.progress import Progress, watchdog
        progress = Progress()
        with watchdog(progress, limit_s=0.3), progress.working():
            threading.Event().wait(30)
        """
    )
    started = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", program], timeout=25, check=False)
    assert ended.returncode == EXIT_CODE
    assert time.monotonic() - started < 20


def test_the_watchdog_lets_idle_and_moving_work_be() -> None:
    progress, ended = Progress(), []
    with watchdog(progress, limit_s=0.2, end=lambda: ended.append(True)):
        time.sleep(0.4)  # nothing in hand: silence is no hang
        with progress.working():
            for _ in range(8):
                time.sleep(0.05)
                progress.moved()
    assert ended == []
