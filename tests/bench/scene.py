"""The production fleet as processes, and what a benchmark does to it: publish, wait, ask."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from dats_common.clients.rag import RAGClient
from dats_common.contracts.events import rfc3339
from dats_common.contracts.strict_json import parse_object
from dats_common.contracts.topology import ARTIFACT_TAINTED, TASK_VALIDATED
from dats_common.errors import Unavailable
from dats_common.ports import Bus, Encoder
from dats_common.records import Delivery
from dats_common.settings import Settings, load_settings
from services.backends import open_bus, open_encoder
from services.local import open_fleet
from tests.bench.machine import children, cpu_s, tree
from tests.ledgers import fresh_database
from tests.servers import free_port, open_postgres_server, open_rabbitmq_server

PROJECT = "bench"
SILENCE_S = 180.0  # No event for this long: the fleet is stuck.
PUBLISHED_AT_ONCE = 64
_SETTINGS_OF_OURS = ("DATS_", "RABBITMQ_", "QDRANT_", "RAG_", "LIGHTRAG_", "EMBEDDING_", "OTEL_", "PORT")


@dataclass(frozen=True, slots=True)
class Servers:
    """Where broker and ledger are; empty: embedded.

    Attributes:
        ledger_pid: of a private PostgreSQL, for its CPU time; None where it is not ours or is SQLite.
    """

    name: str = "embedded"
    environment: Mapping[str, str] = field(default_factory=dict)
    ledger_pid: int | None = None


@asynccontextmanager
async def open_servers() -> AsyncIterator[Servers]:
    """A private RabbitMQ and a private PostgreSQL with an empty database, or those that the environment names.

    Raises: ServerMissing.
    """
    with ExitStack() as stack:
        broker = await asyncio.to_thread(stack.enter_context, open_rabbitmq_server())
        before = set(children(os.getpid(), "postgres"))
        postgres = await asyncio.to_thread(stack.enter_context, open_postgres_server())
        started = set(children(os.getpid(), "postgres")) - before
        async with fresh_database(postgres.url) as url:
            yield Servers(
                "RabbitMQ + PostgreSQL",
                {"DATS_RABBITMQ_URL": broker.url, "DATS_SQL_URL": url},
                ledger_pid=next(iter(started), None),
            )


@contextmanager
def scratch_settings(servers: Servers | None = None) -> Iterator[Settings]:
    """Settings with a data directory of their own. The fleet inherits our environment."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="dats-bench-") as directory:
        ours = {"DATS_DATA_DIR": directory, "PORT": str(free_port()), **(servers.environment if servers else {})}
        foreign = [name for name in os.environ if name.startswith(_SETTINGS_OF_OURS)]
        try:
            for name in foreign:
                del os.environ[name]
            os.environ.update(ours)
            yield load_settings(None, os.environ)
        finally:
            os.environ.clear()
            os.environ.update(before)


@dataclass(frozen=True, slots=True)
class Scene:
    """A running fleet and the ways to it."""

    settings: Settings
    client: RAGClient
    bus: Bus
    encoder: Encoder
    processes: Mapping[str, int]
    """Pids by role: writer, query, engine, and ledger where it is a server of ours."""

    def cpu_s(self, *roles: str) -> float:
        """CPU seconds that these roles have used so far."""
        return sum(cpu_s(tree(self.processes[role])) for role in roles if role in self.processes)

    async def publish(self, artifacts: Mapping[str, str], **metadata: Any) -> dict[str, float]:
        """Publish `task.validated` for each artifact id and content, many at once as many producers would.

        Returns when the broker had each, by the performance counter.
        """
        slots = asyncio.Semaphore(PUBLISHED_AT_ONCE)
        published: dict[str, float] = {}

        async def one(artifact_id: str, content: str) -> None:
            async with slots:
                event = validated(artifact_id, content, **metadata)
                published[artifact_id] = time.perf_counter()
                await self.bus.publish(TASK_VALIDATED, event, event_id=event["id"])

        async with asyncio.TaskGroup() as group:
            for artifact_id, content in artifacts.items():
                group.create_task(one(artifact_id, content))
        return published

    async def taint(self, artifact_id: str) -> None:
        """Publish `artifact.tainted` as Cascade does."""
        event = tainted(artifact_id)
        await self.bus.publish(ARTIFACT_TAINTED, event, event_id=str(uuid.uuid4()))

    async def sees(self, artifact_id: str, *, question: str) -> bool:
        """Whether a query that is bounded to the artifact finds it."""
        answer = await self.client.query(question, PROJECT, filters={"artifact_ids": [artifact_id]}, top_k=1)
        return bool(answer.sources)


@asynccontextmanager
async def open_scene(settings: Settings, servers: Servers | None = None) -> AsyncIterator[Scene]:
    """Start the fleet, and an encoder of the writer's kind in this process."""
    # Ours first, while the machine is quiet: the fleet then has its cores to itself while it starts.
    async with open_encoder(settings, for_writer=True) as encoder, open_fleet(settings) as fleet:
        roles = {"writer": "services.writer", "query": "services.query", "engine": "qdrant_edge"}
        processes = {role: children(os.getpid(), module)[0] for role, module in roles.items()}
        if servers is not None and servers.ledger_pid is not None:
            processes["ledger"] = servers.ledger_pid
        async with open_bus(settings, name="bench") as bus, RAGClient(fleet.base_url, timeout=60) as client:
            yield Scene(settings, client, bus, encoder, processes)


async def next_data(events: AsyncIterator[Delivery]) -> dict[str, Any]:
    """The next event's data. Raises: Unavailable: the fleet fell silent."""
    try:
        async with asyncio.timeout(SILENCE_S):
            data: dict[str, Any] = parse_object((await anext(events)).body)["data"]
            return data
    except TimeoutError as error:
        raise Unavailable(f"no event from the fleet for {SILENCE_S:.0f} s") from error


async def completions(events: AsyncIterator[Delivery], artifact_ids: Sequence[str]) -> dict[str, tuple[float, int]]:
    """When each artifact's `embedding.completed` came, by the performance counter, and its chunks."""
    waiting = set(artifact_ids)
    done: dict[str, tuple[float, int]] = {}
    while waiting:
        data = await next_data(events)
        if data["artifact_id"] in waiting:
            waiting.discard(data["artifact_id"])
            done[data["artifact_id"]] = (time.perf_counter(), data["chunks"])
    return done


def validated(artifact_id: str, content: str, **metadata: Any) -> dict[str, Any]:
    """The event that QA would publish."""
    return {
        "id": str(uuid.uuid4()),
        "source": "bench-qa",
        "type": TASK_VALIDATED,
        "time": rfc3339(time.time_ns() // 1000),
        "data": {
            "artifact_id": artifact_id,
            "content": content,
            "metadata": {"project_id": PROJECT, "provenance_id": "bench", "domain": "docs", **metadata},
        },
    }


def tainted(artifact_id: str) -> dict[str, Any]:
    """The event that Cascade would publish."""
    return {"type": ARTIFACT_TAINTED, "data": {"artifact_id": artifact_id, "cascade_id": "bench"}}
