"""What /health says of the writers, over their lives and deaths, and of the encoder."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import httpx
from rig import Model, Rig, eventually

from dats_common.adapters.memory_encoder import MemoryEncoder
from dats_common.adapters.sql.evidence import open_evidence
from dats_common.adapters.sql.ledger import open_ledger
from dats_common.adapters.sql.owners import open_owners
from dats_common.adapters.support.words import WordScorer
from dats_common.errors import EncoderUnavailable
from dats_common.fingerprint import fingerprint
from dats_common.maintenance.sweep import Sweeper
from dats_common.records import Heartbeat
from dats_common.telemetry.writer_metrics import WriterMetrics
from services.query import health as health_module
from services.query.services import QueryServices
from services.writer.leadership import Leadership
from services.writer.progress import Progress
from services.writer.writer import Writer

START = 1_767_268_800_000_000


async def state(client: httpx.AsyncClient) -> tuple[str, str]:
    health = (await client.get("/api/v1/health")).json()
    return health["status"], health["components"]["writer"]["detail"]


async def test_a_killed_writer_hides_neither_its_absence_nor_its_successor(tmp_path: Path) -> None:
    now = START

    def beat(writer_id: str, state: Literal["active", "standby", "draining"]) -> Heartbeat:
        return Heartbeat(writer_id, state, pending=2, processing=1, model="m", backend="b")

    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    async with (
        open_ledger(url, clock=lambda: now) as ledger,
        open_evidence(url) as evidence,
        open_owners(url) as owners,
    ):
        rig = Rig(ledger, evidence, owners)
        await rig.index.prepare(await fingerprint(rig.encoder))
        async with rig.replica() as client:
            assert (await state(client))[0] == "degraded"

            await ledger.beat(beat("first", "active"))
            await ledger.beat(replace(beat("second", "standby"), processing=0))
            assert await state(client) == ("healthy", "")
            queue = (await client.get("/api/v1/health")).json()["embedding_queue"]
            assert queue["processing"] == 1, "the active writer speaks for the queue"

            now += 60_000_000  # both were killed
            status, detail = await state(client)
            assert status == "degraded"
            assert "60 s ago" in detail

            await ledger.beat(beat("third", "standby"))  # nothing to do yet, so it has never been active
            assert await state(client) == ("healthy", "")

            await ledger.beat(beat("third", "draining"))
            assert (await state(client))[0] == "degraded"


def writer_of(rig: Rig, leadership: Leadership) -> Writer:
    return Writer(
        writer_id="writer",
        consumer=rig.consumer(leadership),
        leadership=leadership,
        relay=rig.relay,
        sweeper=Sweeper(ledger=rig.ledger, index=rig.index),
        evidence=rig.evidence,
        ledger=rig.ledger,
        index=rig.index,
        bus=rig.bus,
        encoder=rig.encoder,
        metrics=WriterMetrics(),
        progress=Progress(),
        sweep_interval_s=60.0,
        answers_kept_s=86_400.0,
    )


async def test_a_writer_that_was_displaced_while_it_hung_says_so_at_its_next_beat(rig: Rig) -> None:
    leadership = Leadership(rig.ledger, "writer")
    await leadership.epoch(received_s=asyncio.get_running_loop().time())
    await rig.ledger.activate("another")
    beating = asyncio.create_task(writer_of(rig, leadership).beat(), name="beat")

    async def heard() -> bool:
        return await rig.ledger.heartbeat() is not None

    await eventually(heard)
    beating.cancel()
    shown = await rig.ledger.heartbeat()
    assert shown is not None
    assert shown.state == "standby"
    assert not leadership.is_active


async def test_without_the_encoder_no_query_is_answered_and_health_says_so(rig: Rig) -> None:
    class Away(MemoryEncoder):
        async def encode(self, texts: Sequence[str], *, kind: Literal["query", "document"]) -> Any:
            raise EncoderUnavailable("the embedding server did not answer in time")

    await rig.index.prepare(await fingerprint(rig.encoder))
    rig.encoder = Away()  # type: ignore[assignment]
    async with rig.replica() as client:
        health = (await client.get("/api/v1/health")).json()
        ready = await client.get("/api/v1/health/ready")
    assert (health["status"], health["rag_ok"]) == ("unhealthy", False)
    assert health["components"]["encoder"] == {"status": "unavailable", "detail": health["rag_details"]}
    assert (ready.status_code, ready.json()["detail"]) == (503, "away: encoder")


async def test_a_writer_is_heard_while_the_broker_is_away(rig: Rig) -> None:
    writer = writer_of(rig, Leadership(rig.ledger, "writer"))
    rig.bus.switch.away = True
    beating = asyncio.create_task(writer.beat(), name="beat")
    async with rig.replica() as client:

        async def heard() -> bool:
            return await rig.ledger.heartbeat() is not None

        await eventually(heard)
        components = (await client.get("/api/v1/health")).json()["components"]
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)
    assert components["broker"]["status"] == "unavailable"
    assert components["writer"] == {"status": "ok", "detail": ""}


async def test_a_model_server_that_hangs_takes_a_second_of_healths_time_and_search_goes_on(rig: Rig) -> None:
    class Hangs(Model):
        async def ping(self) -> None:
            await asyncio.Event().wait()

    await rig.index.prepare(await fingerprint(rig.encoder))
    async with rig.replica(generator=Hangs()) as client:
        # Every other look may take an hour: only a bound of its own ends this one.
        with mock.patch.dict(health_module.look.__kwdefaults__, within_s=3600.0):
            health = (await asyncio.wait_for(client.get("/api/v1/health"), 60)).json()
    assert health["ollama"] == {"healthy": False, "model": "llama3.2", "latency_ms": None}
    assert health["rag_ok"]


async def test_all_that_health_names_is_asked_at_the_same_time(rig: Rig) -> None:
    together = asyncio.Barrier(3)

    class Encodes(MemoryEncoder):
        async def encode(self, texts: Sequence[str], *, kind: Literal["query", "document"]) -> Any:
            await together.wait()
            return await super().encode(texts, kind=kind)

    class Writes(Model):
        async def ping(self) -> None:
            await together.wait()

    class Scores(WordScorer):
        async def ping(self) -> None:
            await together.wait()

    await rig.index.prepare(await fingerprint(rig.encoder))
    rig.encoder = Encodes()  # type: ignore[assignment]
    async with rig.replica(generator=Writes()) as client:
        services: QueryServices = client._transport.app.state.services  # type: ignore[attr-defined]
        services.answers.scorer = Scores()
        health = (await client.get("/api/v1/health")).json()
    assert health["ollama"]["healthy"]
    assert [health["components"][name]["status"] for name in ("encoder", "words")] == ["ok", "ok"]
