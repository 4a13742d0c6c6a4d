"""What answers stand on: a withdrawn source withdraws its answers, and nobody is left who was not told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import asyncpg
import jsonschema
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from ledgers import (
    Clock,
    Writer,
    cut,
    fresh_database,
    key,
    metadata,
    open_as_a_fleet,
    refs_of,
    relayed,
    tainted,
    text_of,
    validated,
)
from servers import PostgresServer
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncEngine

from dats_common.adapters.sql.connecting import WRITES, build_postgres_engine, open_file, parse_url
from dats_common.adapters.sql.evidence import open_evidence
from dats_common.adapters.sql.row_security import Access
from dats_common.adapters.sql.schema import MIGRATIONS
from dats_common.adapters.sql.tables import metadata as tables
from dats_common.contracts.asyncapi import asyncapi
from dats_common.contracts.topology import ANSWER_RECALLED
from dats_common.domain.access import LAPTOP, Principal
from dats_common.domain.model import ArtifactKey, ChunkRef, Scope, Taint, Validated
from dats_common.domain.taint import Verdict
from dats_common.errors import LedgerUnavailable, NotFound
from dats_common.ports import Evidence, Ledger
from dats_common.records import AnswerRecord

ROUNDS = 60
DEADLINE_S = 30.0
ACTOR = "key:asker"
ADMIN = replace(LAPTOP, roles=frozenset({"admin"}))


@pytest.fixture
async def evidence(ledger_url: str) -> AsyncIterator[Evidence]:
    """As a replica has it."""
    async with open_evidence(ledger_url, access=Access("query")) as opened:
        yield opened


@pytest.fixture
async def writers(ledger_url: str) -> AsyncIterator[Evidence]:
    """As a writer has it: over all tenants."""
    async with open_evidence(ledger_url) as opened:
        yield opened


def answer(answer_id: str, *refs: ChunkRef, **changes: Any) -> AnswerRecord:
    record = AnswerRecord(
        answer_id=answer_id,
        tenant_id="default",
        actor=ACTOR,
        user_id="alice",
        project_ids=None,
        tags=frozenset({"finance"}),
        question="What is {this}?",
        model="qwen3:8b",
        prompt_hash="9" * 64,
        counted_tokens=591,
        counted_by="tokenizer of qwen3",
        prompt_tokens=583,
        response_tokens=42,
        confidence=87,
        action="CITE",
        refs=refs,
        body={"answer": "That. [1]", "claims": [{"supported": True}], "confidence_calibrated": None},
    )
    return replace(record, **changes)


async def fallen(evidence: Evidence, answer_id: str, *, tenant_id: str = "default") -> list[str]:
    """Ids of the artifacts that withdrew the answer."""
    kept = await evidence.find(answer_id, replace(LAPTOP, tenant_id=tenant_id), actor=ACTOR)
    return [one.artifact_id for one in kept.fallen]


async def recalled(ledger: Ledger) -> list[tuple[str, list[str], str | None]]:
    """What the recalls say that are published now."""
    events = (await relayed(ledger)).data(ANSWER_RECALLED)
    return [(event["answer_id"], event["artifact_ids"], event["cascade_id"]) for event in events]


async def approve(writer: Writer, event: Validated) -> None:
    """Whatever becomes of it."""
    admission = await writer.admit(event)
    if admission.verdict is Verdict.EMBED and admission.generation is not None:
        await writer.ledger.write_chunks({admission.generation: cut(event.content)}, embedding_model="test-model")
        await writer.flip(admission)


# ---------------------------------------------------------------------------------------------------------- kept, found


async def test_an_answer_is_found_as_it_was_kept(ledger: Ledger, evidence: Evidence) -> None:
    writer = await Writer.of(ledger)
    one, other = [refs_of(await writer.publish(validated(name, at_s=1))) for name in "ba"]
    record = answer("1", *one, *other)
    assert await evidence.keep(record) == ()
    kept = await evidence.find("1", LAPTOP, actor=ACTOR)
    assert (kept.record, kept.fallen) == (record, ())
    assert kept.created_at > 0


async def test_an_answer_without_sources_and_model_stands(ledger: Ledger, evidence: Evidence) -> None:
    record = answer("1", user_id=None, action="ROUTE", prompt_tokens=None, response_tokens=None)
    assert await evidence.keep(record) == ()
    kept = await evidence.find("1", LAPTOP, actor=ACTOR)
    assert (kept.record, kept.fallen) == (record, ())


@pytest.mark.parametrize(
    ("principal", "actor", "may"),
    [
        (Principal(), ACTOR, True),
        (Principal(user_id="alice"), "key:other", True),
        (Principal(roles=frozenset({"admin"})), "key:other", False),
        (Principal(user_id="bob", roles=frozenset({"service", "ingest"})), "key:other", False),
        (Principal(), "key:other", False),
        (Principal(user_id="bob"), ACTOR, False),
        (Principal(tags=frozenset({"finance", "sales"})), ACTOR, True),
        (Principal(tags=frozenset({"sales"})), ACTOR, False),
        (Principal(user_id="alice", tags=frozenset({"sales"})), "key:other", False),
        (Principal(project_ids=frozenset({"p"})), ACTOR, False),
        (Principal(tenant_id="other"), ACTOR, False),
        (Principal(tenant_id="other", user_id="alice", roles=frozenset({"admin"})), ACTOR, False),
    ],
)
async def test_an_answer_is_for_who_asked_and_the_same_user_if_they_may_see_as_much(
    evidence: Evidence, principal: Principal, actor: str, may: bool
) -> None:
    await evidence.keep(answer("1"))
    if may:
        assert (await evidence.find("1", principal, actor=actor)).record.answer_id == "1"
    else:
        with pytest.raises(NotFound):
            await evidence.find("1", principal, actor=actor)


async def test_an_answer_for_no_user_is_not_everybodys_without_one(evidence: Evidence) -> None:
    await evidence.keep(answer("1", user_id=None))
    with pytest.raises(NotFound):
        await evidence.find("1", Principal(user_id=None), actor="key:other")
    assert (await evidence.find("1", ADMIN, actor="key:other")).record.user_id is None


async def test_an_unknown_answer_is_not_found(evidence: Evidence) -> None:
    with pytest.raises(NotFound):
        await evidence.find("1", ADMIN, actor=ACTOR)


# ------------------------------------------------------------------------------------------------ fallen before it left


@pytest.mark.parametrize("tenant_id", ["default", None])
async def test_what_was_tainted_while_the_answer_was_written_keeps_it_from_leaving(
    ledger: Ledger, evidence: Evidence, writers: Evidence, tenant_id: str | None
) -> None:
    writer = await Writer.of(ledger)
    stays, falls = [refs_of(await writer.publish(validated(name, at_s=1))) for name in "ab"]
    await ledger.taint(tainted("b", at_s=10, tenant_id=tenant_id), skew_s=0)
    assert await evidence.keep(answer("1", *falls, *stays)) == (key("b"),)
    assert await fallen(evidence, "1") == ["b"]
    assert await writers.recall() == 0
    assert await recalled(ledger) == [], "nobody was given it"


async def test_what_was_replaced_while_the_answer_was_written_keeps_it_from_leaving(
    ledger: Ledger, evidence: Evidence, writers: Evidence
) -> None:
    writer = await Writer.of(ledger)
    old = refs_of(await writer.publish(validated(content="old", at_s=1)))
    await writer.publish(validated(content="new", at_s=2))
    assert await evidence.keep(answer("1", *old)) == (key(),)
    assert await fallen(evidence, "1") == ["a"], "it stays withdrawn, although no taint came"
    assert await writers.recall() == 0


async def test_a_source_that_there_never_was_keeps_an_answer_from_leaving(evidence: Evidence) -> None:
    unknown = ChunkRef(key("unknown"), 7, 0)
    assert await evidence.keep(answer("1", unknown)) == (key("unknown"),)
    assert await fallen(evidence, "1") == ["unknown"]


async def test_a_taint_without_tenant_that_missed_the_artifacts_row_counts_too(
    ledger: Ledger, evidence: Evidence, ledger_url: str
) -> None:
    writer = await Writer.of(ledger)
    live, replaced = [refs_of(await writer.publish(validated(key(name, "t"), at_s=1))) for name in "ab"]
    on_live, on_replaced = answer("1", *live, tenant_id="t"), answer("2", *replaced, tenant_id="t")
    assert await evidence.keep(on_live) == await evidence.keep(on_replaced) == ()
    await writer.publish(validated(key("b", "t"), "next", at_s=20))
    assert await fallen(evidence, "2", tenant_id="t") == []
    for artifact_id in "ab":
        await _miss(ledger, ledger_url, artifact_id)
    assert await evidence.keep(replace(on_live, answer_id="3")) == (key("a", "t"),)
    assert await fallen(evidence, "1", tenant_id="t") == ["a"]
    assert await fallen(evidence, "2", tenant_id="t") == ["b"]


async def _miss(ledger: Ledger, ledger_url: str, artifact_id: str) -> None:
    """A taint at ten seconds after noon that has listed the tenants before the artifact's row was committed."""
    through = (await ledger.taint(tainted("elsewhere", at_s=10), skew_s=0)).through
    async with engine_on(ledger_url) as engine, engine.connect() as connection:
        await connection.execution_options(**{WRITES: True})
        async with connection.begin():
            bounds = {"id": artifact_id, "through": through}
            await connection.execute(
                text("INSERT INTO rag_wildcards VALUES (:id, :through, :through, :through)"), bounds
            )


async def test_an_answer_whose_sources_cannot_be_kept_is_not_kept_at_all(evidence: Evidence, ledger_url: str) -> None:
    await execute(ledger_url, "ALTER TABLE rag_answer_sources RENAME TO rag_away")
    with pytest.raises(LedgerUnavailable):
        await evidence.keep(answer("1", ChunkRef(key(), 1, 0)))
    await execute(ledger_url, "ALTER TABLE rag_away RENAME TO rag_answer_sources")
    with pytest.raises(NotFound):
        await evidence.find("1", LAPTOP, actor=ACTOR)


async def execute(ledger_url: str, statement: str, **values: Any) -> None:
    """As the owner of the tables."""
    async with engine_on(ledger_url) as engine, engine.connect() as connection:
        await connection.execution_options(**{WRITES: True})
        async with connection.begin():
            await connection.execute(text(statement), values)


# ------------------------------------------------------------------------------------------------- standing, withdrawn

Step = Callable[[Writer, str], Awaitable[Any]]


def new(content: str, at_s: float) -> Step:
    return lambda writer, name: approve(writer, validated(name, content, at_s=at_s))


def taint(at_s: float, *, artifact_id: str | None = None, tenant_id: str | None = "default") -> Step:
    return lambda writer, name: writer.ledger.taint(
        tainted(artifact_id or name, at_s=at_s, tenant_id=tenant_id), skew_s=0
    )


SHOWN_AT_S = 100
MATRIX: dict[str, tuple[list[Step], bool]] = {
    "live": ([], True),
    "superseded": ([new("next", 200)], True),
    "tainted": ([taint(150)], False),
    "an older taint": ([taint(50)], True),
    "superseded, then tainted up to what was shown": ([new("next", 200), taint(150)], False),
    "superseded, then tainted as a whole": ([new("next", 200), taint(300)], False),
    "superseded, an older taint": ([new("next", 200), taint(50)], True),
    "tainted, then a newer version": ([taint(150), new("next", 200)], False),
    "tainted, then the same approved again": ([taint(150), new("first", 200)], False),
    "approved again unchanged, a taint in between": ([new("first", 200), taint(150)], True),
    "approved again unchanged, then tainted": ([new("first", 200), taint(250)], False),
    "tainted in every tenant": ([taint(150, tenant_id=None)], False),
    "superseded, then tainted in every tenant": ([new("next", 200), taint(150, tenant_id=None)], False),
    "an older taint in every tenant": ([new("next", 200), taint(50, tenant_id=None)], True),
    "another artifact tainted": ([taint(150, artifact_id="another")], True),
    "the same id in another tenant tainted": ([taint(150, tenant_id="other")], True),
}


@pytest.mark.parametrize(("steps", "stands"), MATRIX.values(), ids=MATRIX.keys())
async def test_an_answer_stands_until_a_taint_takes_what_it_was_shown(
    ledger: Ledger, evidence: Evidence, writers: Evidence, steps: list[Step], stands: bool
) -> None:
    writer = await Writer.of(ledger)
    shown = refs_of(await writer.publish(validated(content="first", at_s=SHOWN_AT_S)))
    assert await evidence.keep(answer("1", *shown)) == ()
    for step in steps:
        await step(writer, "a")
    assert await fallen(evidence, "1") == ([] if stands else ["a"])
    assert await fallen(writers, "1") == ([] if stands else ["a"])
    assert await writers.recall() == (0 if stands else 1)
    assert await recalled(ledger) == ([] if stands else [("1", ["a"], None)])


async def test_after_any_history_exactly_the_answers_are_recalled_whose_source_fell_to_a_taint(
    ledger: Ledger, evidence: Evidence, writers: Evidence
) -> None:
    steps: list[tuple[Step, bool]] = [
        (new("next", 200), False),
        (new("first", 200.5), False),
        (taint(50), False),
        (taint(150), True),
        (taint(300, tenant_id=None), True),
    ]
    writer = await Writer.of(ledger)
    histories = [history for length in (1, 2, 3) for history in permutations(steps, length)]
    withdrawn = set()
    for number, history in enumerate(histories):
        name = f"a{number}"
        shown = refs_of(await writer.publish(validated(name, "first", at_s=SHOWN_AT_S)))
        await evidence.keep(answer(name, *shown))
        for step, _ in history:
            await step(writer, name)
        live = await ledger.still_live(shown, LAPTOP)
        if any(reaches for _, reaches in history) and not live:
            withdrawn.add(name)
    assert len(histories) > len(withdrawn) > 20
    found = {name for name in map("a{}".format, range(len(histories))) if await fallen(evidence, name)}
    assert found == withdrawn
    assert await writers.recall() == len(withdrawn)
    assert {answer_id for answer_id, _, _ in await recalled(ledger)} == withdrawn


async def test_every_source_counts_and_those_that_fell_are_named(
    ledger: Ledger, evidence: Evidence, writers: Evidence
) -> None:
    writer = await Writer.of(ledger)
    shown = [refs_of(await writer.publish(validated(name, at_s=1))) for name in "dcba"]
    await evidence.keep(answer("1", *(ref for refs in shown for ref in refs)))
    await ledger.taint(tainted("c", "a", at_s=10), skew_s=0)
    assert await fallen(evidence, "1") == ["a", "c"]
    assert await writers.recall() == 1
    assert await recalled(ledger) == [("1", ["a", "c"], None)]


async def test_a_version_whose_place_was_moved_to_another_clock_falls_with_it(
    timed: Ledger, clock: Clock, tmp_path: Path
) -> None:
    # Shown under the ledger's own time, which a taint over HTTP reaches no further than to itself; approved again by a
    # producer's clock, which it reaches within the skew.
    clock.pass_s(100)
    writer = await Writer.of(timed)
    shown = refs_of(await writer.publish(validated(at_s=20, own_clock=True)))
    async with open_evidence(f"sqlite:///{tmp_path / 'timed.db'}") as evidence:
        await evidence.keep(answer("1", *shown))
        await approve(writer, validated(at_s=30))
        await timed.taint(tainted("a", at_s=10, own_clock=True), skew_s=60)
        assert await timed.still_live(shown, LAPTOP) == frozenset()
        assert await fallen(evidence, "1") == ["a"]


async def test_a_taint_over_http_does_not_reach_what_was_shown_after_it(
    timed: Ledger, clock: Clock, tmp_path: Path
) -> None:
    clock.pass_s(100)
    writer = await Writer.of(timed)
    await timed.taint(tainted("a", at_s=10, own_clock=True), skew_s=60)
    shown = refs_of(await writer.publish(validated(at_s=20, own_clock=True)))
    async with open_evidence(f"sqlite:///{tmp_path / 'timed.db'}") as evidence:
        await evidence.keep(answer("1", *shown))
        await writer.publish(validated(content="next", at_s=25, own_clock=True))
        assert await fallen(evidence, "1") == []
        await timed.taint(tainted("a", at_s=21, own_clock=True), skew_s=60)
        assert await fallen(evidence, "1") == ["a"]


# --------------------------------------------------------------------------------------------- another tenant's public


@pytest.mark.parametrize(
    ("then", "stands"),
    [
        (Scope.PUBLIC, True),
        (Scope.PROJECT, False),
        (None, False),
    ],
    ids=["replaced", "not shared any more", "tainted"],
)
async def test_an_answer_stands_on_another_tenants_public_work_while_that_is_shared(
    ledger: Ledger, evidence: Evidence, writers: Evidence, then: Scope | None, stands: bool
) -> None:
    writer = await Writer.of(ledger)
    theirs = key("a", "theirs")
    shown = refs_of(await writer.publish(validated(theirs, at_s=1, source=metadata(scope=Scope.PUBLIC))))
    assert await evidence.keep(answer("1", *shown)) == ()
    if then is None:
        await ledger.taint(tainted("a", at_s=10, tenant_id="theirs"), skew_s=0)
    else:
        await writer.publish(validated(theirs, "next", at_s=10, source=metadata(scope=then)))
    assert await fallen(evidence, "1") == ([] if stands else ["a"])
    assert await fallen(writers, "1") == ([] if stands else ["a"]), "both roles judge alike"
    assert await writers.recall([theirs], cascade_id="c") == (0 if stands else 1)
    assert await recalled(ledger) == ([] if stands else [("1", ["a"], "c")])


# -------------------------------------------------------------------------------------------------------------- recalls


async def test_a_replica_recalls_what_its_taint_took_the_ground_from(ledger: Ledger, evidence: Evidence) -> None:
    writer = await Writer.of(ledger)
    one, other = [refs_of(await writer.publish(validated(name, at_s=1))) for name in "ab"]
    await evidence.keep(answer("both", *one, *other))
    await evidence.keep(answer("one", *one))
    await evidence.keep(answer("other", *other))
    receipt = await ledger.taint(tainted("a", at_s=10), skew_s=0)
    assert await evidence.recall(receipt.fallen, cascade_id="cascade-7") == 2
    assert sorted(await recalled(ledger)) == [("both", ["a"], "cascade-7"), ("one", ["a"], "cascade-7")]
    assert await evidence.recall(receipt.fallen) == 0
    assert await evidence.recall([key("b")]) == 0


async def test_the_answers_of_one_taint_are_recalled_with_its_cascade_and_no_others(
    ledger: Ledger, evidence: Evidence
) -> None:
    writer = await Writer.of(ledger)
    for name in "ab":
        await evidence.keep(answer(f"on {name}", *refs_of(await writer.publish(validated(name, at_s=1)))))
    receipts = [await ledger.taint(tainted(name, at_s=10), skew_s=0) for name in "ab"]
    for number, receipt in enumerate(receipts):
        assert await evidence.recall(receipt.fallen, cascade_id=f"cascade-{number}") == 1
    assert await recalled(ledger) == [("on a", ["a"], "cascade-0"), ("on b", ["b"], "cascade-1")]


async def test_a_recall_is_published_as_its_schema_says(ledger: Ledger, evidence: Evidence, writers: Evidence) -> None:
    shown = refs_of(await (await Writer.of(ledger)).publish(validated(at_s=1)))
    await evidence.keep(answer("1", *shown))
    await ledger.taint(tainted("a", at_s=10), skew_s=0)
    await writers.recall()
    [event] = [body for name, body, _ in (await relayed(ledger)).events if name == ANSWER_RECALLED]
    jsonschema.validate(event, asyncapi()["components"]["messages"][ANSWER_RECALLED]["payload"])
    assert event["id"] == "recalled:1"


async def test_what_was_recalled_stays_withdrawn_and_is_told_once(
    ledger: Ledger, evidence: Evidence, writers: Evidence
) -> None:
    writer = await Writer.of(ledger)
    shown = refs_of(await writer.publish(validated(at_s=1)))
    await evidence.keep(answer("1", *shown))
    await ledger.taint(tainted("a", at_s=10), skew_s=0)
    assert await writers.recall() == 1
    assert await recalled(ledger) == [("1", ["a"], None)]
    await writer.publish(validated(at_s=20))
    await ledger.taint(tainted("a", at_s=30), skew_s=0)
    assert await writers.recall() == 0
    assert await recalled(ledger) == []
    assert await fallen(evidence, "1") == ["a"]


async def test_recalls_come_in_parts_of_the_limit_until_fewer_are_left(
    ledger: Ledger, evidence: Evidence, writers: Evidence
) -> None:
    shown = refs_of(await (await Writer.of(ledger)).publish(validated(at_s=1)))
    for number in range(5):
        await evidence.keep(answer(f"{number}", *shown))
    await ledger.taint(tainted("a", at_s=10), skew_s=0)
    assert [await writers.recall(limit=2) for _ in range(3)] == [2, 2, 1]
    assert sorted(answer_id for answer_id, _, _ in await recalled(ledger)) == list("01234")


async def test_old_answers_are_dropped_with_their_sources_oldest_first_and_no_others(
    ledger: Ledger, evidence: Evidence, writers: Evidence, ledger_url: str
) -> None:
    shown = refs_of(await (await Writer.of(ledger)).publish(validated(at_s=1)))
    for number in range(5):
        await evidence.keep(answer(f"{number}", *shown))
    two_days_us = 2 * 86_400_000_000
    older = "UPDATE rag_answers SET created_at = created_at - :by WHERE answer_id < '3'"
    await execute(ledger_url, older, by=two_days_us)
    assert await writers.forget(older_than_s=3 * 86_400) == 0
    assert [await writers.forget(older_than_s=86_400, limit=2) for _ in range(3)] == [2, 1, 0]
    for number in range(3):
        with pytest.raises(NotFound):
            await evidence.find(f"{number}", LAPTOP, actor=ACTOR)
    assert [(await evidence.find(name, LAPTOP, actor=ACTOR)).fallen for name in "34"] == [(), ()]
    await ledger.taint(tainted("a", at_s=10), skew_s=0)
    assert await writers.recall() == 2


async def test_two_processes_that_recall_at_once_tell_of_each_answer_once(
    ledger: Ledger, evidence: Evidence, writers: Evidence
) -> None:
    shown = refs_of(await (await Writer.of(ledger)).publish(validated(at_s=1)))
    for number in range(ROUNDS):
        await evidence.keep(answer(f"{number}", *shown))
    receipt = await ledger.taint(tainted("a", at_s=10), skew_s=0)
    counts = await asyncio.gather(writers.recall(limit=50), evidence.recall(receipt.fallen), writers.recall())
    assert sum(counts) == ROUNDS
    told = [answer_id for answer_id, _, _ in await recalled(ledger)]
    assert len(told) == len(set(told)) == ROUNDS


# --------------------------------------------------------------------------------------------- kept while a taint comes


@pytest.mark.parametrize("owner", ["default", "theirs"])
async def test_an_answer_that_races_a_taint_does_not_leave_or_is_recalled(
    ledger: Ledger, evidence: Evidence, writers: Evidence, owner: str
) -> None:
    writer = await Writer.of(ledger)
    left = {}
    for round_ in range(ROUNDS):
        artifact = key(f"a{round_}", owner)
        event = validated(artifact, at_s=1, source=metadata(scope=Scope.PUBLIC))
        shown = refs_of(await writer.publish(event))

        async def keep(record: AnswerRecord, delay: int) -> tuple[ArtifactKey, ...]:
            await _pass(delay)
            return await evidence.keep(record)

        async def withdraw(taint_: Taint, delay: int) -> None:
            await _pass(delay)
            receipt = await ledger.taint(taint_, skew_s=0)
            await writers.recall(receipt.fallen)

        # Ever longer, so that whoever is quicker on this machine comes second too.
        delay, tenant_id = (round_ // 4) ** 2 * 20, owner if round_ % 4 < 2 else None
        record, taint_ = answer(f"{round_}", *shown), tainted(artifact.artifact_id, at_s=10, tenant_id=tenant_id)
        if round_ % 2:
            fell, _ = await asyncio.gather(keep(record, 0), withdraw(taint_, delay))
        else:
            _, fell = await asyncio.gather(withdraw(taint_, 0), keep(record, delay))
        left[f"{round_}"] = not fell
        assert await fallen(evidence, f"{round_}") == [artifact.artifact_id]
    told = {answer_id for answer_id, _, _ in await recalled(ledger)}
    assert told >= {answer_id for answer_id, was_given in left.items() if was_given}
    assert set(left.values()) == {True, False}, "they never met in different orders"


async def _pass(turns: int) -> None:
    """Let the others come as far as they may."""
    for _ in range(turns):
        await asyncio.sleep(0)


@asynccontextmanager
async def a_transaction(url: str) -> AsyncIterator[asyncpg.Connection]:
    """One of an administrator's own, rolled back unless it was committed."""
    connection = await asyncpg.connect(url, timeout=10)
    try:
        await connection.execute("BEGIN")
        yield connection
    finally:
        await connection.close()


async def until_blocked(url: str, task: asyncio.Task[Any], *, waiting: int = 1) -> None:
    """Until so many sessions wait for a lock; or the task is done, because there was none to wait for."""
    watcher = await asyncpg.connect(url, timeout=10)
    try:
        async with asyncio.timeout(DEADLINE_S):
            waits = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            while not task.done() and await watcher.fetchval(waits) < waiting:
                await asyncio.sleep(0.01)
    finally:
        await watcher.close()


@pytest.fixture
async def server_url(postgres: PostgresServer) -> AsyncIterator[str]:
    async with fresh_database(postgres.url) as url:
        yield url


@pytest.mark.postgres
async def test_an_answer_waits_for_a_taint_that_is_being_committed(server_url: str) -> None:
    async with open_as_a_fleet(server_url) as ledger, open_evidence(server_url, access=Access("query")) as evidence:
        shown = refs_of(await (await Writer.of(ledger)).publish(validated(at_s=1)))
        async with a_transaction(server_url) as taint_:
            await taint_.execute("SELECT FROM rag_artifacts FOR UPDATE")
            await taint_.execute("UPDATE rag_artifacts SET live_generation = NULL, tainted_through = version")
            keeping = asyncio.create_task(evidence.keep(answer("1", *shown)))
            await until_blocked(server_url, keeping)
            await taint_.execute("COMMIT")
        assert await keeping == (key(),)


@asynccontextmanager
async def an_answer_held_up(url: str, evidence: Evidence, record: AnswerRecord) -> AsyncIterator[asyncio.Task[Any]]:
    """It has looked at its sources, found them live, and is not committed until the block ends."""
    async with a_transaction(url) as other:
        await other.execute(
            "INSERT INTO rag_answers (answer_id, tenant_id, actor, question, model, prompt_hash, "
            "counted_tokens, counted_by, confidence, action, body, created_at) "
            "VALUES ($1, '', '', '', '', '', 0, '', 0, '', '{}', 0)",
            record.answer_id,
        )
        keeping = asyncio.create_task(evidence.keep(record))
        await until_blocked(url, keeping)
        assert not keeping.done()
        yield keeping


@pytest.mark.postgres
async def test_a_taint_waits_for_an_answer_that_is_being_kept_and_then_recalls_it(server_url: str) -> None:
    async with open_as_a_fleet(server_url) as ledger, open_evidence(server_url, access=Access("query")) as evidence:
        shown = refs_of(await (await Writer.of(ledger)).publish(validated(at_s=1)))
        async with an_answer_held_up(server_url, evidence, answer("1", *shown)) as keeping:
            tainting = asyncio.create_task(ledger.taint(tainted("a", at_s=10), skew_s=0))
            await until_blocked(server_url, tainting, waiting=2)
            assert not tainting.done()
        assert await keeping == ()
        assert await evidence.recall((await tainting).fallen) == 1
        assert await recalled(ledger) == [("1", ["a"], None)]


@pytest.mark.postgres
async def test_a_taint_that_comes_first_in_another_tenant_is_seen_before_the_answer_leaves(server_url: str) -> None:
    # A replica cannot hold another tenant's row: the taint and its recall pass by while the answer is being kept.
    async with (
        open_as_a_fleet(server_url) as ledger,
        open_evidence(server_url, access=Access("query")) as evidence,
        open_evidence(server_url) as writers,
    ):
        public = validated(key("a", "theirs"), at_s=1, source=metadata(scope=Scope.PUBLIC))
        shown = refs_of(await (await Writer.of(ledger)).publish(public))
        async with an_answer_held_up(server_url, evidence, answer("1", *shown)) as keeping:
            receipt = await ledger.taint(tainted("a", at_s=10, tenant_id="theirs"), skew_s=0)
            assert await writers.recall(receipt.fallen) == 0, "it is not there yet"
        assert await keeping == (key("a", "theirs"),)


# -------------------------------------------------------------------------------------------------------- the upgrade


@asynccontextmanager
async def engine_on(url: str) -> AsyncIterator[AsyncEngine]:
    """The database as its owner has it, without looking at the schema's version."""
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        engine = open_file(parsed, pool_size=1, timeout_s=10)
    else:
        engine = build_postgres_engine(parsed, timeout_s=10)
    try:
        yield engine
    finally:
        await engine.dispose()


async def migrated(url: str, version: str) -> None:
    """The schema of an earlier release."""

    def run(connection: Connection) -> None:
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        config.set_main_option("path_separator", "os")
        config.attributes["connection"] = connection
        command.upgrade(config, version)

    async with engine_on(url) as engine, engine.connect() as connection:
        await connection.execution_options(**{WRITES: True})
        async with connection.begin():
            await connection.run_sync(run)


async def test_a_ledger_of_the_release_before_answers_were_kept_is_brought_up_to_date_in_place(ledger_url: str) -> None:
    await migrated(ledger_url, "0003")
    async with engine_on(ledger_url) as engine, engine.connect() as connection:
        await connection.execution_options(**{WRITES: True})
        async with connection.begin():
            for statement in (
                "INSERT INTO rag_documents (tenant_id, artifact_id, document_id, version, event_id, project_id, scope, "
                "tags, domain, doc_type, provenance_id, task_id, source_type, source_id, source_uri, source_hash, "
                "source_updated_at, language, title, body, extra, created_at, updated_at) VALUES ('default', 'a', 'd', "
                "1, 'e', 'p', 'project', '[]', '', '', '', '', '', '', '', 'h', '', '', '', 'kept content', '', 1, 1)",
                "INSERT INTO rag_artifacts (tenant_id, artifact_id, version, live_generation) "
                "SELECT tenant_id, artifact_id, version, generation FROM rag_documents",
                "INSERT INTO rag_chunks (generation, chunk_index, document_id, tenant_id, project_id, scope, "
                "chunk_text, chunk_hash, token_count, char_start, char_end, embedding_model, created_at) SELECT "
                "generation, 0, 'd', 'default', 'p', 'project', body, 'h', 2, 0, 12, 'm', 1 FROM rag_documents",
            ):
                await connection.execute(text(statement))
    async with open_as_a_fleet(ledger_url) as ledger, open_evidence(ledger_url, access=Access("query")) as evidence:
        shown = ChunkRef(key(), 1, 0)
        assert await text_of(ledger, [shown]) == "kept content"
        assert await evidence.keep(answer("1", shown)) == ()
        await ledger.taint(tainted("a", at_s=10), skew_s=0)
        assert await fallen(evidence, "1") == ["a"]


async def test_the_migrations_make_the_tables_that_the_code_has(ledger_url: str) -> None:
    await migrated(ledger_url, "head")
    async with engine_on(ledger_url) as engine, engine.connect() as connection:

        def differences(sync: Connection) -> list[Any]:
            return compare_metadata(MigrationContext.configure(sync), tables)

        assert await connection.run_sync(differences) == []
