"""A fleet of real processes for tests: the engine, writers and replicas over a broker and a database that exist."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aio_pika
import asyncpg
import httpx
from servers import free_port, wait_until

from dats_common.adapters.qdrant import open_qdrant
from dats_common.adapters.rabbitmq import open_rabbitmq
from dats_common.contracts.routing import RETRY_RUNGS_S, retry_queue
from dats_common.contracts.topology import DEAD_LETTERS_QUEUE, EVENTS_EXCHANGE, PUBLISHED_QUEUE, QUEUES
from dats_common.domain.model import ArtifactKey

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 40.0
DEADLINE_S = 60.0
COLLECTION = "dats_embeddings"

_OURS = ("DATS_", "RABBITMQ_", "QDRANT_", "RAG_", "LIGHTRAG_", "EMBEDDING_", "PORT", "OTEL_")

CONFIGURATION = """\
events:
  sweep_interval_s: 2
  drain_s: 20
  rabbitmq:
    heartbeat_s: 4
embedding:
  threads: 1
"""


async def eventually(
    true: Callable[[], Awaitable[bool]], *, what: str, timeout_s: float = DEADLINE_S, pause_s: float = 0.1
) -> None:
    """Poll until it holds. Raises: TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while not await true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s:.0f} s")
        await asyncio.sleep(pause_s)


def bare_environment(**settings: str) -> dict[str, str]:
    """This process's environment without any setting of ours, then `settings`.

    Nor has it a terminal's size: readline, which pytest loads, leaves one to the processes that it starts.
    """
    left_out = {"COLUMNS", "LINES"}
    return {
        name: value for name, value in os.environ.items() if not name.startswith(_OURS) and name not in left_out
    } | settings


@dataclass
class Child:
    """A process of the fleet and its log. Our end of its stdin is what the engine watches to end with us."""

    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self._launch()

    def start(self) -> None:
        """Start it again, once it has ended, also by itself."""
        self.wait()
        self._launch()

    def _launch(self) -> None:
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.command,
                env=dict(self.environment),
                cwd=self.log.parent,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def kill9(self) -> None:
        """What an out-of-memory kill or a power cut leaves."""
        self.process.send_signal(signal.SIGKILL)
        self.wait()

    def pause(self) -> None:
        """It hangs: its connections stay open and nothing moves."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """End of `pause`; it goes on with what it was about to do."""
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """SIGTERM, as an orchestrator sends it; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """The exit status, once it has ended. Raises: TimeoutError: it does not end; with what its threads do."""
        try:
            status = self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.log.name}: no end within {STOP_TIMEOUT_S:.0f} s\n{self.stacks()}") from None
        assert self.process.stdin is not None
        self.process.stdin.close()
        return status

    def end(self) -> None:
        if self.is_running:
            self.kill9()
        self.wait()

    def wait_until(self, up: Callable[[], bool]) -> None:
        """Raises: RuntimeError: it ended instead, with its log; TimeoutError: with what its threads do."""

        def decided() -> bool:
            return up() or not self.is_running

        try:
            wait_until(decided, timeout_s=START_TIMEOUT_S, what=self.log.name)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.stacks()}") from None
        if not self.is_running:
            raise RuntimeError(f"{self.log.name} ended with {self.wait()}: {self.log.read_text()[-2000:]}")

    def stacks(self) -> str:
        """The end of its log, with where each thread is; this ends it."""
        with suppress(subprocess.TimeoutExpired):
            self.process.send_signal(signal.SIGABRT)  # `PYTHONFAULTHANDLER` answers it with the stacks
            self.process.wait(5)
        return self.log.read_text()[-6000:]

    def said(self, event: str) -> int:
        """How often the log has a line of this event."""
        return self.log.read_text().count(f'"event": "{event}"')


@dataclass
class Replica(Child):
    """A query replica."""

    url: str = ""

    @property
    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/api/v1/health/ready", timeout=5, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=30, trust_env=False)


class Fleet:
    """Two writers and two replicas unless told otherwise."""

    def __init__(self, base: Path, *, sql_url: str, amqp_url: str) -> None:
        self.base = base
        self.amqp_url = amqp_url
        self.postgres_url = urlsplit(sql_url)._replace(scheme="postgresql").geturl()
        self.engine_port = free_port()
        configuration = base / "rag-service.yaml"
        configuration.write_text(CONFIGURATION)
        self.environment = bare_environment(
            DATS_CONFIG=str(configuration),
            DATS_DATA_DIR=str(base / "data"),
            DATS_SQL_URL=sql_url,
            DATS_RABBITMQ_URL=amqp_url,
            QDRANT_HOST="127.0.0.1",
            QDRANT_GRPC_PORT=str(self.engine_port),
            PYTHONFAULTHANDLER="1",
        )
        self.engine: Child | None = None
        self.writers: list[Child] = []
        self.replicas: list[Replica] = []

    # -- processes

    @property
    def children(self) -> list[Child]:
        return [*self.replicas, *self.writers, *([self.engine] if self.engine else [])]

    def start(self, *, writers: int = 2, replicas: int = 2) -> None:
        """Start everything; returns once every replica is ready and every writer consumes."""
        self.start_engine()
        for _ in range(writers):
            self.add_writer()
        for _ in range(replicas):
            self.add_replica()
        self.wait_until_up()

    def start_engine(self) -> None:
        command = [sys.executable, "-m", "dats_common.embedded.qdrant_edge", str(self.engine_dir)]
        command += ["--port", str(self.engine_port)]
        log = self.base / "engine.log"
        log.unlink(missing_ok=True)
        self.engine = Child(command, self.environment, log)
        wait_until(self._engine_listens, timeout_s=START_TIMEOUT_S, what="engine start")

    def add_writer(self) -> Child:
        log = self.base / f"writer-{len(self.writers)}.log"
        self.writers.append(Child([sys.executable, "-m", "services.writer"], self.environment, log))
        return self.writers[-1]

    def add_replica(self) -> Replica:
        port = free_port()
        log = self.base / f"replica-{len(self.replicas)}.log"
        environment = {**self.environment, "PORT": str(port)}
        command = [sys.executable, "-m", "services.query"]
        self.replicas.append(Replica(command, environment, log, url=f"http://127.0.0.1:{port}"))
        return self.replicas[-1]

    def wait_until_up(self) -> None:
        for replica in self.replicas:
            replica.wait_until(lambda one=replica: one.is_ready)  # type: ignore[misc]
        for writer in self.writers:
            writer.wait_until(lambda one=writer: one.said("consuming") > 0)  # type: ignore[misc]

    def revive(self) -> None:
        """Start again what was killed or stopped, and wait until it works."""
        for child in reversed(self.children):
            if not child.is_running:
                child.log.rename(child.log.with_suffix(f".{uuid.uuid4().hex[:6]}.log"))
                child.start()
        wait_until(self._engine_listens, timeout_s=START_TIMEOUT_S, what="engine start")
        self.wait_until_up()

    def stop(self) -> None:
        """SIGTERM to everything at once, as a machine that shuts down does."""
        for child in self.children:
            child.process.send_signal(signal.SIGTERM)
        for child in self.children:
            assert child.wait() == 0, f"{child.log.name}: {child.log.read_text()[-2000:]}"

    def end(self) -> None:
        """Kill what is left."""
        for child in self.children:
            child.end()

    @property
    def engine_dir(self) -> Path:
        return self.base / "data" / "qdrant"

    def delete_index(self) -> None:
        """What a lost disk leaves; the engine must not run."""
        shutil.rmtree(self.engine_dir)

    def logs(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in sorted(self.base.glob("*.log"))}

    def _engine_listens(self) -> bool:
        assert self.engine is not None
        if not self.engine.is_running:
            raise RuntimeError(f"the engine ended: {self.engine.log.read_text()[-2000:]}")
        return f'"port": {self.engine_port}' in self.engine.log.read_text()

    # -- the ledger and the index, looked at from outside

    @asynccontextmanager
    async def ledger(self) -> AsyncIterator[asyncpg.Connection]:
        connection = await asyncpg.connect(self.postgres_url, timeout=10)
        try:
            yield connection
        finally:
            await connection.close()

    async def live(self, ids: Iterable[str]) -> dict[str, int]:
        """Live generation of each of these artifacts that has one."""
        async with self.ledger() as ledger:
            rows = await ledger.fetch(
                "SELECT artifact_id, live_generation FROM rag_artifacts "
                "WHERE artifact_id = ANY($1::text[]) AND live_generation IS NOT NULL",
                list(ids),
            )
        return {row["artifact_id"]: row["live_generation"] for row in rows}

    async def all_live(self, ids: Sequence[str], *, timeout_s: float = DEADLINE_S) -> None:
        async def done() -> bool:
            return len(await self.live(ids)) == len(ids)

        await eventually(done, what=f"{len(ids)} artifacts live", timeout_s=timeout_s, pause_s=0.2)

    async def indexed(self, ids: Iterable[str], *, tenant_id: str = "default") -> dict[str, set[int]]:
        """Generations of which the index has points."""
        keys = [ArtifactKey(tenant_id, each) for each in ids]
        async with open_qdrant(collection=COLLECTION, host="127.0.0.1", grpc_port=self.engine_port) as index:
            found = await index.generations(keys)
        return {key.artifact_id: generations for key, generations in found.items()}

    async def active_writer(self) -> Child | None:
        """The running writer that last said that it is the active one."""
        async with self.ledger() as ledger:
            rows = await ledger.fetch("SELECT writer_id FROM rag_writers WHERE state = 'active' ORDER BY beat_at DESC")
        running = {str(child.process.pid): child for child in self.writers if child.is_running}
        pids = [row["writer_id"].rpartition(":")[2] for row in rows]
        return next((running[pid] for pid in pids if pid in running), None)


# ------------------------------------------------------------------------------------------------ a foreign producer


@dataclass
class Producer:
    """Another team's AMQP client: it publishes to `task.events` and hears what comes back."""

    exchange: aio_pika.abc.AbstractExchange
    answers: aio_pika.abc.AbstractQueue
    heard: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    heard_at: list[float] = field(default_factory=list)
    """When each was heard, by the monotonic clock."""

    async def publish(self, routing_key: str, message: Mapping[str, Any]) -> None:
        body = json.dumps(message).encode()
        persistent = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await self.exchange.publish(persistent, routing_key)

    async def validated(self, artifact_id: str, content: str, *, at: float | None = None, **metadata: Any) -> None:
        data = {"artifact_id": artifact_id, "content": content, "metadata": {"project_id": "proj-1", **metadata}}
        await self.publish("task.validated", envelope(data, at=at))

    async def tainted(self, *artifact_ids: str, at: float | None = None) -> None:
        await self.publish("artifact.tainted", envelope({"artifact_ids": list(artifact_ids)}, at=at))

    def data(self, event: str) -> list[dict[str, Any]]:
        return [body["data"] for name, body in self.heard if name == event]

    async def completed(self, *artifact_ids: str) -> None:
        await self._until(lambda: {data["artifact_id"] for data in self.data("embedding.completed")} >= {*artifact_ids})

    async def invalidated(self, *artifact_ids: str) -> None:
        def done() -> bool:
            said = {each for data in self.data("embedding.invalidated") for each in data["artifact_ids"]}
            return said >= {*artifact_ids}

        await self._until(done)

    async def _until(self, true: Callable[[], bool]) -> None:
        async def done() -> bool:
            return true()

        await eventually(done, what="the service's answer", pause_s=0.005)


def envelope(data: Mapping[str, Any], *, at: float | None) -> dict[str, Any]:
    """Bare, as spec 1 has it, or with the producer's time (seconds since 1970)."""
    if at is None:
        return {"data": dict(data)}
    moment = datetime.fromtimestamp(at, tz=UTC).isoformat().replace("+00:00", "Z")
    return {"specversion": "1.0", "id": uuid.uuid4().hex, "source": "qa", "time": moment, "data": dict(data)}


@asynccontextmanager
async def producer(url: str) -> AsyncIterator[Producer]:
    """Nothing of ours: a plain connection, the exchange by its name, a queue of its own for the answers."""
    async with await aio_pika.connect(url, timeout=10) as connection, connection.channel() as channel:
        exchange = await channel.get_exchange(EVENTS_EXCHANGE)
        answers = await channel.declare_queue(exclusive=True, auto_delete=True)
        await answers.bind(exchange, "embedding.*")
        found = Producer(exchange, answers)

        async def hear(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            found.heard_at.append(time.monotonic())
            found.heard.append((message.routing_key or "", json.loads(message.body)))
            await message.ack()

        await answers.consume(hear)
        yield found


async def published(url: str, *, event: str, timeout_s: float = DEADLINE_S) -> AsyncIterator[dict[str, Any]]:
    """Data of the events that the broker kept of what was published, also before anybody listened."""
    async with await aio_pika.connect(url, timeout=10) as connection, connection.channel() as channel:
        kept = await channel.get_queue(PUBLISHED_QUEUE, ensure=False)
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            message = await kept.get(fail=False, no_ack=True)
            if message is None:
                await asyncio.sleep(0.1)
            elif message.routing_key == event:
                yield json.loads(message.body)["data"]


async def purge(url: str) -> None:
    """Declare our queues and empty them: a broker may be shared with tests that ran before."""
    names = [DEAD_LETTERS_QUEUE, PUBLISHED_QUEUE, *(queue.name for queue in QUEUES)]
    names += [retry_queue(queue.name, rung_s) for queue in QUEUES for rung_s in RETRY_RUNGS_S]
    async with open_rabbitmq(url, connect_timeout_s=DEADLINE_S), await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        for name in names:
            await (await channel.get_queue(name, ensure=False)).purge()


async def create_database(server_url: str) -> str:
    """A new database; its SQLAlchemy URL."""
    name = f"fleet_{uuid.uuid4().hex[:12]}"
    admin = await asyncpg.connect(server_url, timeout=10)
    try:
        await admin.execute(f"CREATE DATABASE {name} TEMPLATE template0")
    finally:
        await admin.close()
    return urlsplit(server_url)._replace(scheme="postgresql+asyncpg", path=f"/{name}").geturl()


# -------------------------------------------------------------------------------------------------------- documents


def names(count: int, *, prefix: str = "doc") -> list[str]:
    """Artifact ids that no other test uses."""
    run = uuid.uuid4().hex[:8]
    return [f"{prefix}-{run}-{number}" for number in range(count)]


def text(artifact_id: str) -> str:
    """A short document, unlike any other."""
    return f"The ledger report {artifact_id} describes invoices, approvals and the reconciliation of payments."


async def search(client: httpx.AsyncClient, *ids: str, query: str = "ledger report invoices", **more: Any) -> Any:
    """POST /query narrowed to these artifacts."""
    filters = {"artifact_ids": list(ids)} if ids else {}
    body = {"query": query, "top_k": 100, "max_tokens": 10_000, "filters": filters, **more}
    response = await client.post("/api/v1/query", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def shown(answer: Mapping[str, Any]) -> set[str]:
    """Ids of the artifacts in an answer."""
    return {source["artifact_id"] for source in answer["sources"]}
