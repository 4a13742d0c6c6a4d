"""A writer as it is put together for production, while what it needs is away, or is another fleet's."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from index_engine import point
from rig import Encoder, Rig, eventually
from structlog.testing import capture_logs

from dats_common.adapters.memory_bus import MemoryBus
from dats_common.adapters.memory_indexer import MemoryIndexer
from dats_common.contracts.topology import DEAD_LETTERS_QUEUE
from dats_common.errors import BrokerUnavailable, EncoderUnavailable
from dats_common.settings import Settings
from dats_common.settings.sections import Embedding, Events
from services.writer.__main__ import consume
from services.writer.ports import WriterPorts
from services.writer.progress import Progress
from services.writer.wiring import Lanes, build_writer
from services.writer.writer import Writer


def ports_of(rig: Rig, *, encoder: Encoder | None = None, bus: MemoryBus | None = None) -> WriterPorts:
    return WriterPorts(
        ledger=rig.ledger,
        evidence=rig.evidence,
        encoder=encoder or rig.encoder,
        index=rig.index,
        bus=bus or rig.bus,
    )


def writer_over(ports: WriterPorts, **sections: Any) -> Writer:
    return build_writer(
        Settings(embedding=Embedding(retry_attempts=0, linger_ms=1), **sections),
        ports,
        indexer=Lanes([MemoryIndexer(encoder=ports.encoder, index=ports.index, ledger=ports.ledger)]),
        progress=Progress(),
        writer_id="writer",
    )


class RemoteEncoder(Encoder):
    """On another server, which is away until it is asked for documents' vectors for the third time."""

    asked = 0

    async def encode(self, texts: Sequence[str], *, kind: Literal["query", "document"]) -> Any:
        self.asked += kind == "document"
        if self.asked < 3:
            raise EncoderUnavailable("the encoder's server does not answer")
        return await super().encode(texts, kind=kind)


async def test_while_the_encoders_server_is_away_no_event_is_to_blame(rig: Rig) -> None:
    encoder = RemoteEncoder()
    writer = writer_over(ports_of(rig, encoder=encoder))
    rig.validated("a", "what a says")
    stop = asyncio.Event()
    working = asyncio.create_task(writer.work(until=stop, drain_s=5), name="writer")
    try:
        await rig.all_live("a")
    finally:
        stop.set()
        await working
    assert encoder.asked == 3
    assert rig.bus.queue(DEAD_LETTERS_QUEUE) == []


async def test_a_heartbeat_that_loses_its_cancellation_does_not_keep_the_writer(rig: Rig) -> None:
    class Forgetful(MemoryBus):
        """As a broker's library whose channel is just being closed: it reports that, not the cancellation."""

        asked = asyncio.Event()
        lost = False

        async def depth(self, queue: str) -> int:
            if self.lost:
                return 0
            self.asked.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.lost = True
            raise BrokerUnavailable("the channel was closed")

    bus = Forgetful()
    writer = writer_over(ports_of(rig, bus=bus))
    stop = asyncio.Event()
    working = asyncio.create_task(writer.work(until=stop, drain_s=5), name="writer")
    async with asyncio.timeout(30):
        await bus.asked.wait()
        stop.set()
        await working
    assert bus.lost


async def test_a_start_that_loses_its_cancellation_ends_all_the_same(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.writer.__main__.spare_the_collector", lambda: None)  # it is for a whole process
    opening = asyncio.Event()
    lost = False

    @asynccontextmanager
    async def forgetful_ports() -> AsyncIterator[WriterPorts]:
        nonlocal lost
        opening.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            lost = True
        yield ports_of(rig)

    writing = asyncio.create_task(consume(Settings(data_dir=tmp_path), forgetful_ports()), name="writer")
    async with asyncio.timeout(60):
        await opening.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await writing
    assert lost


async def test_a_writer_led_to_another_fleets_index_says_so_and_leaves_it(rig: Rig) -> None:
    writer = writer_over(ports_of(rig), events=Events(sweep_interval_s=0.01))
    theirs = point("of-another-fleet", generation=77, dense=(await rig.encoder.encode(["theirs"], kind="document"))[0])
    await rig.index.store([theirs])
    with capture_logs() as logged:
        sweeping = asyncio.create_task(writer.sweep_periodically(), name="sweep")

        async def said_again() -> bool:
            return [line["event"] for line in logged].count("unknown_points_left") > 1

        await eventually(said_again)
        sweeping.cancel()
        await asyncio.wait([sweeping])
    line = next(line for line in logged if line["event"] == "unknown_points_left")
    assert (line["log_level"], line["count"]) == ("error", 1)
    for word in ("QDRANT_HOST", "DATS_SQL_URL", "dats-rag sweep"):
        assert word in line["detail"]
    assert await rig.index.generations([theirs.ref.key]) == {theirs.ref.key: {77}}
