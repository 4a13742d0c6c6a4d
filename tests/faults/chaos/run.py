"""One run: servers and a fleet of their own, the plan's events and faults, then rest, a last look and the snapshot."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import aio_pika
import asyncpg
import httpx
from fleet import COLLECTION, CONFIGURATION, Fleet, create_database, eventually, purge
from servers import PostgresCluster, RabbitNode, ServerMissing, open_postgres_server, open_rabbitmq_server

from dats_common.adapters.qdrant import open_qdrant
from dats_common.contracts.topology import VALIDATED_QUEUE
from tests.faults.chaos.content import CHUNK_TOKENS
from tests.faults.chaos.faults import Attacker
from tests.faults.chaos.history import History, open_history
from tests.faults.chaos.load import (
    ANSWERS_QUEUE,
    LOST,
    MODES,
    Memory,
    Producers,
    ask,
    declare_answers,
    listen,
    read,
    read_unguarded,
    running,
)
from tests.faults.chaos.plan import SPAN_S, STEP_S, Kind, Plan
from tests.faults.chaos.snapshot import depths, take_snapshot

READERS = 3
READ_PAUSE_S = 0.05
UNGUARDED_PAUSE_S = 0.15
BACKLOG = 40
"""So many events wait for the writer at most: faults then meet events that are being worked on."""

REST_TIMEOUT_S = 300.0
LAST_LOOK = 40

SETTINGS = f"""{CONFIGURATION}
lightrag:
  chunking:
    max_chunk_size: {CHUNK_TOKENS}
    overlap: 0
"""

HISTORY, SNAPSHOT = "history.jsonl", "snapshot.json"

Say = Callable[[str], None]


async def run(plan: Plan, *, node: RabbitNode, postgres: PostgresCluster, out: Path, say: Say) -> None:
    """Write the history and the snapshot to `out`, a directory."""
    with tempfile.TemporaryDirectory(prefix="dats-chaos-") as base:
        await purge(node.url)
        sql_url = await create_database(postgres.url)
        fleet = Fleet(Path(base), sql_url=sql_url, amqp_url=node.url)
        (fleet.base / "rag-service.yaml").write_text(SETTINGS)
        try:
            await asyncio.to_thread(fleet.start)
            say("the fleet is up")
            with open_history(out / HISTORY) as history:
                await _run_on(fleet, node, postgres, plan, history=history, say=say)
            (out / SNAPSHOT).write_text(json.dumps(await take_snapshot(fleet)))
            await _leave_nothing(node.url)
        finally:
            fleet.end()
            _keep_logs(fleet, out)


@contextmanager
def private_servers() -> Iterator[tuple[RabbitNode, PostgresCluster]]:
    """A broker and a database that may be killed. Raises: ServerMissing."""
    with open_rabbitmq_server() as node, open_postgres_server() as postgres:
        if not isinstance(node, RabbitNode) or not isinstance(postgres, PostgresCluster):
            raise ServerMissing("chaos kills its servers: unset DATS_TEST_RABBITMQ_URL and DATS_TEST_POSTGRES_URL")
        yield node, postgres


def _keep_logs(fleet: Fleet, out: Path) -> None:
    """Of every process that there was, for whoever asks why."""
    kept = out / "logs"
    kept.mkdir(exist_ok=True)
    for name, log in fleet.logs().items():
        (kept / name).write_text(log)


async def _leave_nothing(amqp_url: str) -> None:
    """Other tests use the broker after us."""
    async with await aio_pika.connect(amqp_url, timeout=10) as connection, connection.channel() as channel:
        await channel.queue_delete(ANSWERS_QUEUE)
    await purge(amqp_url)


async def _run_on(
    fleet: Fleet, node: RabbitNode, postgres: PostgresCluster, plan: Plan, *, history: History, say: Say
) -> None:
    origin_us = round((time.time() - SPAN_S - 5 * STEP_S) * 1e6)
    history.note(
        "run", "begin", seed=plan.seed, commit=commit(), origin_us=origin_us, events=len(plan.events),
        faults=len(plan.faults), skew_us=60_000_000,
    )  # fmt: skip
    urls = [replica.url for replica in fleet.replicas]
    async with await aio_pika.connect(fleet.amqp_url, timeout=10) as connection, connection.channel() as channel:
        await declare_answers(channel)
    memory = Memory(plan.seed)
    attacker = Attacker(fleet=fleet, node=node, postgres=postgres, faults=plan.faults, history=history)
    producers = Producers(amqp_url=fleet.amqp_url, urls=urls, history=history, memory=memory, origin_us=origin_us)
    backlog = _Backlog(fleet.amqp_url)
    last_said = time.monotonic()

    async def before(number: int) -> None:
        nonlocal last_said
        await attacker.reached(number / len(plan.events))
        if number % 10 == 0:
            await backlog.is_short()
        if time.monotonic() - last_said > 20:
            last_said = time.monotonic()
            say(f"{number} of {len(plan.events)} events sent")

    async with open_qdrant(collection=COLLECTION, host="127.0.0.1", grpc_port=fleet.engine_port) as index:
        readers = [
            read(f"reader-{n}", urls, history=history, memory=memory, seed=plan.seed + n, pause_s=READ_PAUSE_S)
            for n in range(READERS)
        ]
        unguarded = read_unguarded(index, history=history, memory=memory, seed=plan.seed, pause_s=UNGUARDED_PAUSE_S)
        async with running(listen(fleet.amqp_url, history), attacker.keep_running(), unguarded, *readers):
            async with asyncio.TaskGroup() as group:
                group.create_task(attacker.attack())
                await producers.send(plan.events, before=before)
                await attacker.reached(1.0)
            say("every event is sent and every fault is over: waiting for rest")
            history.note("run", "sent")
            await _rest(fleet, history)
            say("at rest: a last look at everything")
            await _look_at_everything(plan, urls, history)
    history.note("run", "end")


class _Backlog:
    """What waits for the writer. A broker that is away is no reason to wait."""

    def __init__(self, amqp_url: str) -> None:
        self._amqp_url = amqp_url

    async def is_short(self) -> None:
        async def short() -> bool:
            try:
                return (await depths(self._amqp_url))[VALIDATED_QUEUE] <= BACKLOG
            except (*LOST, aio_pika.exceptions.AMQPError):
                return True

        with suppress(TimeoutError):
            await eventually(short, what="a short queue", timeout_s=60, pause_s=0.2)


async def _rest(fleet: Fleet, history: History) -> None:
    """Until nothing moves and the sweep has nothing left. Where that does not come, the checker says what is left."""

    async def at_rest() -> bool:
        try:
            queues = await depths(fleet.amqp_url, ANSWERS_QUEUE)
            async with fleet.ledger() as ledger:
                moving = await ledger.fetchval(
                    "SELECT (SELECT count(*) FROM rag_pending) "
                    "+ (SELECT count(*) FROM rag_outbox WHERE sent_at IS NULL)"
                )
                live = {row[0] for row in await ledger.fetch("SELECT live_generation FROM rag_artifacts")} - {None}
            async with open_qdrant(collection=COLLECTION, host="127.0.0.1", grpc_port=fleet.engine_port) as index:
                there = {number async for page in index.scan() for numbers in page.values() for number in numbers}
        except (*LOST, aio_pika.exceptions.AMQPError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return False
        return not any(queues.values()) and not moving and there == live

    quiet = 0

    async def rests() -> bool:
        # Three looks apart: what was taken from a queue and not settled is in neither.
        nonlocal quiet
        quiet = quiet + 1 if await at_rest() else 0
        return quiet >= 3

    try:
        await eventually(rests, what="rest", timeout_s=REST_TIMEOUT_S, pause_s=1.0)
        history.note("run", "rest", reached=True)
    except TimeoutError:
        history.note("run", "rest", reached=False)


async def _look_at_everything(plan: Plan, urls: list[str], history: History) -> None:
    """Every artifact on every replica, so that what is live must be shown."""
    ids = list(dict.fromkeys(event.artifact for event in plan.events if event.kind is not Kind.POISON))
    async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
        for replica in range(len(urls)):
            for start in range(0, len(ids), LAST_LOOK):
                part = ids[start : start + LAST_LOOK]
                for _ in range(10):
                    if await ask("last", client, replica, urls, part, history=history, mode=MODES[2], final=True):
                        break
                    await asyncio.sleep(1)


def commit() -> str:
    """What is checked out."""
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def progress(text: str) -> None:
    """To the terminal, with the time since the start of the process."""
    sys.stderr.write(f"[{time.monotonic() - _STARTED:6.0f} s] {text}\n")


_STARTED = time.monotonic()
