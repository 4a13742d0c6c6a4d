"""The ledger under several processes' worth of connections: every claim holds on both databases."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import asyncpg
import pytest
from ledgers import Inbox, Writer, key, live_of, open_as_a_fleet, refs_of, tainted, text_of, validated, version_of
from sqlalchemy import text

from dats_common.adapters.sql.engine import open_database
from dats_common.adapters.sql.ledger import SqlLedger, open_ledger
from dats_common.domain.access import LAPTOP
from dats_common.domain.model import ArtifactKey, Validated
from dats_common.domain.taint import FlipVerdict, Verdict
from dats_common.errors import Fenced, LedgerUnavailable
from dats_common.ports import Ledger
from dats_common.records import Admission, TaintReceipt

ROUNDS = 200


@pytest.fixture
async def other(ledger: Ledger, ledger_url: str) -> AsyncIterator[Ledger]:
    """A second process's view of the same ledger: an engine, a pool and locks of its own."""
    async with open_as_a_fleet(ledger_url) as opened:
        yield opened


# --------------------------------------------------------------------------------------------------------- T1 and V4


async def test_a_taint_that_races_a_flip_never_leaves_it_visible(ledger: Ledger, other: Ledger) -> None:
    writer = await Writer.of(ledger)
    admissions = await ledger.admit([validated(f"a{i}", at_s=1) for i in range(ROUNDS)], epoch=writer.epoch)
    seen = set()
    for round_, admission in enumerate(admissions):
        artifact = admission.event.key

        async def flip(item: Admission = admission, after_s: float = round_ // 2 % 8 * 0.001) -> FlipVerdict:
            if after_s:  # On PostgreSQL it is the shorter of the two and would always be first, on SQLite never.
                await asyncio.sleep(after_s)
            return await writer.flip(item)

        async def taint(name: str = artifact.artifact_id) -> TaintReceipt:
            return await other.taint(tainted(name, at_s=10), skew_s=0)

        if round_ % 2:
            verdict, receipt = await asyncio.gather(flip(), taint())
        else:
            receipt, verdict = await asyncio.gather(taint(), flip())
        assert await ledger.still_live(refs_of(admission.generation), LAPTOP) == frozenset()
        # Each order is possible, and the two transactions agree on which it was.
        assert (verdict, receipt.fallen) in ((FlipVerdict.LIVE, (artifact,)), (FlipVerdict.GARBAGE, ()))
        seen.add(verdict)
    assert seen == {FlipVerdict.LIVE, FlipVerdict.GARBAGE}
    assert (await ledger.counts()).live_artifacts == 0


async def test_a_taint_without_tenant_that_races_a_new_tenant_never_shows_it(ledger: Ledger, other: Ledger) -> None:
    writer = await Writer.of(ledger)

    async def publish(artifact: ArtifactKey):
        admission = await writer.admit(validated(artifact, at_s=1))
        if admission.verdict is not Verdict.EMBED:
            return None
        await writer.flip(admission)
        return admission.generation

    for round_ in range(ROUNDS // 2):
        artifact = key(f"a{round_}", f"t{round_}")

        async def taint(name: str = artifact.artifact_id, delay: int = round_ % 5):
            for _ in range(delay * 3):  # let the writer come as far as it may, further each time
                await asyncio.sleep(0)
            return await other.taint(tainted(name, at_s=10, tenant_id=None), skew_s=0)

        generation, _ = await asyncio.gather(publish(artifact), taint())
        if generation is not None:
            assert await live_of(other, refs_of(generation)) == frozenset()


@pytest.mark.parametrize("tenant_id", ["t", None])
async def test_a_version_without_a_time_that_races_a_taint_without_one_is_never_left_visible(
    ledger: Ledger, other: Ledger, tenant_id: str | None
) -> None:
    # Received before the taint it is covered, after it it waits for an operator; in between there is nothing.
    writer = await Writer.of(ledger)
    verdicts = set()
    for round_ in range(ROUNDS):
        event = validated(key(f"a{round_}", "t"))

        async def publish(event: Validated = event) -> Verdict | FlipVerdict:
            admission = await writer.admit(event)
            return await writer.flip(admission) if admission.verdict is Verdict.EMBED else admission.verdict

        async def taint(name: str = event.key.artifact_id, delay: int = round_ % 8) -> None:
            for _ in range(delay * 3):
                await asyncio.sleep(0)
            await other.taint(tainted(name, tenant_id=tenant_id), skew_s=0)

        tainting = asyncio.create_task(taint())
        if round_ % 8 == 0:  # it has a head start: on a busy machine it might never be first otherwise
            await asyncio.sleep(0)
        verdict = await publish()
        await tainting
        verdicts.add(verdict)
        assert (await ledger.counts()).live_artifacts == 0, (round_, verdict)
    assert len(verdicts) > 1, "they never met in different orders"


async def test_the_guard_honours_a_taint_that_missed_a_row_in_the_making(ledger: Ledger, ledger_url: str) -> None:
    # What a race can leave: the taint listed the tenants before this one's row was committed, and committed after it
    # had gone live.
    writer = await Writer.of(ledger)
    covered = refs_of(await writer.publish(validated(key("a", "t"), at_s=1)))
    beyond = refs_of(await writer.publish(validated(key("a", "u"), at_s=11)))
    bounds = {"id": "a", "through": await _bound(ledger)}
    async with open_database(ledger_url) as database, database.writing() as connection:
        await connection.execute(text("INSERT INTO rag_wildcards VALUES (:id, :through, :through, :through)"), bounds)
    assert await live_of(ledger, covered + beyond) == frozenset(beyond)
    assert await text_of(ledger, covered, tenant_id="t") is None
    assert await text_of(ledger, beyond, tenant_id="u") == "one content"


async def _bound(ledger: Ledger) -> int:
    """The ORD up to which a taint at ten seconds after noon reaches."""
    return (await ledger.taint(tainted("elsewhere", at_s=10), skew_s=0)).through


# ------------------------------------------------------------------------------------------------------------ deadlocks


async def test_taints_that_overlap_in_any_order_never_wait_for_each_other(ledger: Ledger, other: Ledger) -> None:
    writer = await Writer.of(ledger)
    ids = [f"{letter}{i}" for i in range(10) for letter in "aB"]
    for round_ in range(12):
        batch = [validated(key(name, tenant), f"{round_}", at_s=round_) for tenant in ("t", "U") for name in ids]
        await asyncio.gather(
            ledger.taint(tainted(*ids, at_s=round_, tenant_id="t"), skew_s=0),
            other.taint(tainted(*reversed(ids), at_s=round_, tenant_id="t"), skew_s=0),
            other.taint(tainted(*ids, at_s=round_, tenant_id=None), skew_s=0),
            ledger.taint(tainted(*reversed(ids), at_s=round_, tenant_id=None), skew_s=0),
            ledger.admit(batch, epoch=writer.epoch),
            ledger.admit(batch[::-1], epoch=writer.epoch),
        )
    assert (await ledger.counts()).live_artifacts == 0


async def test_a_taint_of_many_ids_and_a_batch_across_tenants_never_wait_for_each_other(
    ledger: Ledger, other: Ledger
) -> None:
    # More ids than one statement takes: a taint that went on tenant by tenant within each part of the ids would lock
    # (t2, first) before (t1, last), a batch the other way round.
    writer = await Writer.of(ledger)
    ids = [f"a{i:04}" for i in range(600)]
    crossed = [key("a0000", "t2"), key("a0599", "t1")]
    for round_ in range(6):
        events = [validated(artifact, f"{round_}", at_s=100 + round_) for artifact in crossed]
        await asyncio.gather(
            other.taint(tainted(*ids, at_s=round_, tenant_id=None), skew_s=0),
            *(ledger.admit(events, epoch=writer.epoch) for _ in range(4)),
        )


# --------------------------------------------------------------------------------------------------- relays and writers


async def test_two_relays_lose_nothing_and_send_nothing_twice(ledger: Ledger, other: Ledger) -> None:
    expected = {f"e{i}" for i in range(60)}
    for event_id in sorted(expected):
        await ledger.announce({"id": event_id, "type": "embedding.failed", "data": {}})
    inbox = Inbox()

    async def drain(which: Ledger) -> int:
        sent = 0
        while found := await which.relay(inbox, limit=7):
            assert found <= 7
            sent += found
        return sent

    totals = await asyncio.gather(drain(ledger), drain(other), drain(ledger), drain(other))
    assert sum(totals) == 60
    assert {event_id for _, _, event_id in inbox.events} == expected
    assert len(inbox.events) == 60


async def test_two_writers_that_keep_taking_over_leave_one_live_generation_each(
    ledger: Ledger, other: Ledger, ledger_url: str
) -> None:
    ticks = itertools.count(1)
    allocated: list[int] = []
    newest: dict[str, int] = {}
    refs = {}

    async def write(through: Ledger, name: str) -> None:
        for _ in range(8):
            writer = await Writer.of(through, name)
            for _ in range(4):
                tick = next(ticks)
                artifact_id = f"a{tick % 3}"
                try:
                    admission = await writer.admit(validated(artifact_id, f"content {tick}", at_s=tick))
                    if admission.generation is None:
                        continue
                    allocated.append(admission.generation.number)
                    verdict = await writer.flip(admission)
                except Fenced:
                    break
                if verdict is FlipVerdict.LIVE and tick > newest.get(artifact_id, 0):
                    newest[artifact_id] = tick
                    refs[artifact_id] = refs_of(admission.generation)

    await asyncio.gather(write(ledger, "one"), write(other, "two"))
    assert len(set(allocated)) == len(allocated)
    assert (await ledger.counts()).live_artifacts == len(newest) == 3
    live = await ledger.still_live([ref for group in refs.values() for ref in group], LAPTOP)
    assert live == frozenset(ref for group in refs.values() for ref in group)
    # The last to take over finds nothing of the others pending.
    final = await Writer.of(ledger, "last")
    assert await ledger.kept([key(name) for name in newest]) == {
        key(name): {group[0].generation} for name, group in refs.items()
    }
    generation = await final.publish(validated("a0", "last", at_s=next(ticks)))
    assert await version_of(ledger, refs_of(generation)[0]) > newest["a0"]


async def test_one_bare_event_handled_twice_at_once_has_one_place(ledger: Ledger, other: Ledger) -> None:
    writer = await Writer.of(ledger)
    for round_ in range(20):
        event = validated(f"a{round_}")
        both = await asyncio.gather(ledger.admit([event], epoch=writer.epoch), other.admit([event], epoch=writer.epoch))
        assert both[0][0].place == both[1][0].place


async def test_one_bare_taint_handled_twice_at_once_has_one_place(ledger: Ledger, other: Ledger) -> None:
    for round_ in range(20):
        taint = tainted("a", event_id=f"e{round_}")
        first, second = await asyncio.gather(ledger.taint(taint, skew_s=0), other.taint(taint, skew_s=0))
        assert first.through == second.through


# --------------------------------------------------------------------------------------------------------- availability


async def test_a_taint_does_not_wait_for_a_long_read(ledger: Ledger, ledger_url: str) -> None:
    writer = await Writer.of(ledger)
    refs = refs_of(await writer.publish(validated(at_s=1)))
    async with open_database(ledger_url) as database, database.reading() as connection:
        await connection.execute(text("SELECT count(*) FROM rag_artifacts"))
        async with asyncio.timeout(5):
            await ledger.taint(tainted("a", at_s=10), skew_s=0)
        assert await ledger.still_live(refs, LAPTOP) == frozenset()


async def test_a_rebuild_in_progress_holds_nothing(ledger: Ledger, other: Ledger) -> None:
    writer = await Writer.of(ledger)
    await writer.publish(validated("a", at_s=1))
    await writer.publish(validated("b", at_s=1))
    rebuild = other.live_chunks()
    await anext(rebuild)
    async with asyncio.timeout(5):
        await ledger.taint(tainted("b", at_s=10), skew_s=0)
    await rebuild.aclose()


async def test_sqlite_locked_by_another_process_is_unavailable_in_time_and_still_readable(tmp_path) -> None:
    path = tmp_path / "ledger.db"
    async with open_ledger(f"sqlite:///{path}", timeout_s=0.5) as ledger:
        refs = refs_of(await (await Writer.of(ledger)).publish(validated(at_s=1)))
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        started = time.monotonic()
        with pytest.raises(LedgerUnavailable):
            await ledger.taint(tainted("a", at_s=10), skew_s=0)
        assert time.monotonic() - started < 5
        assert await ledger.still_live(refs, LAPTOP) == frozenset(refs)
        holder.execute("ROLLBACK")
        holder.close()
        await ledger.taint(tainted("a", at_s=10), skew_s=0)
        assert await ledger.still_live(refs, LAPTOP) == frozenset()


class Link:
    """A TCP hop to a server that a test may freeze or cut."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Link]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            self.cut()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def freeze(self) -> None:
        """Connections stay open and nothing passes."""
        self._flowing.clear()

    def thaw(self) -> None:
        self._flowing.set()

    def cut(self) -> None:
        """Every connection ends; new ones are taken."""
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        self._writers |= {writer, far_writer}
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            self._tasks.add(asyncio.create_task(self._pump(source, sink), name="link pump"))

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                await self._flowing.wait()
                sink.write(data)
        except ConnectionError:
            pass
        finally:
            sink.close()


@asynccontextmanager
async def linked(url: str, *, timeout_s: float) -> AsyncIterator[tuple[Ledger, Link]]:
    address = urlsplit(url)
    async with Link(address.hostname or "127.0.0.1", address.port or 5432).open() as link:
        user = f"{address.netloc.rsplit('@', 1)[0]}@" if "@" in address.netloc else ""
        through = address._replace(netloc=f"{user}127.0.0.1:{link.port}").geturl()
        async with open_ledger(through, timeout_s=timeout_s) as ledger:
            yield ledger, link


@pytest.mark.postgres
async def test_a_server_that_hangs_is_unavailable_in_time_and_served_again_when_it_is_back(postgres_url: str) -> None:
    async with linked(postgres_url, timeout_s=1.0) as (ledger, link):
        refs = refs_of(await (await Writer.of(ledger)).publish(validated(at_s=1)))
        link.freeze()
        for call in (ledger.still_live(refs, LAPTOP), ledger.taint(tainted("a", at_s=10), skew_s=0), ledger.ping()):
            started = time.monotonic()
            with pytest.raises(LedgerUnavailable):
                await call
            assert time.monotonic() - started < 6
        link.thaw()
        link.cut()
        assert await ledger.still_live(refs, LAPTOP) == frozenset(refs)


@pytest.mark.postgres
async def test_lost_connections_are_replaced_without_an_error(postgres_url: str) -> None:
    async with linked(postgres_url, timeout_s=5.0) as (ledger, link):
        await ledger.ping()
        link.cut()
        await ledger.ping()


@pytest.mark.postgres
async def test_sessions_that_the_server_ends_are_replaced_without_an_error(postgres_url: str) -> None:
    async with open_database(postgres_url, timeout_s=5.0) as database:
        ledger = SqlLedger(database)
        for attempt in range(40):
            async with database.reading() as connection:
                session = (await connection.exec_driver_sql("SELECT pg_backend_pid()")).scalar_one()
            other = await asyncpg.connect(postgres_url.replace("+asyncpg", ""))
            await other.execute("SELECT pg_terminate_backend($1)", session)
            await other.close()
            # The driver reads the server's last words at once, or only while it is asked the next thing.
            await asyncio.sleep(attempt % 4 * 0.0005)
            await ledger.ping()


@pytest.mark.postgres
async def test_a_transaction_that_was_left_open_is_nobody_s_any_more(postgres_url: str) -> None:
    async with open_database(postgres_url, timeout_s=5.0) as database:
        async with database.engine.connect() as connection:
            driver = (await connection.get_raw_connection()).driver_connection
            assert driver is not None
            await driver.execute("BEGIN")
        await SqlLedger(database).ping()


@pytest.mark.postgres
async def test_the_server_itself_ends_what_hangs_in_a_transaction(postgres_url: str) -> None:
    async with open_database(postgres_url, timeout_s=2.5) as database, database.reading() as connection:
        for setting in ("statement_timeout", "idle_in_transaction_session_timeout"):
            assert (await connection.exec_driver_sql(f"SHOW {setting}")).scalar_one() == "2500ms"
