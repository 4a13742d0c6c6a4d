"""What operators do with versions that could not be ordered, on SQLite and PostgreSQL."""

from __future__ import annotations

import pytest
from ledgers import Clock, Writer, key, metadata, tainted, validated

from dats_common.adapters.memory_bus import MemoryBus
from dats_common.adapters.sql.ledger import SqlLedger
from dats_common.contracts.events import parse_validated
from dats_common.contracts.metadata import ArtifactMetadata
from dats_common.contracts.topology import COMMANDS_QUEUE, EMBED_COMMAND
from dats_common.domain.model import Scope, Validated
from dats_common.domain.taint import QuarantineReason, Verdict
from dats_common.errors import BrokerUnavailable, NotFound, Refused
from dats_common.maintenance.readmission import readmit
from dats_common.records import Quarantined

SKEW_S = 60.0

WITH_EVERYTHING = metadata(
    scope=Scope.USER,
    user_id="ada",
    tags=("alpha", "beta"),
    title="A title",
    verified=False,
    extra='{"team":{"name":"core"},"weight":0.5}',
)


async def quarantine(ledger: SqlLedger, event: Validated) -> Quarantined:
    """Put it there for the skew of a taint that was sent ten seconds before it."""
    await ledger.taint(tainted(event.key.artifact_id, at_s=0, tenant_id=event.key.tenant_id), skew_s=SKEW_S)
    admission = await (await Writer.of(ledger)).admit(event)
    assert admission.verdict is Verdict.QUARANTINED
    return next(entry for entry in await ledger.quarantined(limit=1000) if entry.key == event.key)


async def taken_command(bus: MemoryBus) -> Validated:
    """What the writer makes of the command that lies in the queue."""
    async with bus.subscribe(COMMANDS_QUEUE, prefetch=1) as subscription:
        [delivery] = await subscription.batch(max_items=1, max_wait_s=0)
        await subscription.ack(delivery)
    return parse_validated(delivery.body, event_type=EMBED_COMMAND)


async def test_entries_come_page_by_page_and_without_their_content(ledger: SqlLedger) -> None:
    for name in ("a", "b", "c"):
        await quarantine(ledger, validated(name, f"content of {name}", at_s=10))
    first = await ledger.quarantined(limit=2)
    rest = await ledger.quarantined(limit=2, after=first[-1].entry_id)
    assert [entry.key.artifact_id for entry in first + rest] == ["a", "b", "c"]
    assert {entry.reason for entry in first} == {QuarantineReason.WITHIN_SKEW.value}
    assert all(entry.content is None and entry.size_chars == len("content of a") for entry in first)
    assert "content=" not in repr(await ledger.quarantined(limit=2, with_content=True))
    [with_content, _] = await ledger.quarantined(limit=2, with_content=True)
    assert with_content.content == "content of a"


async def test_a_readmitted_version_is_the_same_content_and_goes_live_above_the_tombstone(ledger: SqlLedger) -> None:
    bus = MemoryBus()
    event = validated("a", "the content", at_s=10, source=WITH_EVERYTHING)
    entry = await quarantine(ledger, event)
    await readmit(entry.entry_id, quarantine=ledger, bus=bus)
    command = await taken_command(bus)
    assert (command.key, command.content, command.metadata) == (event.key, event.content, event.metadata)
    assert command.content_hash == event.content_hash
    writer = await Writer.of(ledger)
    await writer.publish(command)
    assert await ledger.quarantined(limit=10) == []


@pytest.mark.parametrize("source", [metadata(), WITH_EVERYTHING])
def test_metadata_comes_back_from_the_quarantine_as_it_went_in(source: object) -> None:
    assert ArtifactMetadata.from_source(source).to_source() == source  # type: ignore[arg-type]


async def test_an_entry_is_open_until_the_broker_has_the_command(ledger: SqlLedger) -> None:
    class BrokerAway(MemoryBus):
        async def command(self, body: object, *, event_id: str) -> None:
            raise BrokerUnavailable("away")

    entry = await quarantine(ledger, validated("a", at_s=10))
    with pytest.raises(BrokerUnavailable):
        await readmit(entry.entry_id, quarantine=ledger, bus=BrokerAway())
    assert [each.entry_id for each in await ledger.quarantined(limit=10)] == [entry.entry_id]


async def test_a_readmission_that_is_repeated_embeds_once(ledger: SqlLedger) -> None:
    class DiesBeforeTheEnd:
        """An operator's process that ends once the broker has the command."""

        readmission = ledger.readmission

        async def resolve(self, entry_id: int) -> None:
            raise KeyboardInterrupt

        async def quarantined(self, *, limit: int, after: int = 0, with_content: bool = False) -> list[Quarantined]:
            raise NotImplementedError

    bus = MemoryBus()
    entry = await quarantine(ledger, validated("a", at_s=10))
    with pytest.raises(KeyboardInterrupt):
        await readmit(entry.entry_id, quarantine=DiesBeforeTheEnd(), bus=bus)
    await readmit(entry.entry_id, quarantine=ledger, bus=bus)
    writer = await Writer.of(ledger)
    await writer.publish(await taken_command(bus))
    assert (await writer.admit(await taken_command(bus))).verdict in {Verdict.UNCHANGED, Verdict.DUPLICATE}
    with pytest.raises(NotFound):
        await readmit(entry.entry_id, quarantine=ledger, bus=bus)


async def test_a_taint_that_was_sent_after_the_version_is_not_the_operators_to_overrule(ledger: SqlLedger) -> None:
    entry = await quarantine(ledger, validated("a", at_s=10))
    await ledger.taint(tainted("a", at_s=11), skew_s=SKEW_S)  # between his look at the list and his decision
    bus = MemoryBus()
    with pytest.raises(Refused, match="taint that was sent after it"):
        await readmit(entry.entry_id, quarantine=ledger, bus=bus)
    assert await bus.depth(COMMANDS_QUEUE) == 0
    assert len(await ledger.quarantined(limit=10)) == 1


async def test_a_taint_of_every_tenant_is_not_overruled_either(ledger: SqlLedger) -> None:
    entry = await quarantine(ledger, validated(key("a", "acme"), at_s=10))
    await ledger.taint(tainted("a", at_s=11, tenant_id=None), skew_s=SKEW_S)
    with pytest.raises(Refused):
        await ledger.readmission(entry.entry_id)


async def test_a_taint_on_its_way_to_the_writer_wins_over_the_readmission(timed: SqlLedger, clock: Clock) -> None:
    clock.pass_s(300)
    entry = await quarantine(timed, validated("a", at_s=10))
    bus = MemoryBus()
    await readmit(entry.entry_id, quarantine=timed, bus=bus)
    clock.pass_s(1)
    await timed.taint(tainted("a"), skew_s=SKEW_S)  # by the ledger's clock, before the writer has seen the command
    admission = await (await Writer.of(timed)).admit(await taken_command(bus))
    assert admission.verdict is Verdict.SUPPRESSED


async def test_nothing_is_readmitted_while_a_skew_covers_the_present(timed: SqlLedger, clock: Clock) -> None:
    clock.pass_s(20)
    entry = await quarantine(timed, validated("a", at_s=10))
    with pytest.raises(Refused, match="skew"):
        await timed.readmission(entry.entry_id)
    clock.pass_s(SKEW_S)
    assert (await timed.readmission(entry.entry_id)).time.claimed == clock.now


async def test_a_bare_version_after_a_taint_is_readmitted(timed: SqlLedger, clock: Clock) -> None:
    await timed.taint(tainted("a", at_s=0), skew_s=SKEW_S)
    clock.pass_s(100)
    writer = await Writer.of(timed)
    assert (await writer.admit(validated("a"))).reason is QuarantineReason.BARE_AFTER_TAINT
    [entry] = await timed.quarantined(limit=10)
    clock.pass_s(5)
    assert entry.age_s == 0
    assert (await timed.quarantined(limit=10))[0].age_s == 5
    await writer.publish(await timed.readmission(entry.entry_id))


async def test_of_two_contents_of_one_moment_the_operator_may_choose_the_other(timed: SqlLedger, clock: Clock) -> None:
    clock.pass_s(100)
    writer = await Writer.of(timed)
    await writer.publish(validated("a", "first", at_s=10))
    assert (await writer.admit(validated("a", "second", at_s=10))).reason is QuarantineReason.EQUAL_TIME
    [entry] = await timed.quarantined(limit=10)
    await writer.publish(await timed.readmission(entry.entry_id))
    assert await timed.quarantined(limit=10) == []
