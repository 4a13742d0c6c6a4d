"""A broker of three nodes whose leaders are killed while a plain producer and our adapter publish with confirms."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import aio_pika
from fleet import eventually
from servers import RABBITMQ_BIN, RabbitNode, ServerMissing

from dats_common.adapters.rabbitmq import open_rabbitmq
from dats_common.contracts.topology import EVENTS_EXCHANGE, TASK_VALIDATED, VALIDATED_QUEUE
from dats_common.errors import BrokerUnavailable
from dats_common.ports import Bus, Subscription
from tests.faults.chaos.load import LOST, running

NODES = 3
CONFIRMED_BETWEEN = 40
"""Messages of each producer that are confirmed after a kill, before the node comes back."""

PAUSE_S = 0.01
STEP_TIMEOUT_S = 120.0
ASK_TIMEOUT_S = 60.0


@contextmanager
def open_cluster(base: Path) -> Iterator[list[RabbitNode]]:
    """Three nodes of our own. Raises: ServerMissing."""
    if not (RABBITMQ_BIN / "rabbitmq-server").exists():
        raise ServerMissing("no RabbitMQ: run scripts/install-servers.sh as root")
    nodes = [RabbitNode(base / "node-0")]
    nodes += [RabbitNode(base / f"node-{number}", joins=nodes[0]) for number in range(1, NODES)]
    try:
        for node in nodes:
            node.start()
        yield nodes
    finally:
        for node in reversed(nodes):
            node.end()


@dataclass
class Tally:
    """What was confirmed to whom, what arrived, and which nodes were leaders when they were killed."""

    confirmed: dict[str, set[str]] = field(default_factory=lambda: {"plain": set(), "ours": set()})
    refused: dict[str, int] = field(default_factory=lambda: {"plain": 0, "ours": 0})
    received: set[str] = field(default_factory=set)
    killed: list[str] = field(default_factory=list)

    @property
    def lost(self) -> set[str]:
        return set.union(*self.confirmed.values()) - self.received


async def kill_leaders(nodes: list[RabbitNode], *, kills: int) -> Tally:
    """Kill the leader of the events' queue this often, each time while both producers publish. Raises: TimeoutError."""
    tally = Tally()
    urls = [node.url for node in nodes]
    async with (
        open_rabbitmq(",".join(urls), connect_timeout_s=STEP_TIMEOUT_S, heartbeat_s=4) as bus,
        bus.subscribe(VALIDATED_QUEUE, prefetch=100) as subscription,
    ):
        await _members_are(nodes, NODES)
        loads = [_receive(subscription, tally), _publish_plain(urls, tally), _publish_ours(bus, tally)]
        async with running(*loads):
            for _ in range(kills):
                await _kill_the_leader(nodes, tally)
        # What was published is over; what was confirmed must come, however long it takes.
        async with running(_receive(subscription, tally)):
            with suppress(TimeoutError):
                await eventually(lambda: _is(not tally.lost), what="every message", timeout_s=STEP_TIMEOUT_S)
    return tally


async def _is(truth: bool) -> bool:
    return truth


async def _kill_the_leader(nodes: list[RabbitNode], tally: Tally) -> None:
    await _more_confirmed(tally)
    name = await asyncio.to_thread(leader, nodes)
    node = next(node for node in nodes if node.name == name)
    await asyncio.to_thread(node.kill9)
    tally.killed.append(name)
    await _more_confirmed(tally)
    await asyncio.to_thread(node.start)
    await _members_are(nodes, NODES)


async def _more_confirmed(tally: Tally) -> None:
    """From now on."""
    before = {who: len(ids) for who, ids in tally.confirmed.items()}

    async def confirmed() -> bool:
        return all(len(ids) >= before[who] + CONFIRMED_BETWEEN for who, ids in tally.confirmed.items())

    await eventually(confirmed, what="confirmations after a kill", timeout_s=STEP_TIMEOUT_S)


def leader(nodes: list[RabbitNode]) -> str:
    """Name of the node that leads the events' queue."""
    return next(row[1] for row in _queues(nodes) if row[0] == VALIDATED_QUEUE)


async def _members_are(nodes: list[RabbitNode], count: int) -> None:
    """Wait until so many nodes hold every quorum queue: fewer, and the next kill would leave no majority."""

    async def online() -> bool:
        rows = await asyncio.to_thread(_queues, nodes)
        return all(row[2].count("@") == count for row in rows if row[2])

    await eventually(online, what=f"{count} members", timeout_s=STEP_TIMEOUT_S, pause_s=0.5)


def _queues(nodes: list[RabbitNode]) -> list[list[str]]:
    """Name, leader and members of each queue, as some node sees it."""
    for node in itertools.cycle(nodes):
        with suppress(subprocess.SubprocessError):
            told = node.control("list_queues", "name", "leader", "online", "--no-table-headers")
            return [line.split("\t") for line in told.splitlines() if line.count("\t") == 2]
    raise AssertionError("unreachable")


# ---------------------------------------------------------------------------------------------------------- clients


async def _receive(subscription: Subscription, tally: Tally) -> None:
    while deliveries := await subscription.batch(max_items=50, max_wait_s=0.05):
        for delivery in deliveries:
            tally.received.add(json.loads(delivery.body)["id"])
            await subscription.ack(delivery)


async def _publish_plain(urls: list[str], tally: Tally) -> None:
    """A client without anything of ours, that goes to the next node whenever it is told no or nothing."""
    numbers = itertools.count()
    for url in itertools.cycle(urls):
        with suppress(*_AWAY):
            async with await aio_pika.connect(url, timeout=ASK_TIMEOUT_S, heartbeat=4) as connection:
                channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
                exchange = await channel.get_exchange(EVENTS_EXCHANGE, ensure=False)

                async def send(name: str, to: aio_pika.abc.AbstractExchange = exchange) -> None:
                    body = json.dumps({"id": name, "data": {}}).encode()
                    message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
                    async with asyncio.timeout(ASK_TIMEOUT_S):
                        await to.publish(message, TASK_VALIDATED, mandatory=True)

                while await _confirmed("plain", next(numbers), send, tally):
                    await asyncio.sleep(PAUSE_S)
        await asyncio.sleep(PAUSE_S)


async def _publish_ours(bus: Bus, tally: Tally) -> None:
    for number in itertools.count():
        await _confirmed(
            "ours", number, lambda name: bus.publish(TASK_VALIDATED, {"id": name, "data": {}}, event_id=name), tally
        )
        await asyncio.sleep(PAUSE_S)


_AWAY = (*(each for each in LOST if each is not asyncio.CancelledError), aio_pika.exceptions.AMQPError)


async def _confirmed(who: str, number: int, send: Callable[[str], Awaitable[None]], tally: Tally) -> bool:
    name = f"{who}-{number}"
    try:
        await send(name)
    except (BrokerUnavailable, *LOST, aio_pika.exceptions.AMQPError):
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        tally.refused[who] += 1
        return False
    tally.confirmed[who].add(name)
    return True
