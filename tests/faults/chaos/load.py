"""The clients: producers that send until they are told that it arrived, a subscriber, readers of the replicas, and one
that asks the index alone."""

from __future__ import annotations

import asyncio
import json
import random
import zlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import aio_pika
import httpx
import numpy as np
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange, AbstractIncomingMessage, AbstractQueue
from aio_pika.exceptions import CONNECTION_EXCEPTIONS

from dats_common.domain.access import LAPTOP
from dats_common.errors import Unavailable
from dats_common.ports import Index
from dats_common.records import SearchFilter
from tests.faults.chaos.content import QUESTION, message, shown
from tests.faults.chaos.history import History, Operation
from tests.faults.chaos.plan import Event, Kind

PUBLISHERS = 4
ANSWERS_QUEUE = "chaos-answers"
"""Durable and a quorum queue: what was published while we could not listen waits there."""

MODES = ("vector", "keyword", "hybrid")
ASKED = 60
TOP_K = 100
DIMENSION = 384
CALL_TIMEOUT_S = 15.0
GIVE_UP_S = 240.0
PAUSE_S = 0.2

LOST = (*CONNECTION_EXCEPTIONS, TimeoutError, OSError, asyncio.CancelledError)
"""How the AMQP library says that a connection is gone. A real cancellation is counted on the task."""


def _cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Memory:
    """What the readers ask for: what was sent lately, and what was tainted lately."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._sent: deque[str] = deque(maxlen=400)
        self._tainted: deque[str] = deque(maxlen=60)

    def sent(self, event: Event) -> None:
        (self._sent if event.kind is Kind.VALIDATED else self._tainted).append(event.artifact)

    def tainted(self) -> list[str]:
        """Lately."""
        return list(dict.fromkeys(self._tainted))

    def some(self) -> list[str]:
        """Up to `ASKED` ids: the tainted ones that matter most, the newest, and some others."""
        newest, tainted = list(self._sent)[-20:], self.tainted()
        drawn = self._rng.sample(list(self._sent), min(30, len(self._sent)))
        return list(dict.fromkeys([*tainted[-20:], *newest, *drawn]))[:ASKED]


# -------------------------------------------------------------------------------------------------------- producers


class Producers:
    """Publish and call in the plan's order for each artifact; a few artifacts at a time."""

    def __init__(self, *, amqp_url: str, urls: Sequence[str], history: History, memory: Memory, origin_us: int) -> None:
        self._amqp_url = amqp_url
        self._urls = urls
        self._history = history
        self._memory = memory
        self._origin_us = origin_us
        self._queues: list[asyncio.Queue[Event]] = [asyncio.Queue(maxsize=4) for _ in range(PUBLISHERS)]

    async def send(self, events: Sequence[Event], *, before: Callable[[int], Awaitable[None]]) -> None:
        """Returns once every event is confirmed or given up. `before` is awaited with the number of each event."""
        workers = [
            asyncio.create_task(self._work(number, queue), name=f"producer-{number}")
            for number, queue in enumerate(self._queues)
        ]
        try:
            for number, event in enumerate(events):
                await before(number)
                await self._queues[zlib.crc32(event.artifact.encode()) % PUBLISHERS].put(event)
            await asyncio.gather(*(queue.join() for queue in self._queues))
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, number: int, queue: asyncio.Queue[Event]) -> None:
        worker = f"producer-{number}"
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(httpx.AsyncClient(timeout=CALL_TIMEOUT_S, trust_env=False))
            link = _Link(self._amqp_url)
            stack.push_async_callback(link.close)
            while True:
                event = await queue.get()
                try:
                    async with asyncio.timeout(GIVE_UP_S):
                        while not await self._try(worker, event, link, client):
                            await asyncio.sleep(PAUSE_S)
                except TimeoutError:
                    self._history.note(worker, "given-up", id=event.event_id)
                self._memory.sent(event)
                queue.task_done()

    async def _try(self, worker: str, event: Event, link: _Link, client: httpx.AsyncClient) -> bool:
        fields = {"id": event.event_id, "kind": event.kind, "a": event.artifact, "v": event.version}
        operation = self._history.begin(worker, "send", at=event.at_us, copy=event.copy, **fields)
        if event.kind is Kind.HTTP_TAINT:
            await self._call(operation, event, client)
        else:
            await self._publish(operation, event, link)
        return operation.phase == "ok"

    async def _publish(self, operation: Operation, event: Event, link: _Link) -> None:
        routing_key, body = message(event, origin_us=self._origin_us)
        outgoing = aio_pika.Message(json.dumps(body).encode(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                exchange = await link.exchange()
        except LOST as error:
            await _lost(link, operation, "fail", error)
            return
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await exchange.publish(outgoing, routing_key, mandatory=True)
        except LOST as error:
            await _lost(link, operation, "unknown", error)
        else:
            operation.end("ok")

    async def _call(self, operation: Operation, event: Event, client: httpx.AsyncClient) -> None:
        url = self._urls[operation.number % len(self._urls)]
        body = {"artifact_ids": [event.artifact], "cascade_id": event.event_id}
        try:
            response = await client.post(f"{url}/api/v1/embeddings/batch-invalidate", json=body)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            operation.end("fail", why=type(error).__name__)
        except httpx.TransportError as error:
            operation.end("unknown", why=type(error).__name__)
        else:
            operation.end("ok" if response.status_code == 200 else "unknown", status=response.status_code)


async def _lost(link: _Link, operation: Operation, phase: str, error: BaseException) -> None:
    if _cancelled():
        raise error
    operation.end(phase, why=type(error).__name__)
    await link.close()


class _Link:
    """A plain client's connection, opened when needed."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: AbstractConnection | None = None
        self._exchange: AbstractExchange | None = None

    async def channel(self) -> AbstractChannel:
        self._connection = await aio_pika.connect(self._url, timeout=CALL_TIMEOUT_S, heartbeat=10)
        return await self._connection.channel(publisher_confirms=True, on_return_raises=True)

    async def exchange(self) -> AbstractExchange:
        if self._exchange is None:
            channel = await self.channel()
            self._exchange = await channel.get_exchange("task.events", ensure=False)
        return self._exchange

    async def close(self) -> None:
        connection, self._connection, self._exchange = self._connection, None, None
        if connection is not None:
            with suppress(*LOST):
                async with asyncio.timeout(2):
                    await connection.close()


# ------------------------------------------------------------------------------------------------------- subscriber


async def listen(amqp_url: str, history: History) -> None:
    """Note every event that the service publishes, until cancelled; survives whatever happens to the broker."""
    while True:
        link = _Link(amqp_url)
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                lost = await _consume(await link.channel(), history)
            await lost.wait()
        except LOST:
            if _cancelled():
                raise
        finally:
            await link.close()
        await asyncio.sleep(PAUSE_S)


async def _consume(channel: AbstractChannel, history: History) -> asyncio.Event:
    """Begin; the event is set when it is over."""
    lost = asyncio.Event()
    channel.close_callbacks.add(lambda *_: lost.set())
    # A broker that comes back from a crash may also end the consumer alone.
    (await channel.get_underlay_channel()).on_consumer_cancel_callbacks.add(lambda _: lost.set())
    await channel.set_qos(prefetch_count=200)

    async def hear(incoming: AbstractIncomingMessage) -> None:
        await _hear(incoming, history)

    await (await declare_answers(channel)).consume(hear)
    return lost


async def declare_answers(channel: AbstractChannel) -> AbstractQueue:
    """The subscriber's queue."""
    queue = await channel.declare_queue(ANSWERS_QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
    await queue.bind("task.events", "embedding.*")
    return queue


async def _hear(incoming: AbstractIncomingMessage, history: History) -> None:
    body = json.loads(incoming.body)
    data = body["data"]
    named = data.get("artifact_ids") or [data.get("artifact_id")]
    wanted = {name: data[name] for name in ("through", "version", "generation", "status") if name in data}
    history.note("subscriber", "heard", event=incoming.routing_key, id=body["id"], a=named, **wanted)
    with suppress(*CONNECTION_EXCEPTIONS):
        await incoming.ack()


# ---------------------------------------------------------------------------------------------------------- readers


async def read(
    worker: str, urls: Sequence[str], *, history: History, memory: Memory, seed: int, pause_s: float
) -> None:
    """Ask one replica after the other, in every mode, until cancelled."""
    rng = random.Random(seed)
    async with httpx.AsyncClient(timeout=CALL_TIMEOUT_S, trust_env=False) as client:
        while True:
            if ids := memory.some():
                await ask(worker, client, rng.randrange(len(urls)), urls, ids, history=history, mode=rng.choice(MODES))
            await asyncio.sleep(pause_s)


async def ask(
    worker: str,
    client: httpx.AsyncClient,
    replica: int,
    urls: Sequence[str],
    ids: Sequence[str],
    *,
    history: History,
    mode: str,
    final: bool = False,
) -> bool:
    """One query; whether it was answered."""
    body = {"query": QUESTION, "top_k": TOP_K, "max_tokens": 10_000, "search_mode": mode}
    operation = history.begin(worker, "query", replica=replica, mode=mode, ids=list(ids), final=final)
    try:
        response = await client.post(f"{urls[replica]}/api/v1/query", json={**body, "filters": {"artifact_ids": ids}})
        if response.status_code == 200:
            operation.end("ok", seen=shown(response.json()))
        else:
            operation.end("fail", status=response.status_code)
    except httpx.TransportError as error:
        operation.end("unknown", why=type(error).__name__)
    return operation.phase == "ok"


async def read_unguarded(index: Index, *, history: History, memory: Memory, seed: int, pause_s: float) -> None:
    """What a service without the guard would show: the index's own candidates among what was tainted lately."""
    rng = np.random.default_rng(seed)
    while True:
        if ids := memory.tainted():
            operation = history.begin("unguarded", "candidates", ids=ids)
            where = SearchFilter(LAPTOP, artifact_ids=tuple(ids))
            vector = rng.standard_normal(DIMENSION).astype(np.float32)
            try:
                found = await index.search(
                    dense=vector / np.linalg.norm(vector),
                    sparse=None,
                    legs=frozenset({"dense"}),
                    where=where,
                    limit=200,
                )
            except Unavailable as error:
                operation.end("fail", why=type(error).__name__)
            else:
                operation.end("ok", seen=[[item.ref.key.artifact_id, item.ref.generation] for item in found])
        await asyncio.sleep(pause_s)


@asynccontextmanager
async def running(*loads: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run them beside the block, which ends when one of them fails."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(load) for load in loads]
        yield
        for task in tasks:
            task.cancel()
