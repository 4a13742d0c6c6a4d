"""The ledger alone: every step of the algorithm, each claim on both databases (on one, where a clock must be moved)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from cancelling import ends_when_cancelled
from ledgers import (
    NOON,
    SECOND,
    Clock,
    Inbox,
    Writer,
    cut,
    key,
    live_of,
    metadata,
    outcome_of,
    refs_of,
    relayed,
    tainted,
    text_of,
    validated,
    version_of,
)
from sqlalchemy import select, text

from dats_common.adapters.sql.engine import open_database
from dats_common.adapters.sql.ledger import open_ledger
from dats_common.adapters.sql.rows import is_any_of
from dats_common.adapters.sql.tables import artifacts, documents, pending, quarantine, receipts
from dats_common.domain.access import LAPTOP, Principal
from dats_common.domain.model import ArtifactKey, ChunkRef, Location, Scope
from dats_common.domain.taint import FlipVerdict, QuarantineReason, Verdict
from dats_common.errors import BrokerUnavailable, ConfigurationError, Fenced, LedgerUnavailable
from dats_common.ports import Ledger
from dats_common.records import ArtifactOutcome, Heartbeat, LedgerCounts
from dats_common.trace_context import TraceContext, current_trace, within_trace

WITHIN, BARE, EQUAL = QuarantineReason.WITHIN_SKEW, QuarantineReason.BARE_AFTER_TAINT, QuarantineReason.EQUAL_TIME


# ------------------------------------------------------------------------------------------------------------ V1 to V4


async def test_nothing_is_visible_before_the_flip_and_everything_after(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    admission = await writer.prepare(validated(content="hello world", at_s=1))
    refs = refs_of(admission.generation)
    assert await text_of(ledger, refs) is None
    assert await ledger.still_live(refs, LAPTOP) == frozenset()
    assert await outcome_of(ledger, at_s=1) == "pending"

    assert await writer.flip(admission) is FlipVerdict.LIVE
    assert await text_of(ledger, refs) == "hello world"
    assert await ledger.still_live(refs, LAPTOP) == frozenset(refs)
    outcome = await ledger.outcome(key(), at=NOON + SECOND)
    assert outcome == ArtifactOutcome("indexed", generation=refs[0].generation, chunks=2, tokens=20)


async def test_whoever_is_cancelled_while_reading_or_writing_ends(ledger: Ledger) -> None:
    beat = Heartbeat("w1", "standby", pending=0, processing=0, model="m", backend="b")
    await ends_when_cancelled(lambda: ledger.beat(beat))
    await ends_when_cancelled(ledger.now)


async def test_the_same_event_twice_leaves_one_generation(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    generation = await writer.publish(validated(at_s=1))
    again = await writer.admit(validated(at_s=1))
    assert (again.verdict, again.generation) == (Verdict.DUPLICATE, None)
    assert await ledger.kept([key()]) == {key(): {generation.number}}
    assert len((await relayed(ledger)).data("embedding.completed")) == 1


async def test_the_same_content_approved_again_moves_the_version_and_writes_nothing(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    generation = await writer.publish(validated(at_s=1))
    again = await writer.admit(validated(at_s=200))
    assert (again.verdict, again.generation) == (Verdict.UNCHANGED, None)
    assert await version_of(ledger, refs_of(generation)[0]) == 200
    assert await ledger.kept([key()]) == {key(): {generation.number}}
    statuses = [data["status"] for data in (await relayed(ledger)).data("embedding.completed")]
    assert statuses == ["indexed", "unchanged"]
    assert await outcome_of(ledger, at_s=200) == "unchanged"
    # It outlives a taint that covers only the first approval.
    await ledger.taint(tainted("a", at_s=100), skew_s=60)
    assert await text_of(ledger, refs_of(generation)) == "one content"


async def test_same_content_under_other_metadata_is_embedded_again(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    await writer.publish(validated(at_s=1))
    again = await writer.admit(validated(at_s=2, source=metadata(tags=("red",))))
    assert again.verdict is Verdict.EMBED


async def test_an_older_version_is_superseded(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    refs = refs_of(await writer.publish(validated(at_s=2)))
    late = await writer.admit(validated(content="older", at_s=1))
    assert late.verdict is Verdict.SUPERSEDED
    assert await version_of(ledger, refs[0]) == 2
    assert await outcome_of(ledger, at_s=1) == "superseded"


async def test_other_content_at_the_same_time_is_quarantined(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    generation = await writer.publish(validated(at_s=1))
    rival = await writer.admit(validated(content="rival", at_s=1))
    assert (rival.verdict, rival.reason) == (Verdict.QUARANTINED, EQUAL)
    assert await text_of(ledger, refs_of(generation)) == "one content"
    assert (await ledger.counts()).quarantined == 1


async def test_approving_the_live_content_again_settles_an_older_quarantine(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    await writer.publish(validated(at_s=1))
    await writer.admit(validated(content="rival", at_s=1))
    await writer.admit(validated(at_s=2))
    assert (await ledger.counts()).quarantined == 0


async def test_two_contents_of_one_time_that_race_leave_the_first_flip(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    first = await writer.prepare(validated(content="first", at_s=1))
    second = await writer.prepare(validated(content="second", at_s=1))
    assert await writer.flip(first) is FlipVerdict.LIVE
    assert await writer.flip(second) is FlipVerdict.QUARANTINED
    assert await text_of(ledger, [*refs_of(first.generation), *refs_of(second.generation)]) == "first"


async def test_a_new_version_replaces_the_old_in_one_step(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    old = refs_of(await writer.publish(validated(content="old", at_s=1)))
    admission = await writer.prepare(validated(content="new", at_s=2))
    new = refs_of(admission.generation)
    assert admission.replaces
    assert await text_of(ledger, old + new) == "old"
    await writer.flip(admission)
    assert await text_of(ledger, old + new) == "new"
    assert await ledger.still_live(old + new, LAPTOP) == frozenset(new)
    # Who had proposed only the old one is told to look again; who had proposed the new one is not.
    assert (await ledger.read(old, LAPTOP)).superseded == {key()}
    assert (await ledger.read(old + new, LAPTOP)).superseded == frozenset()


async def test_an_older_flip_that_comes_late_is_garbage(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    old = await writer.prepare(validated(content="old", at_s=1))
    new = await writer.prepare(validated(content="new", at_s=2))
    assert await writer.flip(new) is FlipVerdict.LIVE
    assert await writer.flip(old) is FlipVerdict.GARBAGE
    assert await text_of(ledger, refs_of(old.generation) + refs_of(new.generation)) == "new"
    assert await ledger.kept([key()]) == {key(): {new.generation.number}}


async def test_a_batch_is_judged_artifact_by_artifact(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    await writer.publish(validated("seen", at_s=1))
    await ledger.taint(tainted("gone", at_s=50), skew_s=0)
    admissions = await ledger.admit(
        [validated("seen", at_s=1), validated("gone", at_s=1), validated("new", at_s=1), validated("other", at_s=1)],
        epoch=writer.epoch,
    )
    assert [item.verdict for item in admissions] == [
        Verdict.DUPLICATE,
        Verdict.SUPPRESSED,
        Verdict.EMBED,
        Verdict.EMBED,
    ]
    fresh = admissions[2:]
    assert [item.generation.key.artifact_id for item in fresh] == ["new", "other"]
    for item in fresh:
        await ledger.write_chunks({item.generation: cut(item.event.content)}, embedding_model="m")
    assert await ledger.flip(fresh, epoch=writer.epoch) == [FlipVerdict.LIVE] * 2
    assert await text_of(ledger, refs_of(fresh[1].generation)) == "one content"


async def test_two_events_of_one_artifact_in_one_call_are_a_mistake(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    with pytest.raises(ValueError, match="order"):
        await ledger.admit([validated(at_s=1), validated(at_s=2)], epoch=writer.epoch)
    both = [await writer.prepare(validated(at_s=1)), await writer.prepare(validated(at_s=2))]
    with pytest.raises(ValueError, match="order"):
        await ledger.flip(both, epoch=writer.epoch)


async def test_a_chunk_keeps_where_it_stands(ledger: Ledger) -> None:
    known = Location(("Guide", "Install > on Linux", "é"), line_start=3, line_end=2_000_000, page=7, anchor="in-é")
    writer = await Writer.of(ledger)
    admission = await writer.admit(validated(at_s=1))
    assert admission.generation is not None
    first, second = cut(admission.event.content)
    written = [replace(first, location=known), second]
    await ledger.write_chunks({admission.generation: written}, embedding_model="m")
    await writer.flip(admission)
    refs = refs_of(admission.generation)
    passages = (await ledger.read(refs, LAPTOP)).passages
    assert [passages[ref].location for ref in refs] == [known, Location()]
    assert [list(chunks) async for _, chunks in ledger.live_chunks()] == [written]


async def test_chunks_written_twice_are_there_once(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    admission = await writer.prepare(validated(at_s=1))
    await ledger.write_chunks({admission.generation: cut(admission.event.content)}, embedding_model="m")
    await writer.flip(admission)
    assert await text_of(ledger, refs_of(admission.generation)) == "one content"
    assert (await ledger.counts()).live_chunks == 2


async def test_a_generations_number_is_never_used_again(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    used = []
    for second in range(1, 5):
        generation = await writer.publish(validated(content=f"version {second}", at_s=second))
        used.append(generation.number)
        await ledger.taint(tainted("a", at_s=second), skew_s=0)
    final = await writer.publish(validated(content="final", at_s=99))
    await ledger.forget()
    abandoned = await writer.prepare(validated("b", at_s=1))
    await ledger.abandon([abandoned.generation.number])
    await ledger.forget()
    used += [final.number, abandoned.generation.number]
    used.append((await writer.publish(validated("c", at_s=1))).number)
    assert used == sorted(set(used))


# ------------------------------------------------------------------------------------------------------------- fencing


async def test_another_activation_fences_the_first_writer_at_both_steps(ledger: Ledger) -> None:
    first = await Writer.of(ledger, "first")
    admission = await first.prepare(validated(at_s=1))
    second = await Writer.of(ledger, "second")
    assert second.epoch > first.epoch
    with pytest.raises(Fenced):
        await first.admit(validated("b", at_s=1))
    with pytest.raises(Fenced):
        await first.flip(admission)
    assert await text_of(ledger, refs_of(admission.generation)) is None


async def test_nobody_is_active_before_the_first_activation(ledger: Ledger) -> None:
    with pytest.raises(Fenced):
        await ledger.admit([validated(at_s=1)], epoch=0)


async def test_an_activation_reclaims_what_was_pending_and_the_event_starts_again(ledger: Ledger) -> None:
    first = await Writer.of(ledger, "first")
    admission = await first.prepare(validated(at_s=1))
    second = await Writer.of(ledger, "second")
    assert await ledger.kept([key()]) == {key(): set()}
    # The same process may have become active again and flip what it had prepared before.
    assert await second.flip(admission) is FlipVerdict.RECLAIMED
    again = await second.publish(validated(at_s=1))
    assert again.number > admission.generation.number


async def test_an_abandoned_generation_is_given_to_the_sweep(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    admission = await writer.prepare(validated(at_s=1))
    assert await ledger.kept([key()]) == {key(): {admission.generation.number}}
    await ledger.abandon([admission.generation.number])
    assert await ledger.kept([key()]) == {key(): set()}
    assert await writer.flip(admission) is FlipVerdict.RECLAIMED


# -------------------------------------------------------------------------------------------------------------- taints


async def test_a_taint_makes_invisible_at_once_and_counts_what_it_removed(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    refs = refs_of(await writer.publish(validated(content="three parts", at_s=1), parts=3), parts=3)
    other = refs_of(await writer.publish(validated("b", at_s=1)))
    receipt = await ledger.taint(tainted("a", "never-seen", at_s=10), skew_s=60)
    assert await text_of(ledger, refs) is None
    assert await ledger.still_live(refs + other, LAPTOP) == frozenset(other)
    assert receipt.chunks_removed == {"a": 3}
    assert receipt.fallen == (key("a"),)
    assert receipt.through == NOON + 70 * SECOND
    assert await outcome_of(ledger, at_s=1) == "tainted"
    [data] = (await relayed(ledger)).data("embedding.invalidated")
    assert data == {
        "artifact_ids": ["a", "never-seen"],
        "tenant_id": "default",
        "cascade_id": "cascade",
        "chunks_removed": 3,
        "through": NOON + 70 * SECOND,
    }


async def test_a_second_taint_removes_nothing_more(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    await writer.publish(validated(at_s=1))
    await ledger.taint(tainted("a", at_s=10), skew_s=0)
    again = await ledger.taint(tainted("a", at_s=11), skew_s=0)
    assert (again.chunks_removed, again.fallen) == ({}, ())


async def test_an_older_taint_never_lowers_the_bound(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    await ledger.taint(tainted("a", at_s=100), skew_s=60)
    await ledger.taint(tainted("a", at_s=1), skew_s=0)
    assert (await writer.admit(validated(at_s=100))).verdict is Verdict.SUPPRESSED
    assert (await writer.admit(validated(content="in the skew", at_s=150))).verdict is Verdict.QUARANTINED


@pytest.mark.parametrize("tenant_id", [None, "default"], ids=["every tenant", "one tenant"])
async def test_a_taint_that_comes_before_its_artifact_suppresses_it(ledger: Ledger, tenant_id: str | None) -> None:
    writer = await Writer.of(ledger)
    await ledger.taint(tainted("a", at_s=10, tenant_id=tenant_id), skew_s=60)
    assert (await writer.admit(validated(at_s=10))).verdict is Verdict.SUPPRESSED
    within = await writer.admit(validated(at_s=70))
    assert (within.verdict, within.reason) == (Verdict.QUARANTINED, WITHIN)
    assert await outcome_of(ledger, at_s=70) == "quarantined"
    assert await outcome_of(ledger, at_s=10) == "tainted"
    beyond = await writer.publish(validated(content="corrected", at_s=70.1))
    assert await text_of(ledger, refs_of(beyond)) == "corrected"
    assert (await ledger.counts()).quarantined == 0  # the later one has settled it


async def test_a_version_beyond_the_taint_stays(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    refs = refs_of(await writer.publish(validated(at_s=100)))
    receipt = await ledger.taint(tainted("a", at_s=39.9), skew_s=60)
    assert (receipt.chunks_removed, receipt.fallen) == ({}, ())
    assert await ledger.still_live(refs, LAPTOP) == frozenset(refs)


async def test_what_falls_to_the_skew_alone_is_quarantined_whatever_the_order(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    live = await writer.publish(validated("a", at_s=50))
    await ledger.taint(tainted("a", "b", at_s=10), skew_s=60)
    await writer.admit(validated("b", at_s=50))
    assert await text_of(ledger, refs_of(live)) is None
    assert [await outcome_of(ledger, name, at_s=50) for name in "ab"] == ["quarantined", "quarantined"]
    reported = (await relayed(ledger)).data("embedding.quarantined")
    assert sorted(data["artifact_id"] for data in reported) == ["a", "b"]


async def test_a_taint_of_one_tenant_leaves_the_others(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    mine = refs_of(await writer.publish(validated(key("a", "mine"), at_s=1)))
    yours = refs_of(await writer.publish(validated(key("a", "yours"), at_s=1)))
    await ledger.taint(tainted("a", at_s=10, tenant_id="mine"), skew_s=0)
    assert await live_of(ledger, mine + yours) == frozenset(yours)


async def test_a_taint_without_tenant_covers_all_tenants_also_later_ones(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    refs = [
        ref
        for tenant_id in ("t1", "t2")
        for ref in refs_of(await writer.publish(validated(key("a", tenant_id), at_s=1)))
    ]
    preparing = await writer.prepare(validated(key("a", "t3"), at_s=1))
    receipt = await ledger.taint(tainted("a", at_s=10, tenant_id=None), skew_s=0)
    assert receipt.chunks_removed == {"a": 4}
    assert receipt.fallen == (key("a", "t1"), key("a", "t2"))
    assert await live_of(ledger, refs) == frozenset()
    assert await writer.flip(preparing) is FlipVerdict.GARBAGE
    assert (await writer.admit(validated(key("a", "t4"), at_s=5))).verdict is Verdict.SUPPRESSED
    assert (await writer.admit(validated(key("a", "t4"), at_s=11))).verdict is Verdict.EMBED


@pytest.mark.parametrize(
    ("at_s", "verdict", "status"),
    [(5, FlipVerdict.GARBAGE, "tainted"), (50, FlipVerdict.QUARANTINED, "quarantined")],
)
async def test_a_taint_while_pending_is_found_at_the_flip(
    ledger: Ledger, at_s: float, verdict: FlipVerdict, status: str
) -> None:
    writer = await Writer.of(ledger)
    admission = await writer.prepare(validated(at_s=at_s))
    await ledger.taint(tainted("a", at_s=10), skew_s=60)
    assert await ledger.kept([key()]) == {key(): set()}
    assert await writer.flip(admission) is verdict
    assert await text_of(ledger, refs_of(admission.generation)) is None
    assert await outcome_of(ledger, at_s=at_s) == status
    assert (await relayed(ledger)).data("embedding.completed") == []


async def test_a_taint_that_does_not_reach_what_is_pending_leaves_it(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    admission = await writer.prepare(validated(at_s=100))
    await ledger.taint(tainted("a", at_s=10), skew_s=60)
    assert await writer.flip(admission) is FlipVerdict.LIVE


async def test_the_same_taint_event_twice_is_reported_once(ledger: Ledger) -> None:
    for _ in range(2):
        await ledger.taint(tainted("a", at_s=10, event_id="e"), skew_s=0)
    assert len((await relayed(ledger)).data("embedding.invalidated")) == 1


@pytest.mark.parametrize("other", [{"artifact_ids": ("b",)}, {"tenant_id": "t"}], ids=["ids", "tenant"])
async def test_a_message_id_used_again_for_another_taint_hides_nothing(ledger: Ledger, other: dict) -> None:
    first = tainted("a", at_s=10, event_id="e")
    await ledger.taint(first, skew_s=0)
    await ledger.taint(replace(first, **other), skew_s=0)
    assert len((await relayed(ledger)).data("embedding.invalidated")) == 2


async def test_a_message_id_used_again_with_a_later_time_covers_more(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    generation = await writer.publish(validated(at_s=50))
    await ledger.taint(tainted("a", at_s=10, event_id="e"), skew_s=0)
    await ledger.taint(tainted("a", at_s=100, event_id="e"), skew_s=0)
    assert await text_of(ledger, refs_of(generation)) is None


async def test_ten_thousand_ids_fall_in_one_call(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    live = await writer.publish(validated("id-9999", at_s=1))
    ids = tuple(f"id-{number}" for number in range(10_000))
    receipt = await ledger.taint(tainted(*ids, at_s=10), skew_s=0)
    assert receipt.chunks_removed == {"id-9999": 2}
    assert await text_of(ledger, refs_of(live)) is None
    assert (await writer.admit(validated("id-0", at_s=1))).verdict is Verdict.SUPPRESSED
    receipt = await ledger.taint(tainted(*ids, at_s=20, tenant_id=None), skew_s=0)
    assert (await writer.admit(validated(key("id-5000", "later"), at_s=15))).verdict is Verdict.SUPPRESSED


async def test_an_id_shown_by_many_tenants_falls_in_all_of_them(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    events = [validated(key("a", f"t{number}"), at_s=1) for number in range(1_100)]
    admissions = [
        item
        for start in range(0, len(events), 500)
        for item in await ledger.admit(events[start : start + 500], epoch=writer.epoch)
    ]
    await ledger.flip(admissions, epoch=writer.epoch)
    assert (await ledger.counts()).live_artifacts == 1_100
    receipt = await ledger.taint(tainted("a", at_s=10, tenant_id=None), skew_s=0)
    assert len(receipt.fallen) == 1_100
    assert (await ledger.counts()).live_artifacts == 0


# ------------------------------------------------------------------------------------------------- clocks and receipts


async def test_a_bare_event_keeps_the_place_of_its_first_receipt(timed: Ledger, clock: Clock) -> None:
    writer = await Writer.of(timed)
    first = await writer.admit(validated())
    assert (first.place.ord, first.place.own_clock) == (clock.now, True)
    clock.pass_s(100)
    await timed.taint(tainted("a", own_clock=True), skew_s=60)
    clock.pass_s(100)
    again = await writer.admit(validated())
    assert again.place == first.place
    assert again.verdict is Verdict.SUPPRESSED


async def test_a_bare_event_after_a_taint_is_quarantined_also_when_it_comes_again(timed: Ledger, clock: Clock) -> None:
    writer = await Writer.of(timed)
    await timed.taint(tainted("a", at_s=-1000), skew_s=60)  # long ago: the ledger's clock is far beyond it
    for _ in range(2):
        admission = await writer.admit(validated())
        assert (admission.verdict, admission.reason) == (Verdict.QUARANTINED, BARE)
        clock.pass_s(100)
    assert (await timed.counts()).quarantined == 1
    assert len((await relayed(timed)).data("embedding.quarantined")) == 1


async def test_a_bare_event_that_a_crash_interrupted_survives_an_older_taint(timed: Ledger, clock: Clock) -> None:
    writer = await Writer.of(timed)
    await writer.prepare(validated())
    writer = await Writer.of(timed, "after the crash")
    await timed.taint(tainted("a", at_s=-1000), skew_s=60)
    clock.pass_s(100)
    generation = await writer.publish(validated())
    assert await text_of(timed, refs_of(generation)) == "one content"


async def test_a_bare_copy_of_tainted_content_is_suppressed(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    await writer.publish(validated(at_s=1))
    await ledger.taint(tainted("a", at_s=10), skew_s=0)
    assert (await writer.admit(validated())).verdict is Verdict.SUPPRESSED
    assert (await writer.admit(validated(content="never seen"))).verdict is Verdict.QUARANTINED


async def test_a_bare_copy_takes_no_trust_from_a_foreign_clock(timed: Ledger) -> None:
    writer = await Writer.of(timed)
    await timed.taint(tainted("a", at_s=-100, own_clock=True), skew_s=60)
    assert (await writer.admit(validated(at_s=-50))).reason is WITHIN
    bare = await writer.admit(validated())
    assert (bare.verdict, bare.reason) == (Verdict.QUARANTINED, WITHIN)


async def test_a_bare_copy_of_what_is_live_is_a_duplicate(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    await ledger.taint(tainted("a", at_s=-100), skew_s=0)
    await writer.publish(validated(at_s=1))
    assert (await writer.admit(validated())).verdict is Verdict.DUPLICATE


async def test_a_time_ahead_of_the_clock_is_clamped_and_never_outruns_a_taint(timed: Ledger, clock: Clock) -> None:
    writer = await Writer.of(timed)
    ahead = validated(at_s=300)
    first = await writer.prepare(ahead)
    assert (first.place.ord, first.place.clamped) == (NOON, True)
    await writer.flip(first)
    clock.pass_s(50)
    await timed.taint(tainted("a"), skew_s=0)
    clock.pass_s(500)  # now the claim lies in the past, and beyond the taint
    again = await writer.admit(ahead)
    assert again.place.ord == NOON
    assert again.verdict is Verdict.SUPPRESSED


async def test_a_taint_ahead_of_the_clock_is_clamped_and_a_copy_covers_no_more(timed: Ledger, clock: Clock) -> None:
    writer = await Writer.of(timed)
    ahead = tainted("a", at_s=300, event_id="e")
    assert (await timed.taint(ahead, skew_s=0)).through == NOON
    clock.pass_s(100)
    generation = await writer.publish(validated(at_s=50))
    clock.pass_s(500)
    assert (await timed.taint(ahead, skew_s=0)).through == NOON
    assert await text_of(timed, refs_of(generation)) == "one content"


async def test_a_bare_taint_that_comes_again_covers_no_more(timed: Ledger, clock: Clock) -> None:
    writer = await Writer.of(timed)
    await timed.taint(tainted("a", event_id="e"), skew_s=0)
    clock.pass_s(100)
    generation = await writer.publish(validated(at_s=50))
    await timed.taint(tainted("a", event_id="e"), skew_s=0)
    assert await text_of(timed, refs_of(generation)) == "one content"


async def test_each_part_of_a_bare_taint_covers_what_was_received_before_it(timed: Ledger, clock: Clock) -> None:
    writer = await Writer.of(timed)
    first, second = tainted("a", "b", event_id="e").parts(most_ids=1)
    assert (await timed.taint(first, skew_s=0)).through == NOON
    clock.pass_s(100)
    generation = await writer.publish(validated("b"))
    clock.pass_s(100)
    assert (await timed.taint(first, skew_s=0)).through == NOON, "a redelivery repeats what was done"
    through = (await timed.taint(second, skew_s=0)).through
    assert through == NOON + 200 * SECOND
    assert await text_of(timed, refs_of(generation)) is None
    clock.pass_s(100)
    assert (await timed.taint(second, skew_s=0)).through == through


async def test_a_part_is_no_copy_of_an_earlier_taint_with_its_ids_and_its_message_id(
    timed: Ledger, clock: Clock
) -> None:
    writer = await Writer.of(timed)
    await timed.taint(tainted("a", event_id="e"), skew_s=0)
    clock.pass_s(100)
    generation = await writer.publish(validated(at_s=50))
    for part in tainted("a", "b", event_id="e").parts(most_ids=1):
        await timed.taint(part, skew_s=0)
    assert await text_of(timed, refs_of(generation)) is None


async def test_each_part_of_a_taint_is_announced_once_with_its_own_ids(ledger: Ledger) -> None:
    parts = tainted("a", "b", "c", at_s=10, event_id="e").parts(most_ids=2)
    for part in [*parts, *parts]:
        await ledger.taint(part, skew_s=0)
    announced = (await relayed(ledger)).data("embedding.invalidated")
    assert [data["artifact_ids"] for data in announced] == [["a", "b"], ["c"]]


async def test_a_taint_on_the_ledgers_clock_needs_no_skew_for_its_own_versions(timed: Ledger, clock: Clock) -> None:
    writer = await Writer.of(timed)
    clock.pass_s(100)
    own = refs_of(await writer.publish(validated("own", at_s=50, own_clock=True)))
    foreign = refs_of(await writer.publish(validated("foreign", at_s=50)))
    covered = refs_of(await writer.publish(validated("covered", at_s=39, own_clock=True)))
    pending = [
        await writer.prepare(validated("pending own", at_s=50, own_clock=True)),
        await writer.prepare(validated("pending foreign", at_s=50)),
    ]
    ids = ("own", "foreign", "covered", "pending own", "pending foreign")
    await timed.taint(tainted(*ids, at_s=40, own_clock=True), skew_s=60)
    assert await timed.still_live(own + foreign + covered, LAPTOP) == frozenset(own)
    assert [await writer.flip(item) for item in pending] == [FlipVerdict.LIVE, FlipVerdict.QUARANTINED]


async def test_the_ledgers_clock_moves_on(ledger: Ledger) -> None:
    earlier = await ledger.now()
    assert NOON < earlier <= await ledger.now()


# --------------------------------------------------------------------------------------------------------------- guard


@pytest.mark.parametrize(
    ("source", "allowed", "refused"),
    [
        (metadata(), {}, {"tenant_id": "foreign"}),
        (metadata(tags=("red",)), {"tags": frozenset({"red", "blue"})}, {"tags": frozenset({"blue"})}),
        (metadata(scope=Scope.USER, user_id="me"), {"user_id": "me"}, {"user_id": "you"}),
        (metadata(project_id="p1"), {"project_ids": frozenset({"p1"})}, {"project_ids": frozenset({"p2"})}),
    ],
    ids=["tenant", "tag", "user", "project"],
)
async def test_the_guard_hands_text_only_to_those_who_may_see_it(ledger: Ledger, source, allowed, refused) -> None:
    writer = await Writer.of(ledger)
    refs = refs_of(await writer.publish(validated(at_s=1, source=source)))
    assert await text_of(ledger, refs, **allowed) == "one content"
    assert await text_of(ledger, refs, **refused) is None
    # Liveness is not a matter of rights: Q3 only repeats what Q2 has judged.
    assert await ledger.still_live(refs, LAPTOP) == frozenset(refs)


async def test_public_work_is_read_across_tenants(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    refs = refs_of(await writer.publish(validated(at_s=1, source=metadata(scope=Scope.PUBLIC))))
    assert await text_of(ledger, refs, tenant_id="foreign") == "one content"


async def test_a_candidate_under_a_foreign_key_gets_no_text(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    generation = await writer.publish(validated(key("a", "theirs"), at_s=1))
    forged = [ChunkRef(key("a", "mine"), generation.number, 0), ChunkRef(key("b", "theirs"), generation.number, 0)]
    for ref in forged:
        for tenant_id in ("mine", "theirs"):
            assert await text_of(ledger, [ref], tenant_id=tenant_id) is None
        assert await ledger.still_live([ref], LAPTOP) == frozenset()


async def test_candidates_that_never_existed_are_ignored(ledger: Ledger) -> None:
    read = await ledger.read([ChunkRef(key(), 12345, 0)], LAPTOP)
    assert (read.passages, read.superseded) == ({}, frozenset())
    assert await ledger.still_live([], LAPTOP) == frozenset()
    assert (await ledger.read([], LAPTOP)).passages == {}


async def test_a_passage_carries_all_that_was_said_of_it(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    source = metadata(
        provenance_id="prov",
        task_id="task",
        domain="code",
        doc_type="module",
        verified=False,
        user_id="u",
        tags=("public", "rot-weiß"),
        title='Über "alles"',
        language="python",
        source_type="git",
        source_id="id",
        source_uri="https://example.org/x?a=1",
        source_updated_at="2026-01-01T00:00:00Z",
        extra='{"k": [1, null]}',
    )
    generation = await writer.publish(validated(at_s=1, source=source))
    ref = refs_of(generation)[1]
    passage = (await ledger.read([ref], LAPTOP)).passages[ref]
    assert passage.metadata == source
    assert (passage.ref, passage.text, passage.token_count) == (ref, cut("one content")[1].text, 10)
    assert passage.version == NOON + SECOND


@pytest.mark.parametrize(
    "artifact_id",
    ['it\'s "quoted"; --', "mit Leerzeichen/und\\Strich", "日本語 🎉", "é" * 256, "%_", "A", "a"],
)
async def test_any_id_and_any_text_come_back_as_they_went_in(ledger: Ledger, artifact_id: str) -> None:
    writer = await Writer.of(ledger)
    content = "émoji 👩‍💻 and 'quotes' \t\r\n \u2028 %s :name $1 \\ end"
    artifact = ArtifactKey("tenant 'ü'", artifact_id)
    refs = refs_of(await writer.publish(validated(artifact, content, at_s=1)))
    assert await text_of(ledger, refs, tenant_id="tenant 'ü'") == content
    other = artifact_id.swapcase() if artifact_id.swapcase() != artifact_id else artifact_id + "x"  # case counts
    await ledger.taint(tainted(other, at_s=10, tenant_id=None), skew_s=0)
    assert await live_of(ledger, refs) == frozenset(refs)
    await ledger.taint(tainted(artifact_id, at_s=10, tenant_id=None), skew_s=0)
    assert await live_of(ledger, refs) == frozenset()


async def test_more_candidates_than_a_statement_holds_are_all_judged(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    events = [validated(f"a{number}", at_s=1) for number in range(700)]
    admissions = await ledger.admit(events, epoch=writer.epoch)
    for item in admissions[::100]:
        await ledger.write_chunks({item.generation: cut(item.event.content)}, embedding_model="m")
    await ledger.flip(admissions, epoch=writer.epoch)
    refs = [ref for item in admissions for ref in refs_of(item.generation)]
    assert await ledger.still_live(refs, LAPTOP) == frozenset(refs)
    assert len((await ledger.read(refs, LAPTOP)).passages) == 14
    await ledger.taint(tainted("a600", at_s=10), skew_s=0)
    assert len((await ledger.read(refs, LAPTOP)).passages) == 12


# -------------------------------------------------------------------------------------------------------------- outbox


async def test_events_go_out_once_in_order_and_whole(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    generation = await writer.publish(validated(at_s=1))
    await ledger.taint(tainted("a", at_s=10, event_id="e"), skew_s=0)
    assert (await ledger.counts()).unsent_events == 2
    inbox = Inbox()
    assert await ledger.relay(inbox, limit=1) == 1
    assert await ledger.relay(inbox, limit=10) == 1
    assert await ledger.relay(inbox, limit=10) == 0
    assert [name for name, _, _ in inbox.events] == ["embedding.completed", "embedding.invalidated"]
    assert inbox.data("embedding.completed") == [
        {
            "artifact_id": "a",
            "chunks": 2,
            "status": "indexed",
            "version": NOON + SECOND,
            "generation": generation.number,
        }
    ]
    assert all(body["id"] == event_id and body["type"] == name for name, body, event_id in inbox.events)
    counts = await ledger.counts()
    assert (counts.unsent_events, counts.oldest_unsent_s) == (0, 0.0)


async def test_each_event_goes_out_in_the_trace_of_what_it_tells(ledger: Ledger) -> None:
    """Also of a batch whose events come from several publishers; what nobody traced begins no trace."""
    here, one, other = (TraceContext(digit * 32, digit * 16, is_sampled=True) for digit in "abc")
    writer = await Writer.of(ledger)
    events = [replace(validated("a", at_s=1), trace=one), replace(validated("b", at_s=1), trace=other)]
    events.append(validated("c", at_s=1))
    with within_trace(here):
        admitted = await ledger.admit(events, epoch=writer.epoch)
        chunks = {item.generation: cut("text") for item in admitted if item.generation}
        await ledger.write_chunks(chunks, embedding_model="m")
        await ledger.flip(admitted, epoch=writer.epoch)
        await ledger.admit([replace(validated("a", at_s=5), trace=other)], epoch=writer.epoch)  # unchanged content
        await ledger.taint(tainted("a", at_s=10), skew_s=60)
        await ledger.admit([replace(validated("a", "newer", at_s=12), trace=one)], epoch=writer.epoch)  # quarantined
    await ledger.taint(tainted("b", at_s=10), skew_s=0)
    sent: list[tuple[str, TraceContext | None]] = []

    async def publish(routing_key, body, *, event_id) -> None:
        sent.append((routing_key, current_trace()))

    await ledger.relay(publish, limit=100)
    told = [replace(trace, is_remote=True) for trace in (one, other, here, other, here, one)]
    assert sent == [
        *zip(["embedding.completed"] * 4 + ["embedding.invalidated", "embedding.quarantined"], told, strict=True),
        ("embedding.invalidated", None),
    ]
    assert current_trace() is None


async def test_what_the_broker_refused_stays_and_goes_out_later_in_order(ledger: Ledger) -> None:
    for number in range(3):
        await ledger.taint(tainted(f"a{number}", at_s=1), skew_s=0)
    inbox = Inbox()

    async def second_fails(routing_key, body, *, event_id) -> None:
        inbox.fail = BrokerUnavailable("no confirm") if len(inbox.events) == 1 else None
        await inbox(routing_key, body, event_id=event_id)

    with pytest.raises(BrokerUnavailable):
        await ledger.relay(second_fails, limit=10)
    assert (await ledger.counts()).unsent_events == 2
    inbox.fail = None
    assert await ledger.relay(inbox, limit=10) == 2
    assert [data["artifact_ids"] for data in inbox.data("embedding.invalidated")] == [["a0"], ["a1"], ["a2"]]


async def test_a_relay_waits_for_all_its_confirms_at_once(ledger: Ledger) -> None:
    for number in range(3):
        await ledger.taint(tainted(f"a{number}", at_s=1), skew_s=0)
    inbox, begun, confirmed = Inbox(), 0, asyncio.Event()

    async def slow(routing_key, body, *, event_id) -> None:
        nonlocal begun
        begun += 1
        if begun == 3:
            confirmed.set()
        await asyncio.wait_for(confirmed.wait(), 5)
        await inbox(routing_key, body, event_id=event_id)

    assert await ledger.relay(slow, limit=10) == 3
    assert [data["artifact_ids"] for data in inbox.data("embedding.invalidated")] == [["a0"], ["a1"], ["a2"]]


async def test_a_relay_cut_off_while_it_publishes_gives_back_what_it_held(ledger: Ledger) -> None:
    await ledger.taint(tainted("a", at_s=1), skew_s=0)
    started = asyncio.Event()

    async def hang(routing_key, body, *, event_id) -> None:
        started.set()
        await asyncio.Event().wait()

    relay = asyncio.create_task(ledger.relay(hang, limit=10), name="hung relay")
    await started.wait()
    relay.cancel()
    with pytest.raises(asyncio.CancelledError):
        await relay
    assert len((await relayed(ledger)).events) == 1


async def test_events_that_a_dead_relay_held_go_out_after_its_claim(timed: Ledger, clock: Clock, tmp_path) -> None:
    await timed.taint(tainted("a", at_s=-1), skew_s=0)
    started = asyncio.Event()

    async def hang(routing_key, body, *, event_id) -> None:
        started.set()
        await asyncio.Event().wait()

    relay = asyncio.create_task(timed.relay(hang, limit=10), name="hung relay")
    await started.wait()
    assert (await relayed(timed)).events == []  # another one leaves it alone
    clock.pass_s(11)
    assert len((await relayed(timed)).events) == 1
    relay.cancel()
    with pytest.raises(asyncio.CancelledError):
        await relay
    assert (await timed.counts()).unsent_events == 0


async def test_an_announced_event_goes_out_once_for_each_id(ledger: Ledger) -> None:
    envelope = {"id": "x", "type": "embedding.failed", "data": {"reason": "ünbrauchbar"}}
    await ledger.announce(envelope)
    await ledger.announce(envelope)
    assert (await relayed(ledger)).events == [("embedding.failed", envelope, "x")]
    await ledger.announce(envelope)
    assert (await relayed(ledger)).events == []


async def test_unsent_events_have_an_age(timed: Ledger, clock: Clock) -> None:
    await timed.taint(tainted("a", at_s=-1), skew_s=0)
    clock.pass_s(30)
    await timed.taint(tainted("b", at_s=-1), skew_s=0)
    assert (await timed.counts()).oldest_unsent_s == pytest.approx(30)


# ------------------------------------------------------------------------------------------- sweep, rebuild and health


async def test_kept_names_what_is_live_or_pending_and_nothing_else(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    await writer.publish(validated(content="old", at_s=1))
    live = await writer.publish(validated(content="new", at_s=2))
    pending = await writer.prepare(validated(content="newer", at_s=3))
    other = await writer.publish(validated("b", at_s=1))
    assert await ledger.kept([key("a"), key("b"), key("none")]) == {
        key("a"): {live.number, pending.generation.number},
        key("b"): {other.number},
    }
    await ledger.taint(tainted("a", at_s=10), skew_s=0)
    assert await ledger.kept([key("a")]) == {key("a"): set()}


@pytest.mark.parametrize("everything", [True, False])
async def test_forgetting_leaves_what_is_live_or_pending(ledger: Ledger, everything: bool) -> None:
    writer = await Writer.of(ledger)
    await writer.publish(validated(content="old", at_s=1))
    live = await writer.publish(validated(content="new", at_s=2))
    pending = await writer.prepare(validated(content="newer", at_s=3))
    untouched = await writer.publish(validated("b", at_s=1))
    await ledger.forget(None if everything else [key("a")])
    assert await text_of(ledger, refs_of(live)) == "new"
    assert await text_of(ledger, refs_of(untouched)) == "one content"
    assert await writer.flip(pending) is FlipVerdict.LIVE
    assert await text_of(ledger, refs_of(pending.generation)) == "newer"


async def test_forgetting_drops_superseded_sources_and_keeps_tainted_ones(ledger: Ledger, ledger_url: str) -> None:
    writer = await Writer.of(ledger)
    await writer.publish(validated("a", "superseded", at_s=1))
    await writer.publish(validated("a", "live", at_s=2))
    await writer.publish(validated("b", "withdrawn", at_s=1))
    await ledger.taint(tainted("b", at_s=10), skew_s=0)
    await ledger.forget()
    assert await column(ledger_url, "SELECT body FROM rag_documents ORDER BY body") == ["live", "withdrawn"]
    assert sorted(await column(ledger_url, "SELECT chunk_text FROM rag_chunks")) == ["li", "ve"]


async def test_a_paused_writers_text_does_not_come_back_after_it_was_forgotten(ledger: Ledger, ledger_url: str) -> None:
    paused = await Writer.of(ledger)
    late = await paused.admit(validated(content="old", at_s=1))
    active = await Writer.of(ledger, "active")
    await active.publish(validated(content="new", at_s=2))
    await ledger.forget()
    await ledger.write_chunks({late.generation: cut("old")}, embedding_model="m")
    await ledger.forget()
    assert sorted(await column(ledger_url, "SELECT chunk_text FROM rag_chunks")) == ["ne", "w"]


async def column(url: str, statement: str) -> list:
    """The first column of what a second connection sees; how a row is stored is no part of the port."""
    async with open_database(url) as database, database.reading() as connection:
        return list((await connection.execute(text(statement))).scalars())


async def test_a_rebuild_reads_every_live_artifact_in_order_and_resumes(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    events = [validated(f"a{number:03}", f"content {number:03}", at_s=1) for number in range(230)]
    admissions = await ledger.admit(events, epoch=writer.epoch)
    for item in admissions:
        await ledger.write_chunks({item.generation: cut(item.event.content)}, embedding_model="m")
    await ledger.flip(admissions, epoch=writer.epoch)
    await writer.prepare(validated("pending", at_s=1))
    await ledger.taint(tainted("a005", at_s=10), skew_s=0)

    read = [(generation, chunks) async for generation, chunks in ledger.live_chunks()]
    names = [generation.key.artifact_id for generation, _ in read]
    assert names == [f"a{number:03}" for number in range(230) if number != 5]
    generation, chunks = read[100]
    assert list(chunks) == cut(f"content {names[100][1:]}")
    assert (generation.version, generation.metadata) == (NOON + SECOND, metadata())

    rest = [generation.key async for generation, _ in ledger.live_chunks(after=key("a199"))]
    assert rest == [key(f"a{number:03}") for number in range(200, 230)]
    assert [item async for item in ledger.live_chunks(after=key("zzz"))] == []


async def test_a_rebuild_resumes_across_tenants(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    keys = [key("b", "t1"), key("a", "t2"), key("c", "t2")]
    for artifact in keys:
        await writer.publish(validated(artifact, at_s=1))
    assert [generation.key async for generation, _ in ledger.live_chunks(after=keys[0])] == keys[1:]


async def test_the_newest_heartbeat_of_an_active_writer_is_shown_with_its_age(timed: Ledger, clock: Clock) -> None:
    assert await timed.heartbeat() is None
    active = Heartbeat("w1", "active", pending=3, processing=2, model="m", backend="b")
    await timed.beat(replace(active, pending=0))
    clock.pass_s(5)
    await timed.beat(active)
    clock.pass_s(5)
    await timed.beat(Heartbeat("w2", "standby", pending=0, processing=0, model="m", backend="b"))
    assert await timed.heartbeat() == replace(active, age_s=5.0)


async def test_a_writer_whose_epoch_is_over_cannot_say_that_it_is_active(ledger: Ledger) -> None:
    old, new = await ledger.activate("w1"), await ledger.activate("w2")
    beat = Heartbeat("w1", "active", pending=0, processing=0, model="m", backend="b")
    with pytest.raises(Fenced):
        await ledger.beat(beat, epoch=old)
    assert await ledger.heartbeat() is None
    await ledger.beat(replace(beat, writer_id="w2"), epoch=new)
    shown = await ledger.heartbeat()
    assert shown is not None
    assert shown.writer_id == "w2"


async def test_counts_tell_what_is_there(ledger: Ledger) -> None:
    assert await ledger.counts() == LedgerCounts(0, 0, 0, 0, 0, 0.0)
    writer = await Writer.of(ledger)
    await writer.publish(validated("live", at_s=100), parts=3)
    await writer.publish(validated("fallen", at_s=1))
    await writer.prepare(validated("pending", at_s=1))
    await ledger.taint(tainted("fallen", "never-seen", at_s=10), skew_s=60)
    await writer.admit(validated("fallen", "again", at_s=20))
    counts = await ledger.counts()
    assert (counts.live_artifacts, counts.live_chunks, counts.tainted_artifacts) == (1, 3, 2)
    assert (counts.quarantined, counts.unsent_events) == (1, 4)  # two completed, one invalidated, one quarantined
    assert counts.oldest_unsent_s >= 0


async def test_an_event_nobody_has_seen_yet_is_pending(ledger: Ledger) -> None:
    assert await outcome_of(ledger, "nobody", at_s=1) == "pending"
    await (await Writer.of(ledger)).publish(validated(at_s=1))
    assert await outcome_of(ledger, at_s=2) == "pending"


async def test_all_that_was_committed_is_there_after_a_restart(ledger_url: str) -> None:
    async with open_ledger(ledger_url) as ledger:
        writer = await Writer.of(ledger)
        generation = await writer.publish(validated(at_s=1))
        await ledger.taint(tainted("b", at_s=10), skew_s=0)
    async with open_ledger(ledger_url) as ledger:
        assert await text_of(ledger, refs_of(generation)) == "one content"
        assert (await Writer.of(ledger)).epoch == writer.epoch + 1
        assert len((await relayed(ledger)).events) == 2


# ------------------------------------------------------------------------------------------------------------- opening


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite://", "file"),
        ("sqlite:///:memory:", "file"),
        ("not a url", "sqlite:///PATH"),
        ("", "sqlite:///PATH"),
        ("mysql://host/db", "mysql"),
        ("sqlite:////proc/no/such/ledger.db", "cannot write"),
    ],
)
async def test_an_unusable_url_stops_the_start_and_says_why(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        async with open_ledger(url):
            pass


async def test_a_memory_database_by_another_name_is_refused_too(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="WAL"):
        async with open_ledger("sqlite:///file::memory:?uri=true"):
            pass


@pytest.mark.postgres
async def test_a_server_that_would_lose_commits_is_refused(postgres_url: str) -> None:
    import asyncpg

    admin = await asyncpg.connect(postgres_url.replace("+asyncpg", ""), timeout=10)
    name = postgres_url.rsplit("/", 1)[1]
    await admin.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    await admin.close()
    with pytest.raises(ConfigurationError, match="synchronous_commit"):
        async with open_ledger(postgres_url):
            pass


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(LedgerUnavailable):
        async with open_ledger("postgresql://nobody@127.0.0.1:1/none", timeout_s=2):
            pass


async def test_no_role_opens_text_by_itself(ledger: Ledger) -> None:
    writer = await Writer.of(ledger)
    refs = refs_of(await writer.publish(validated(at_s=1, source=metadata(scope=Scope.USER, user_id="me"))))
    admin = Principal(user_id="root", roles=frozenset({"admin"}))
    assert (await ledger.read(refs, admin)).passages == {}


@pytest.mark.parametrize(
    "keys",
    [[key(f"a{i}") for i in range(50)], [key("a", f"t{i}") for i in range(50)], [key("a", "t"), key("b", "u")]],
    ids=["one tenant", "one id", "crossed"],
)
async def test_looking_up_keys_is_never_a_scan(tmp_path, keys: list[ArtifactKey]) -> None:
    # SQLite alone: its plans do not depend on how much the tables hold.
    async with open_database(f"sqlite:///{tmp_path / 'ledger.db'}") as database, database.reading() as connection:
        for table in (artifacts, pending, documents, receipts, quarantine):
            statement = select(table).where(is_any_of(connection, table, keys))
            literal = statement.compile(database.engine.sync_engine, compile_kwargs={"literal_binds": True})
            plan = await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {literal}")
            assert not [row for row in plan if row[-1].startswith("SCAN")], table.name
