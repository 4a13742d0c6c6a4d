"""Canaries on replicas within one event loop: what is found, what is told, and that nothing of them stays."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from rig import LEDGER_AWAY, Rig, open_rig
from unguarded import LetsAllThrough, RemembersCandidates

from dats_common.adapters.memory_bus import MemoryBus
from dats_common.clients.rag import RAGClient, RAGForbidden
from dats_common.domain.access import Caller
from dats_common.errors import Unavailable
from services.query.identity import Headers
from services.verify.canary import RESERVED, CanaryRun, Pace, Replica, open_canaries
from services.verify.metrics import VerifyMetrics
from services.verify.stores import examine_stores
from services.verify.verdict import ReplicaFigures, judge

PACE = Pace(canaries=2, looks_per_s=100.0, searchable_within_s=5.0, looks_within_s=2.0)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with open_rig(tmp_path) as rig:
        yield rig


def asking(name: str, http: httpx.AsyncClient) -> Replica:
    return Replica(name, RAGClient("http://replica/api/v1", timeout=5.0, transport=http._transport))


@asynccontextmanager
async def canaries_on(*replicas: Replica, pace: Pace = PACE, tenant_id: str | None = None) -> AsyncIterator[CanaryRun]:
    async with open_canaries(replicas, pace=pace, tenant_id=tenant_id, clock=time.monotonic) as run:
        yield run


def unguarded(rig: Rig) -> dict[str, Any]:
    return {"ledger": LetsAllThrough(rig.ledger), "index": RemembersCandidates(rig.index)}


async def visible_canaries(rig: Rig) -> list[str]:
    live = [generation.key.artifact_id async for generation, _ in rig.ledger.live_chunks()]
    return [artifact_id for artifact_id in live if artifact_id.startswith(RESERVED)]


async def test_on_a_fleet_in_order_every_replica_is_well_round_after_round(rig: Rig) -> None:
    async with rig.writer(), rig.replica() as one, rig.replica() as two:
        async with canaries_on(asking("one", one), asking("two", two)) as canaries:
            rounds = [await canaries.round() for _ in range(3)]
        for done in rounds:
            for name in ("one", "two"):
                figures = judge(done, replica=name)
                assert figures.is_well, figures
                assert len(figures.invisible_s) == PACE.canaries
        assert {name for done in rounds for name in done.sent_s} == {*rounds[0].sent_s}  # the same ids again
        assert await visible_canaries(rig) == []


async def test_a_replica_whose_guard_lets_all_through_is_told_by_name(rig: Rig) -> None:
    async with (
        rig.writer(),
        rig.replica() as good,
        rig.replica(**unguarded(rig)) as bad,
        canaries_on(asking("good", good), asking("bad", bad)) as canaries,
    ):
        done = await canaries.round()
    assert judge(done, replica="good").is_well
    assert judge(done, replica="bad").stale_hits > 0


async def test_a_replica_that_answers_nothing_is_not_called_well(rig: Rig) -> None:
    async with rig.writer(), rig.replica() as good, rig.replica(ledger=LEDGER_AWAY) as away:
        pace = Pace(canaries=1, looks_per_s=100.0, searchable_within_s=1.0, looks_within_s=0.5)
        quick = Replica("away", RAGClient("http://replica/api/v1", timeout=0.2, transport=away._transport))
        async with canaries_on(asking("good", good), quick, pace=pace) as canaries:
            done = await canaries.round()
    figures = judge(done, replica="away")
    assert (figures.unproven, figures.stale_hits, figures.is_well) == (1, 0, False)
    assert figures.unanswered > 0


async def test_real_queries_never_see_a_canary(rig: Rig) -> None:
    async with rig.writer(), rig.replica() as http:
        async with canaries_on(asking("one", http)) as canaries:
            await canaries._write(0)
            [*ids] = await visible_canaries(rig)
            assert len(ids) == PACE.canaries
            for who in ({}, {"user_id": "ada"}, {"project_id": RESERVED}, {"user_tags": ["public"]}):
                body = {"query": "a canary that the verification of this fleet writes", "top_k": 100, **who}
                answer = await http.post("/api/v1/query", json=body)
                assert answer.json()["sources"] == [], who
        assert await visible_canaries(rig) == []


async def test_an_interrupted_run_leaves_nothing_visible(rig: Rig) -> None:
    async with rig.writer(), rig.replica() as http:
        rig.encoder.documents.hold()

        async def interrupted() -> None:
            async with canaries_on(asking("one", http)) as canaries:
                await canaries.round()

        running = asyncio.create_task(interrupted())
        await asyncio.wait_for(rig.encoder.documents.reached.wait(), 10)  # its canaries are with the writer
        running.cancel()
        await asyncio.sleep(0)
        rig.encoder.documents.open.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        await rig.settled()
        assert await visible_canaries(rig) == []


async def test_canaries_that_nobody_withdraws_are_told(rig: Rig) -> None:
    async with rig.writer(), rig.replica() as http:

        async def left_alone() -> None:
            async with canaries_on(asking("one", http)) as canaries:
                await canaries._write(0)
                canaries._replicas = [Replica("gone", RAGClient("http://127.0.0.1:1/api/v1", timeout=0.2))]

        with pytest.raises(Unavailable, match=RESERVED):
            await left_alone()


async def test_the_stores_are_examined_and_exported(rig: Rig) -> None:
    bus = MemoryBus()
    rig.validated("a", "a document that is live")
    async with rig.writer():
        await rig.all_live("a")
        await rig.settled()
    [ref] = [ref async for page in rig.index.scan_chunks() for ref in page]
    figures = await examine_stores(ledger=rig.ledger, index=rig.index, bus=bus, grace_s=0.0)  # type: ignore[arg-type]
    assert figures.is_well
    assert (figures.live_chunks, figures.points) == (1, 1)
    await rig.index.remove(ref.key, [ref.generation])
    figures = await examine_stores(ledger=rig.ledger, index=rig.index, bus=bus, grace_s=0.0)  # type: ignore[arg-type]
    assert (figures.missing_points, figures.is_well) == (1, False)

    metrics = VerifyMetrics(["one"])
    replica = ReplicaFigures("one", looks=5, stale_hits=2, invisible_s=(0.01,))
    metrics.add([replica], figures, well=False)
    value = metrics.registry.get_sample_value
    assert value("rag_verify_stale_hits_total", {"replica": "one"}) == 2
    assert value("rag_verify_missing_points") == 1
    assert value("rag_verify_rounds_total", {"result": "not_well"}) == 1
    assert value("rag_verify_taint_to_invisible_seconds_count", {"replica": "one"}) == 1


async def test_orphans_that_a_sweep_removes_in_time_are_no_trouble(rig: Rig) -> None:
    rig.validated("a", "a document that is live")
    async with rig.writer():
        await rig.all_live("a")
    [generation] = [generation async for generation, _ in rig.ledger.live_chunks()]
    [point] = rig.index.stored[0]
    orphan = type(point)(type(point.ref)(generation.key, 999, 0), point.metadata, point.dense, point.sparse)
    await rig.index.store([orphan])

    async def examined(grace_s: float) -> int:
        found = await examine_stores(ledger=rig.ledger, index=rig.index, bus=rig.bus, grace_s=grace_s)  # type: ignore[arg-type]
        return found.orphaned_points

    assert await examined(0.0) == 1
    waiting = asyncio.create_task(examined(0.5))
    await rig.index.remove(generation.key, [999])
    assert await waiting == 0


class Always:
    """Everybody who calls is this caller."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def identify(self, headers: Headers) -> Caller | None:
        return self._caller


def as_(caller: Caller) -> dict[str, Any]:
    return {"authenticator": lambda _: Always(caller)}


async def test_a_reader_that_may_ingest_verifies_in_the_reserved_tenant_and_no_service_of_another_sees_it(
    rig: Rig,
) -> None:
    verifier = Caller("key:v", (RESERVED,), frozenset({"reader", "ingest"}), user_id=RESERVED, tags=frozenset())
    worker = Caller("key:w", ("default",), frozenset({"service", "ingest"}))
    neighbour = Caller("key:n", (RESERVED,), frozenset({"reader"}), user_id="ada")
    async with (
        rig.writer(),
        rig.replica(**as_(verifier)) as own,
        rig.replica(**as_(worker)) as real,
        rig.replica(**as_(neighbour)) as beside,
        canaries_on(asking("one", own)) as canaries,
    ):
        assert judge(await canaries.round(), replica="one").is_well
        await canaries._write(1)
        assert len(await visible_canaries(rig)) == PACE.canaries
        asked = {"query": "a canary that the verification of this fleet writes", "top_k": 100}
        for http, who in ((real, {}), (real, {"user_id": RESERVED}), (beside, {})):
            answer = await http.post("/api/v1/query", json={**asked, **who})
            assert answer.json()["sources"] == []


async def test_without_the_role_it_says_so_and_leaves_nothing(rig: Rig) -> None:
    reader = Caller("key:r", (RESERVED,), frozenset({"reader"}), user_id=RESERVED)

    async def verified() -> None:
        async with canaries_on(asking("one", http)) as canaries:
            await canaries.round()

    async with rig.writer(), rig.replica(**as_(reader)) as http:
        with pytest.raises(RAGForbidden, match="ingest"):
            await verified()
    assert await visible_canaries(rig) == []
