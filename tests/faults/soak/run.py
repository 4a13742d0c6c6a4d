"""The load: events, taints, queries and embeds over HTTP, against a fleet of real processes, sampled all the while."""

from __future__ import annotations

import asyncio
import itertools
import random
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from fleet import CONFIGURATION, Fleet, Producer, create_database, producer, purge
from servers import PostgresServer, RabbitServer

from tests.faults.chaos.load import running
from tests.faults.soak.figures import Sample
from tests.faults.soak.probe import look_at, look_at_servers, rows

ARTIFACTS = 240
"""Their versions replace each other, so that the index does not grow by itself."""

SKEW_S = 5.0
SAMPLE_EVERY_S = 5.0

EVENT_PAUSE_S = 0.4
EMBED_PAUSE_S = 2.0
TAINT_PAUSE_S = 1.5
QUERY_PAUSE_S = 0.15
READERS = 2

SETTINGS = CONFIGURATION.replace("events:", f"events:\n  skew_s: {SKEW_S}")


@dataclass
class Soaked:
    """What a run saw."""

    samples: list[Sample] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    rows: Mapping[str, int] = field(default_factory=dict)


async def soak(
    *, rabbitmq: RabbitServer, postgres: PostgresServer, duration_s: float, say: Callable[[str], None]
) -> Soaked:
    """Load and sample for so long."""
    with tempfile.TemporaryDirectory(prefix="dats-soak-") as base:
        await purge(rabbitmq.url)
        sql_url = await create_database(postgres.url)
        fleet = Fleet(Path(base), sql_url=sql_url, amqp_url=rabbitmq.url)
        (fleet.base / "rag-service.yaml").write_text(SETTINGS)
        try:
            await asyncio.to_thread(fleet.start)
            say("the fleet is up")
            soaked = Soaked()
            await _load(fleet, soaked, duration_s=duration_s, say=say)
            async with fleet.ledger() as ledger:
                soaked.rows = await rows(ledger)
            await asyncio.to_thread(fleet.stop)
        finally:
            fleet.end()
    return soaked


async def _load(fleet: Fleet, soaked: Soaked, *, duration_s: float, say: Callable[[str], None]) -> None:
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(replica.client()) for replica in fleet.replicas]
        team = await stack.enter_async_context(producer(fleet.amqp_url))
        load = _Load(team, clients, soaked.done)
        readers = [load.query(number) for number in range(READERS)]
        async with running(load.publish(), load.embed(), load.taint(), *readers):
            said = began
            for tick in itertools.count(1):
                await asyncio.sleep(max(0.0, began + tick * SAMPLE_EVERY_S - time.monotonic()))
                at_s = time.monotonic() - began
                soaked.samples += await _sample(fleet, at_s)
                if at_s >= duration_s:
                    return
                if time.monotonic() - said >= 60:
                    said = time.monotonic()
                    say(f"{at_s:.0f} of {duration_s:.0f} s: {dict(soaked.done)}")


async def _sample(fleet: Fleet, at_s: float) -> list[Sample]:
    found = [sample for child in fleet.children for sample in look_at(child.log.stem, child.process.pid, at_s=at_s)]
    async with fleet.ledger() as ledger:
        return found + await look_at_servers(ledger, fleet.amqp_url, at_s=at_s)


class _Load:
    """What other teams do all day. What is refused is counted, not hidden."""

    def __init__(self, team: Producer, clients: list[httpx.AsyncClient], done: Counter[str]) -> None:
        self._team = team
        self._clients = clients
        self._done = done
        self._rng = random.Random(1)
        self._numbers = itertools.count()

    async def publish(self) -> None:
        """A new version of one artifact after the other."""
        for number in itertools.count():
            artifact = f"event-{number % ARTIFACTS}"
            await self._team.validated(artifact, self._text(artifact), at=time.time())
            self._done["events"] += 1
            await asyncio.sleep(EVENT_PAUSE_S)

    async def embed(self) -> None:
        for number in itertools.count():
            artifact = f"embed-{number % ARTIFACTS}"
            metadata = {"artifact_id": artifact, "project_id": "soak"}
            await self._count("embeds", self._post("/embed", {"content": self._text(artifact), "metadata": metadata}))
            await asyncio.sleep(EMBED_PAUSE_S)

    async def taint(self) -> None:
        """Over HTTP and over AMQP in turn."""
        for number in itertools.count():
            artifact = f"event-{self._rng.randrange(ARTIFACTS)}"
            if number % 2:
                await self._team.tainted(artifact, at=time.time())
                self._done["taints over AMQP"] += 1
            else:
                await self._count("taints", self._post("/embeddings/batch-invalidate", {"artifact_ids": [artifact]}))
            await asyncio.sleep(TAINT_PAUSE_S)

    async def query(self, reader: int) -> None:
        for number in itertools.count(reader):
            mode = ("vector", "keyword", "hybrid")[number % 3]
            body = {"query": f"ledger report number {number}", "search_mode": mode}
            await self._count("queries", self._post("/query", body))
            await asyncio.sleep(QUERY_PAUSE_S)

    async def _post(self, path: str, body: Mapping[str, object]) -> int:
        client = self._clients[next(self._numbers) % len(self._clients)]
        return (await client.post(f"/api/v1{path}", json=body)).status_code

    async def _count(self, what: str, call: Awaitable[int]) -> None:
        try:
            status = await call
        except httpx.TransportError as error:
            self._done[f"{what}: {type(error).__name__}"] += 1
        else:
            self._done[what if status < 300 else f"{what}: {status}"] += 1

    def _text(self, artifact: str) -> str:
        return f"The ledger report {artifact}, number {next(self._numbers)}, lists invoices, approvals and payments."
