"""What an orchestrator learns of a writer: asked over HTTP, from another thread, as it would."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from servers import free_port

from dats_common.errors import ConfigurationError, LedgerUnavailable
from dats_common.telemetry.metrics import Metrics
from dats_common.telemetry.watch_metrics import WatchMetrics
from services.writer.probes import Probes, Watched
from services.writer.progress import Progress

LIMIT_S = 0.2


class Needs:
    """A ledger and a broker that may be away, or hang."""

    def __init__(self) -> None:
        self.ledger_is_away = False
        self.broker_hangs = False

    async def ledger(self) -> None:
        if self.ledger_is_away:
            raise LedgerUnavailable("db.example.org is away")

    async def broker(self) -> None:
        if self.broker_hangs:
            await asyncio.Event().wait()


@asynccontextmanager
async def probed(progress: Progress, needs: Needs) -> AsyncIterator[tuple[Probes, httpx.AsyncClient]]:
    metrics = Metrics()
    metrics.counter("cups", "Cups of tea", unit="cups").inc()
    port = free_port()
    probes = Probes(asyncio.get_running_loop())
    with probes.served("127.0.0.1", port):
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10, trust_env=False) as client:
            starting = [(await client.get(path)).status_code for path in ("/health/live", "/health/ready", "/metrics")]
            assert starting == [200, 503, 503]
            probes.watched = Watched(progress, LIMIT_S, {"ledger": needs.ledger, "broker": needs.broker}, metrics)
            yield probes, client


async def test_a_writer_at_work_is_live_and_ready_and_shows_its_metrics() -> None:
    async with probed(Progress(), Needs()) as (_, client):
        assert (await client.get("/health/live")).text == "OK\n"
        assert (await client.get("/health/ready")).text == "OK\n"
        assert "cups_total 1.0" in (await client.get("/metrics")).text
        openmetrics = await client.get("/metrics", headers={"Accept": "application/openmetrics-text"})
        assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
        assert (await client.get("/")).status_code == 404


async def test_what_is_away_makes_a_writer_not_ready_and_it_stays_live() -> None:
    needs = Needs()
    async with probed(Progress(), needs) as (_, client):
        needs.ledger_is_away = needs.broker_hangs = True
        ready = await client.get("/health/ready")
        assert (ready.status_code, ready.text) == (503, "away: ledger, broker\n")
        assert (await client.get("/health/live")).status_code == 200


async def test_a_loop_that_hangs_is_not_live() -> None:
    async with probed(Progress(), Needs()) as (_, client):
        url, told = str(client.base_url).rstrip("/"), list[httpx.Response]()

        def ask() -> None:
            told.extend(
                httpx.get(f"{url}/{path}", timeout=10, trust_env=False) for path in ("health/live", "health/ready")
            )

        asking = threading.Thread(target=ask)
        asking.start()
        asking.join(20)  # the loop stands still meanwhile: that is the fault
        assert [(each.status_code, each.text) for each in told] == [
            (503, "the event loop did not turn within 2.0 s\n"),
            (503, "the event loop did not turn\n"),
        ]
        assert (await client.get("/health/live")).status_code == 200


async def test_a_batch_that_hangs_is_not_live_although_the_loop_turns() -> None:
    progress = Progress()
    async with probed(progress, Needs()) as (_, client):
        with progress.working():
            await asyncio.sleep(2 * LIMIT_S)
            live = await client.get("/health/live")
            assert live.status_code == 503
            assert live.text.startswith("a batch has made no progress for")
        assert (await client.get("/health/live")).status_code == 200


async def test_a_connection_that_sends_nothing_is_closed_with_its_thread_and_without_a_word(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async with probed(Progress(), Needs()) as (_, client):
        before = threading.active_count()
        reader, stranger = await asyncio.open_connection(client.base_url.host, client.base_url.port)
        async with asyncio.timeout(20):
            assert await reader.read() == b""
            while threading.active_count() > before:
                await asyncio.sleep(0.05)
        stranger.close()
        assert (await client.get("/health/live")).status_code == 200
    assert capfd.readouterr().err == ""


async def test_a_taken_port_stops_the_start_and_no_port_serves_nothing() -> None:
    probes = Probes(asyncio.get_running_loop())
    with probes.served("127.0.0.1", 0):
        pass
    port = free_port()
    with (
        probes.served("127.0.0.1", port),
        pytest.raises(ConfigurationError, match=f"cannot serve metrics on 127.0.0.1:{port}"),
        Probes(asyncio.get_running_loop()).served("127.0.0.1", port),
    ):
        pass


async def test_a_watch_closes_a_connection_that_sends_nothing_too() -> None:
    port = free_port()
    with WatchMetrics(["here"]).served(port):
        reader, stranger = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        stranger.close()
        async with httpx.AsyncClient(trust_env=False) as client:
            scraped = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
    assert 'rag_verify_stale_hits_total{replica="here"} 0.0' in scraped
