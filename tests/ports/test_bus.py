"""What every bus promises, held against the in-memory twin, the laptop's SQLite queue and RabbitMQ; then what each
of them promises besides."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import aio_pika
import pytest
from cancelling import ends_when_cancelled
from servers import RabbitNode, RabbitServer

from dats_common.adapters.memory_bus import MemoryBus
from dats_common.adapters.rabbitmq import RabbitSubscription, open_rabbitmq
from dats_common.adapters.rabbitmq.connection import translated
from dats_common.adapters.sqlite_bus import BEAT_S, SqliteBus, open_sqlite_bus
from dats_common.contracts.routing import PUBLISHED_MAX_MESSAGES, RETRY_RUNGS_S, retry_queue
from dats_common.contracts.topology import (
    ARTIFACT_TAINTED,
    COMMANDS_QUEUE,
    DEAD_LETTERS_QUEUE,
    EMBED_COMMAND,
    EMBEDDING_COMPLETED,
    EMBEDDING_INVALIDATED,
    EVENTS_EXCHANGE,
    PUBLISHED_QUEUE,
    QUEUES,
    TAINTS_QUEUE,
    TASK_VALIDATED,
    VALIDATED_QUEUE,
)
from dats_common.errors import BrokerUnavailable, ConfigurationError
from dats_common.ports import Bus, Subscription
from dats_common.records import Delivery
from dats_common.trace_context import TRACEPARENT_HEADER, TraceContext, within_trace

DEADLINE_S = 20.0
QUIET_S = 0.3
"""Long enough for a message that is on its way to arrive, where a test claims that none is."""


class Inject(Protocol):
    async def __call__(self, body: bytes, *, timestamp: datetime | None = None) -> None:
        """Publish raw bytes as `task.validated`, as a foreign producer may."""


@dataclass(frozen=True)
class Broker:
    """One broker, and how another process would open it."""

    open: Callable[[], AbstractAsyncContextManager[Bus]]
    inject: Inject


# -------------------------------------------------------------------------------------------------------- brokers


@asynccontextmanager
async def memory_broker() -> AsyncIterator[Broker]:
    bus = MemoryBus()

    @asynccontextmanager
    async def open_bus() -> AsyncIterator[Bus]:
        yield bus

    async def inject(body: bytes, *, timestamp: datetime | None = None) -> None:
        bus.inject(TASK_VALIDATED, body, timestamp=microseconds(timestamp))

    yield Broker(open_bus, inject)


@asynccontextmanager
async def sqlite_broker(path: Path) -> AsyncIterator[Broker]:
    async def inject(body: bytes, *, timestamp: datetime | None = None) -> None:
        async with open_sqlite_bus(path) as bus:
            await bus.inject(TASK_VALIDATED, body, timestamp=microseconds(timestamp))

    yield Broker(lambda: open_sqlite_bus(path), inject)


@asynccontextmanager
async def rabbitmq_broker(server: RabbitServer) -> AsyncIterator[Broker]:
    async def inject(body: bytes, *, timestamp: datetime | None = None) -> None:
        async with await aio_pika.connect(server.url) as connection, connection.channel() as channel:
            exchange = await channel.get_exchange(EVENTS_EXCHANGE, ensure=False)
            await exchange.publish(aio_pika.Message(body, timestamp=timestamp), TASK_VALIDATED)

    await purge(server.url)
    yield Broker(lambda: open_rabbitmq(server.url, connect_timeout_s=DEADLINE_S), inject)


async def purge(url: str) -> None:
    names = [DEAD_LETTERS_QUEUE, PUBLISHED_QUEUE, *(queue.name for queue in QUEUES)]
    names += [retry_queue(queue.name, rung_s) for queue in QUEUES for rung_s in RETRY_RUNGS_S]
    async with open_rabbitmq(url, connect_timeout_s=DEADLINE_S), await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        for name in names:
            await (await channel.get_queue(name, ensure=False)).purge()


def microseconds(timestamp: datetime | None) -> int | None:
    return None if timestamp is None else int(timestamp.timestamp() * 1_000_000)


@pytest.fixture(params=["memory", "sqlite", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Broker]:
    match request.param:
        case "memory":
            opening = memory_broker()
        case "sqlite":
            opening = sqlite_broker(tmp_path / "bus.sqlite")
        case _:
            opening = rabbitmq_broker(request.getfixturevalue("rabbitmq"))
    async with opening as broker:
        yield broker


@pytest.fixture
async def bus(broker: Broker) -> AsyncIterator[Bus]:
    async with broker.open() as bus:
        yield bus


@pytest.fixture
async def other(broker: Broker) -> AsyncIterator[Bus]:
    """The same broker as a second process sees it."""
    async with broker.open() as bus:
        yield bus


@pytest.fixture
def node(rabbitmq: RabbitServer) -> RabbitNode:
    """A broker that may be stopped."""
    if not isinstance(rabbitmq, RabbitNode):
        pytest.skip("the broker named in DATS_TEST_RABBITMQ_URL is not ours to stop")
    return rabbitmq


# -------------------------------------------------------------------------------------------------------- helpers


async def publish(bus: Bus, *numbers: int, routing_key: str = TASK_VALIDATED) -> None:
    for number in numbers:
        await bus.publish(routing_key, {"n": number}, event_id=f"event-{number}")


async def take(subscription: Subscription, count: int = 1) -> list[Delivery]:
    """Exactly `count` deliveries, before the deadline."""
    taken: list[Delivery] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(taken) < count:
            taken += await subscription.batch(max_items=count - len(taken), max_wait_s=0.05)
    return taken


async def take_one(subscription: Subscription) -> Delivery:
    return (await take(subscription))[0]


async def is_quiet(subscription: Subscription) -> bool:
    """Nothing comes for a while."""
    try:
        await asyncio.wait_for(subscription.batch(max_items=1, max_wait_s=0), QUIET_S)
    except TimeoutError:
        return True
    return False


async def eventually(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not await holds():
                await asyncio.sleep(0.02)
    except TimeoutError:
        pytest.fail(f"not within {DEADLINE_S} s: {what}")


async def depth_becomes(bus: Bus, queue: str, depth: int) -> None:
    async def holds() -> bool:
        return await bus.depth(queue) == depth

    await eventually(holds, f"{depth} messages in {queue}")


def numbers(deliveries: list[Delivery]) -> list[int]:
    return [json.loads(delivery.body)["n"] for delivery in deliveries]


# ----------------------------------------------------------------------------------------------------- every bus


async def test_a_message_carries_its_trace_whatever_becomes_of_it(bus: Bus) -> None:
    trace = TraceContext("a" * 32, "b" * 16, is_sampled=True)
    with within_trace(trace):
        await publish(bus, 1)
        await bus.command({"n": 2}, event_id="event-2")
    await publish(bus, 3)

    def carried(delivery: Delivery) -> object:
        return delivery.headers.get(TRACEPARENT_HEADER)

    async with bus.subscribe(COMMANDS_QUEUE, prefetch=10) as commands:
        (command,) = await take(commands)
        assert carried(command) == trace.traceparent
        await commands.hand_over(command, queue=VALIDATED_QUEUE)
    async with bus.subscribe(VALIDATED_QUEUE, prefetch=10) as events:
        taken = sorted(await take(events, 3), key=lambda delivery: json.loads(delivery.body)["n"])
        assert [carried(each) for each in taken] == [trace.traceparent, trace.traceparent, None]
        first, second, third = taken
        await events.retry(first, delay_s=0.1)
        await events.dead_letter(second, reason="why")
        await events.ack(third)
        again = await take_one(events)
        assert (again.attempt, carried(again)) == (2, trace.traceparent)
        await events.ack(again)
        await bus.replay_dead_letters()  # type: ignore[attr-defined]
        assert carried(await take_one(events)) == trace.traceparent


async def test_a_published_event_arrives_in_order_with_its_type(bus: Bus) -> None:
    await publish(bus, *range(10))
    async with bus.subscribe(VALIDATED_QUEUE, prefetch=20) as subscription:
        deliveries = await take(subscription, 10)
    assert numbers(deliveries) == list(range(10))
    assert {(d.event_type, d.attempt, d.redelivered) for d in deliveries} == {(TASK_VALIDATED, 1, False)}


async def test_an_acknowledged_message_never_comes_again(bus: Bus) -> None:
    await publish(bus, 1)
    async with bus.subscribe(VALIDATED_QUEUE, prefetch=10) as subscription:
        await subscription.ack(await take_one(subscription))
    async with bus.subscribe(VALIDATED_QUEUE, prefetch=10) as subscription:
        assert await is_quiet(subscription)


async def test_what_a_lost_consumer_held_comes_again_uncounted(bus: Bus, other: Bus) -> None:
    await publish(bus, 1, 2)
    async with bus.subscribe(VALIDATED_QUEUE, prefetch=10) as subscription:
        first = await take(subscription, 2)
        assert numbers(first) == [1, 2]
    between = asyncio.get_running_loop().time()
    async with other.subscribe(VALIDATED_QUEUE, prefetch=10) as subscription:
        again = await take(subscription, 2)
    assert numbers(again) == [1, 2]
    assert {(d.attempt, d.redelivered) for d in again} == {(1, True)}
    assert max(d.received_s for d in first) <= between <= min(d.received_s for d in again)


async def test_an_error_that_is_not_the_librarys_passes_as_it_is() -> None:
    with pytest.raises(KeyError) as raised, translated("publishing"):
        raise KeyError("a fault of ours")
    assert raised.value.__cause__ is None


async def test_whoever_is_cancelled_while_asking_ends(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    await ends_when_cancelled(lambda: bus.depth(VALIDATED_QUEUE))
    await ends_when_cancelled(lambda: publish(bus, 1))
    assert "CHANNEL_ERROR" not in caplog.text, (
        "the broker ended a connection, with its consumers, over a cancelled call"
    )


async def test_a_retry_is_counted_waits_and_comes_back_with_its_type(bus: Bus) -> None:
    await publish(bus, 7, routing_key=ARTIFACT_TAINTED)
    async with bus.subscribe(TAINTS_QUEUE, prefetch=10) as subscription:
        delivery = await take_one(subscription)
        started = time.monotonic()
        await subscription.retry(delivery, delay_s=1)
        again = await take_one(subscription)
        waited_s = time.monotonic() - started
        await subscription.retry(again, delay_s=0.5)
        third = await take_one(subscription)
    assert waited_s >= 0.9
    assert [d.attempt for d in (delivery, again, third)] == [1, 2, 3]
    assert third.event_type == ARTIFACT_TAINTED
    assert third.body == delivery.body


async def test_a_retried_message_keeps_the_publishers_timestamp(broker: Broker, bus: Bus) -> None:
    sent = datetime(2026, 3, 1, 12, 0, 5, tzinfo=UTC)
    await broker.inject(b"{}", timestamp=sent)
    async with bus.subscribe(VALIDATED_QUEUE, prefetch=10) as subscription:
        first = await take_one(subscription)
        await subscription.retry(first, delay_s=0.1)
        again = await take_one(subscription)
    assert first.timestamp == again.timestamp == microseconds(sent)


async def test_a_message_given_back_comes_at_once_and_uncounted(bus: Bus) -> None:
    await publish(bus, 1)
    async with bus.subscribe(VALIDATED_QUEUE, prefetch=10) as subscription:
        await subscription.give_back(await take_one(subscription))
        again = await take_one(subscription)
    assert (again.attempt, again.redelivered) == (1, True)


async def test_a_dead_letter_tells_why_and_whence_and_can_be_replayed(bus: Bus) -> None:
    await publish(bus, 1)
    async with bus.subscribe(VALIDATED_QUEUE, prefetch=10) as subscription:
        await subscription.retry(await take_one(subscription), delay_s=0.1)
        delivery = await take_one(subscription)
        await subscription.dead_letter(delivery, reason="content is empty" + "!" * 1000)
        async with bus.subscribe(DEAD_LETTERS_QUEUE, prefetch=10) as dead_letters:
            dead = await take_one(dead_letters)
            await dead_letters.hand_over(dead, queue=VALIDATED_QUEUE)
        replayed = await take_one(subscription)
        await subscription.ack(replayed)
    assert dead.body == delivery.body
    assert dead.headers["x-reason"].startswith("content is empty!")
    assert len(dead.headers["x-reason"]) == 500
    assert dead.headers["x-source-queue"] == VALIDATED_QUEUE
    assert dead.headers["x-attempts"] == 2
    assert dead.headers["x-event-type"] == TASK_VALIDATED
    assert (replayed.event_type, replayed.attempt) == (TASK_VALIDATED, 1)
    assert await bus.depth(DEAD_LETTERS_QUEUE) == 0


async def test_a_message_handed_over_keeps_type_attempt_and_body(bus: Bus) -> None:
    await publish(bus, 1)
    async with bus.subscribe(VALIDATED_QUEUE, prefetch=10) as subscription:
        await subscription.retry(await take_one(subscription), delay_s=0.1)
        delivery = await take_one(subscription)
        await subscription.hand_over(delivery, queue=TAINTS_QUEUE)
        async with bus.subscribe(TAINTS_QUEUE, prefetch=10) as taints:
            moved = await take_one(taints)
        assert (moved.event_type, moved.attempt, moved.body) == (TASK_VALIDATED, 2, delivery.body)
        assert await is_quiet(subscription)


async def test_a_standby_waits_and_takes_over_when_the_active_consumer_leaves(bus: Bus, other: Bus) -> None:
    async with AsyncExitStack() as active:
        first = await active.enter_async_context(bus.subscribe(VALIDATED_QUEUE, prefetch=2))
        async with other.subscribe(VALIDATED_QUEUE, prefetch=2) as standby:
            await publish(bus, 1, 2, 3)
            await first.ack((await take(first, 2))[0])
            assert numbers(await take(first)) == [3]
            assert await is_quiet(standby)
            await active.aclose()
            assert sorted(numbers(await take(standby, 2))) == [2, 3]


async def test_a_standby_takes_over_as_soon_as_the_active_consumer_stops(bus: Bus, other: Bus) -> None:
    async with (
        bus.subscribe(VALIDATED_QUEUE, prefetch=1) as active,
        other.subscribe(VALIDATED_QUEUE, prefetch=1) as standby,
    ):
        await publish(bus, 1, 2)
        in_hand = await take_one(active)
        await active.stop()
        assert numbers(await take(standby)) == [2]
        await active.ack(in_hand)
    await depth_becomes(bus, VALIDATED_QUEUE, 1)


async def test_consumers_of_the_taints_share_the_work(bus: Bus, other: Bus) -> None:
    async with bus.subscribe(TAINTS_QUEUE, prefetch=1) as one, other.subscribe(TAINTS_QUEUE, prefetch=1) as two:
        await publish(bus, 1, 2, routing_key=ARTIFACT_TAINTED)
        assert sorted(numbers([await take_one(one), await take_one(two)])) == [1, 2]


async def test_no_more_than_the_prefetch_is_in_hand(bus: Bus) -> None:
    await publish(bus, *range(5))
    async with bus.subscribe(VALIDATED_QUEUE, prefetch=3) as subscription:
        held = await take(subscription, 3)
        assert await is_quiet(subscription)
        await subscription.ack(held[0])
        assert numbers(await take(subscription)) == [3]
        assert await is_quiet(subscription)


async def test_a_batch_waits_for_more_but_not_for_ever(bus: Bus) -> None:
    async with bus.subscribe(VALIDATED_QUEUE, prefetch=10) as subscription:
        waiting = asyncio.create_task(subscription.batch(max_items=3, max_wait_s=DEADLINE_S))
        await publish(bus, 1, 2, 3)
        assert numbers(await asyncio.wait_for(waiting, DEADLINE_S / 2)) == [1, 2, 3]
        await publish(bus, 4)
        assert numbers(await asyncio.wait_for(subscription.batch(max_items=3, max_wait_s=0.1), DEADLINE_S)) == [4]


async def test_a_batch_ends_in_time_however_much_else_happens(bus: Bus) -> None:
    """Every change of the bus wakes a batch that lingers; its own end must not get lost among them."""

    async def stir() -> None:
        while True:
            if isinstance(bus, MemoryBus | SqliteBus):
                bus.changed()
            await asyncio.sleep(0)

    async with bus.subscribe(VALIDATED_QUEUE, prefetch=10) as subscription:
        stirring = asyncio.create_task(stir())
        try:
            for number in range(40):
                await publish(bus, number)
                batch = await asyncio.wait_for(subscription.batch(max_items=2, max_wait_s=0.02), DEADLINE_S)
                assert numbers(batch) == [number]
                await subscription.ack(batch[0])
        finally:
            stirring.cancel()


async def test_a_cancelled_batch_loses_nothing(bus: Bus) -> None:
    async with bus.subscribe(VALIDATED_QUEUE, prefetch=10) as subscription:
        waiting = asyncio.create_task(subscription.batch(max_items=5, max_wait_s=DEADLINE_S))
        await publish(bus, 1, 2)
        await asyncio.wait({waiting}, timeout=QUIET_S)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert numbers(await take(subscription, 2)) == [1, 2]


async def test_a_batch_cancelled_at_any_moment_loses_nothing(bus: Bus) -> None:
    await publish(bus, 1)
    async with bus.subscribe(VALIDATED_QUEUE, prefetch=1) as subscription:
        for step in range(40):
            waiting = asyncio.create_task(subscription.batch(max_items=1, max_wait_s=0))
            await asyncio.wait({waiting}, timeout=step * 0.0002)
            waiting.cancel()
            for outcome in await asyncio.gather(waiting, return_exceptions=True):
                if not isinstance(outcome, BaseException):
                    await subscription.give_back(outcome[0])
        assert numbers(await take(subscription)) == [1]


async def test_stop_gives_back_what_was_not_handed_out_and_ends_the_batch(bus: Bus) -> None:
    await publish(bus, 1, 2, 3)
    async with bus.subscribe(VALIDATED_QUEUE, prefetch=10) as subscription:
        first = await take_one(subscription)
        await subscription.stop()
        assert await asyncio.wait_for(subscription.batch(max_items=1, max_wait_s=0), DEADLINE_S) == []
        await depth_becomes(bus, VALIDATED_QUEUE, 2)
        await subscription.ack(first)
    await depth_becomes(bus, VALIDATED_QUEUE, 2)


async def test_stop_ends_a_batch_that_waits(bus: Bus) -> None:
    async with bus.subscribe(VALIDATED_QUEUE, prefetch=10) as subscription:
        waiting = asyncio.create_task(subscription.batch(max_items=1, max_wait_s=1))
        await asyncio.wait({waiting}, timeout=0.05)
        await subscription.stop()
        assert await asyncio.wait_for(waiting, DEADLINE_S) == []


async def test_a_watch_sees_what_matches_from_now_on(bus: Bus, other: Bus) -> None:
    await publish(other, 0, routing_key=EMBEDDING_COMPLETED)
    async with bus.watch("embedding.*") as events:
        await publish(other, 1, routing_key=EMBEDDING_COMPLETED)
        await publish(other, 2, routing_key=TASK_VALIDATED)
        await publish(other, 3, routing_key=EMBEDDING_INVALIDATED)
        async with asyncio.timeout(DEADLINE_S):
            seen = [await anext(events), await anext(events)]
    assert [(d.event_type, json.loads(d.body)["n"]) for d in seen] == [
        (EMBEDDING_COMPLETED, 1),
        (EMBEDDING_INVALIDATED, 3),
    ]


async def test_published_events_can_be_looked_back_at(bus: Bus) -> None:
    await publish(bus, 1, routing_key=EMBEDDING_COMPLETED)
    await publish(bus, 2, routing_key="answer.recalled")
    async with bus.subscribe(PUBLISHED_QUEUE, prefetch=10) as published:
        assert [d.event_type for d in await take(published, 2)] == [EMBEDDING_COMPLETED, "answer.recalled"]


async def test_looking_back_takes_nothing_and_disturbs_no_order(bus: Bus) -> None:
    assert await bus.published() == []
    await publish(bus, 1, 2, 3, routing_key=EMBEDDING_COMPLETED)
    await depth_becomes(bus, PUBLISHED_QUEUE, 3)
    looks = [await bus.published()]
    await depth_becomes(bus, PUBLISHED_QUEUE, 3)
    looks.append(await bus.published())
    await depth_becomes(bus, PUBLISHED_QUEUE, 3)
    async with bus.subscribe(PUBLISHED_QUEUE, prefetch=10) as published:
        taken = [delivery.body for delivery in await take(published, 3)]
    assert looks == [taken, taken]


async def test_the_depth_counts_what_waits(bus: Bus) -> None:
    assert await bus.depth(VALIDATED_QUEUE) == 0
    await publish(bus, 1, 2, 3)
    await depth_becomes(bus, VALIDATED_QUEUE, 3)
    async with bus.subscribe(VALIDATED_QUEUE, prefetch=1) as subscription:
        held = await take_one(subscription)
        await depth_becomes(bus, VALIDATED_QUEUE, 2)
        await subscription.ack(held)


@pytest.mark.parametrize("body", [b"\xff\xfe not UTF-8 \x00", b"", b'{"half": ', "käse".encode("latin-1")])
async def test_a_body_passes_through_every_move_unchanged(broker: Broker, bus: Bus, body: bytes) -> None:
    await broker.inject(body)
    async with bus.subscribe(VALIDATED_QUEUE, prefetch=10) as subscription:
        delivery = await take_one(subscription)
        await subscription.dead_letter(delivery, reason="unreadable")
    async with bus.subscribe(DEAD_LETTERS_QUEUE, prefetch=10) as dead_letters:
        dead = await take_one(dead_letters)
    assert delivery.body == dead.body == body


async def test_a_command_reaches_the_writer(bus: Bus) -> None:
    await bus.command({"artifact_id": "a"}, event_id="c1")
    async with bus.subscribe(COMMANDS_QUEUE, prefetch=1) as commands:
        command = await take_one(commands)
    assert (command.event_type, json.loads(command.body)) == (EMBED_COMMAND, {"artifact_id": "a"})


async def test_an_event_that_no_queue_takes_is_refused(bus: Bus) -> None:
    with pytest.raises(BrokerUnavailable, match="no queue is bound"):
        await publish(bus, 1, routing_key="nobody.listens")
    await publish(bus, 2)
    assert await bus.depth(VALIDATED_QUEUE) == 1


async def test_an_unknown_queue_is_a_configuration_error(bus: Bus) -> None:
    with pytest.raises(ConfigurationError, match="rag-service-evnets"):
        await bus.subscribe("rag-service-evnets", prefetch=1).__aenter__()


async def test_hundreds_of_publishes_in_flight_all_arrive(bus: Bus) -> None:
    await asyncio.gather(*(publish(bus, number) for number in range(300)))
    await bus.ping()
    async with bus.subscribe(VALIDATED_QUEUE, prefetch=400) as subscription:
        deliveries = await take(subscription, 300)
        await asyncio.gather(*(subscription.ack(delivery) for delivery in deliveries))
    assert sorted(numbers(deliveries)) == list(range(300))
    assert await bus.depth(VALIDATED_QUEUE) == 0


# ---------------------------------------------------------------------------------------------------- memory alone


async def test_memory_redelivers_and_the_stale_acknowledgement_is_ignored() -> None:
    bus = MemoryBus()
    await publish(bus, 1)
    async with bus.subscribe(VALIDATED_QUEUE, prefetch=10) as subscription:
        stale = await take_one(subscription)
        assert bus.redeliver_unacked() == 1
        await subscription.ack(stale)
        again = await take_one(subscription)
        await subscription.ack(stale)
        assert (again.redelivered, again.body) == (True, stale.body)
    assert await bus.depth(VALIDATED_QUEUE) == 1


async def test_memory_duplicates_on_demand() -> None:
    bus = MemoryBus()
    await publish(bus, 1, 2)
    bus.duplicate_next(1)
    async with bus.subscribe(VALIDATED_QUEUE, prefetch=10) as subscription:
        assert numbers(await take(subscription, 3)) == [1, 2, 1]
        assert await is_quiet(subscription)


async def test_memory_reorders_the_same_way_for_the_same_seed() -> None:
    orders = []
    for _ in range(2):
        bus = MemoryBus()
        await publish(bus, *range(20))
        bus.shuffle(seed=3)
        async with bus.subscribe(VALIDATED_QUEUE, prefetch=20) as subscription:
            orders.append(numbers(await take(subscription, 20)))
    assert orders[0] == orders[1] != list(range(20))
    assert sorted(orders[0]) == list(range(20))


async def test_memory_keeps_the_newest_published_events() -> None:
    bus = MemoryBus()
    await publish(bus, *range(PUBLISHED_MAX_MESSAGES + 5), routing_key=EMBEDDING_COMPLETED)
    async with bus.subscribe(PUBLISHED_QUEUE, prefetch=1) as published:
        assert await bus.depth(PUBLISHED_QUEUE) == PUBLISHED_MAX_MESSAGES
        assert numbers(await take(published)) == [5]


# ---------------------------------------------------------------------------------------------------- SQLite alone

CONSUMER_PROGRAM = """
import asyncio, sys
from pathlib import Path
from dats_common.adapters.sqlite_bus import open_sqlite_bus
async def main():
    async with open_sqlite_bus(Path(sys.argv[1])) as bus, bus.subscribe(sys.argv[2], prefetch=10) as subscription:
        print("ready", flush=True)
        while True:
            for delivery in await subscription.batch(max_items=10, max_wait_s=0):
                print(delivery.body.decode(), flush=True)
asyncio.run(main())
"""


@asynccontextmanager
async def consumer_process(path: Path, queue: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CONSUMER_PROGRAM, str(path), queue, stdout=subprocess.PIPE
    )
    try:
        assert await line(process) == "ready"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), DEADLINE_S)).decode().strip()


@pytest.mark.parametrize("queue", [VALIDATED_QUEUE, TAINTS_QUEUE])
async def test_sqlite_messages_of_a_killed_process_come_to_the_survivor(tmp_path: Path, queue: str) -> None:
    path = tmp_path / "bus.sqlite"
    key = {VALIDATED_QUEUE: TASK_VALIDATED, TAINTS_QUEUE: ARTIFACT_TAINTED}[queue]
    async with (
        consumer_process(path, queue) as process,
        open_sqlite_bus(path) as bus,
        bus.subscribe(queue, prefetch=1) as survivor,
    ):
        # The survivor takes one itself where it may, so that the other process has to have the rest.
        await publish(bus, 1, 2, routing_key=key)
        held = [] if queue == VALIDATED_QUEUE else await take(survivor)
        theirs = [await line(process) for _ in range(2 - len(held))]
        for delivery in held:
            await survivor.ack(delivery)
        assert await is_quiet(survivor)
        os.kill(process.pid, signal.SIGKILL)
        killed = time.monotonic()
        deliveries = []
        for _ in theirs:
            deliveries.append(await take_one(survivor))
            await survivor.ack(deliveries[-1])
        took_over_s = time.monotonic() - killed
    assert [d.body.decode() for d in deliveries] == theirs
    assert all(d.redelivered for d in deliveries)
    assert took_over_s < 4


async def test_sqlite_a_publish_wakes_another_process_at_once(tmp_path: Path) -> None:
    path = tmp_path / "bus.sqlite"
    delays_s = []
    async with consumer_process(path, TAINTS_QUEUE) as process, open_sqlite_bus(path) as bus:
        for number in range(9):
            await publish(bus, number, routing_key=ARTIFACT_TAINTED)
            published = time.monotonic()
            await line(process)
            delays_s.append(time.monotonic() - published)
    median_s = sorted(delays_s)[len(delays_s) // 2]
    assert median_s < BEAT_S / 2  # noticed, not found by the regular look


async def test_sqlite_messages_outlive_the_process(tmp_path: Path) -> None:
    async with open_sqlite_bus(tmp_path / "bus.sqlite") as bus:
        await publish(bus, 1)
    async with (
        open_sqlite_bus(tmp_path / "bus.sqlite") as bus,
        bus.subscribe(VALIDATED_QUEUE, prefetch=1) as subscription,
    ):
        assert numbers(await take(subscription)) == [1]


async def test_sqlite_a_file_that_cannot_be_opened_is_an_unavailable_broker(tmp_path: Path) -> None:
    (tmp_path / "bus.sqlite").mkdir()
    with pytest.raises(BrokerUnavailable):
        await open_sqlite_bus(tmp_path / "bus.sqlite").__aenter__()


async def test_sqlite_a_watch_leaves_nothing_behind(tmp_path: Path) -> None:
    async with open_sqlite_bus(tmp_path / "bus.sqlite") as bus:
        async with bus.watch("embedding.*"):
            await publish(bus, 1, routing_key=EMBEDDING_COMPLETED)
        await publish(bus, 2, routing_key=EMBEDDING_COMPLETED)
        assert await count_rows(bus, tmp_path / "bus.sqlite") == 2


async def count_rows(bus: SqliteBus, path: Path) -> int:
    import sqlite3
    from contextlib import closing

    await bus.ping()
    with closing(sqlite3.connect(path)) as database:
        return int(database.execute("SELECT count(*) FROM message").fetchone()[0])


# -------------------------------------------------------------------------------------------------- RabbitMQ alone


@pytest.mark.rabbitmq
async def test_rabbitmq_a_publish_without_its_queue_is_refused(rabbitmq: RabbitServer) -> None:
    await purge(rabbitmq.url)
    async with (
        open_rabbitmq(rabbitmq.url, connect_timeout_s=DEADLINE_S) as bus,
        await aio_pika.connect(rabbitmq.url) as raw,
    ):
        channel = await raw.channel()
        await channel.queue_delete(PUBLISHED_QUEUE)
        with pytest.raises(BrokerUnavailable, match="no queue is bound"):
            await publish(bus, 1, routing_key=EMBEDDING_COMPLETED)
        await publish(bus, 2)
    async with open_rabbitmq(rabbitmq.url, connect_timeout_s=DEADLINE_S) as bus:
        await publish(bus, 3, routing_key=EMBEDDING_COMPLETED)
        assert await bus.depth(PUBLISHED_QUEUE) == 1


@pytest.mark.rabbitmq
async def test_rabbitmq_a_retry_that_its_queue_does_not_take_comes_again(rabbitmq: RabbitServer) -> None:
    await purge(rabbitmq.url)
    async with (
        open_rabbitmq(rabbitmq.url, connect_timeout_s=DEADLINE_S) as bus,
        bus.subscribe(VALIDATED_QUEUE, prefetch=1) as subscription,
        await aio_pika.connect(rabbitmq.url) as raw,
    ):
        await (await raw.channel()).queue_delete(retry_queue(VALIDATED_QUEUE, 1))
        await publish(bus, 1)
        await subscription.retry(await take_one(subscription), delay_s=1)
        again = await take_one(subscription)
        assert (again.attempt, again.redelivered) == (1, True)


@pytest.mark.rabbitmq
async def test_rabbitmq_a_queue_with_other_properties_is_a_configuration_error(rabbitmq: RabbitServer) -> None:
    await purge(rabbitmq.url)
    async with await aio_pika.connect(rabbitmq.url) as raw:
        channel = await raw.channel()
        await channel.queue_delete(DEAD_LETTERS_QUEUE)
        await channel.declare_queue(DEAD_LETTERS_QUEUE, durable=True)
        try:
            with pytest.raises(ConfigurationError, match="other properties"):
                await open_rabbitmq(rabbitmq.url, connect_timeout_s=DEADLINE_S).__aenter__()
        finally:
            await channel.queue_delete(DEAD_LETTERS_QUEUE)


@pytest.mark.rabbitmq
async def test_rabbitmq_wrong_credentials_are_a_configuration_error(node: RabbitNode) -> None:
    url = node.url.replace("guest:guest", "guest:wrong")
    with pytest.raises(ConfigurationError, match="credentials") as caught:
        await open_rabbitmq(url, connect_timeout_s=DEADLINE_S).__aenter__()
    assert "wrong" not in str(caught.value)


@pytest.mark.rabbitmq
async def test_rabbitmq_an_absent_broker_is_reported_and_waited_for_in_bounds(unused_tcp_port: int) -> None:
    waits: list[float] = []
    with pytest.raises(BrokerUnavailable):
        await open_rabbitmq(
            f"amqp://127.0.0.1:{unused_tcp_port}/",
            connect_timeout_s=1,
            report=lambda waited_s, _: waits.append(waited_s),
        ).__aenter__()
    assert len(waits) == 1


@pytest.mark.rabbitmq
async def test_rabbitmq_a_closed_connection_is_opened_again(node: RabbitNode) -> None:
    await purge(node.url)
    async with (
        open_rabbitmq(node.url, connect_timeout_s=DEADLINE_S) as bus,
        bus.subscribe(VALIDATED_QUEUE, prefetch=10) as subscription,
    ):
        await publish(bus, 1)
        stale = await take_one(subscription)
        await asyncio.to_thread(node.close_connections)
        again = await take_one(subscription)
        await subscription.ack(stale)
        assert (again.redelivered, numbers([again])) == (True, [1])
        await subscription.ack(again)
        await publish_stubbornly(bus, 2)
        assert numbers(await take(subscription)) == [2]


@pytest.mark.rabbitmq
async def test_rabbitmq_of_several_nodes_one_that_answers_is_found(node: RabbitNode, unused_tcp_port: int) -> None:
    await purge(node.url)
    away = f"amqp://guest:a,comma@127.0.0.1:{unused_tcp_port}/"
    for nodes in (f"{away},{node.url}", f"{node.url},{away}", f"{away},{away},{node.url}"):
        async with (
            open_rabbitmq(nodes, connect_timeout_s=DEADLINE_S) as bus,
            bus.subscribe(VALIDATED_QUEUE, prefetch=10) as subscription,
        ):
            await publish(bus, 1)
            assert numbers(await take(subscription)) == [1]


@pytest.mark.rabbitmq
async def test_rabbitmq_what_arrived_just_before_its_connection_was_lost_is_not_handed_out(node: RabbitNode) -> None:
    await purge(node.url)
    async with (
        open_rabbitmq(node.url, connect_timeout_s=DEADLINE_S) as bus,
        bus.subscribe(VALIDATED_QUEUE, prefetch=10) as subscription,
    ):
        await bus.publish(TASK_VALIDATED, {"n": 1}, event_id="1")
        (stale,) = await subscription.batch(max_items=1, max_wait_s=0)
        await asyncio.to_thread(node.close_connections)
        (again,) = await asyncio.wait_for(subscription.batch(max_items=1, max_wait_s=0), DEADLINE_S)
        assert isinstance(subscription, RabbitSubscription)
        # A process that was paused finds both at once: messages that it had received, and that nobody waits for them.
        await subscription._receive(stale.handle)
        await bus.publish(TASK_VALIDATED, {"n": 2}, event_id="2")
        (second,) = await asyncio.wait_for(subscription.batch(max_items=2, max_wait_s=QUIET_S), DEADLINE_S)
        assert (again.redelivered, json.loads(second.body)) == (True, {"n": 2})
        await subscription.ack(stale)
        await subscription.ack(again)
        await subscription.ack(second)


@pytest.mark.rabbitmq
async def test_rabbitmq_a_deleted_queue_is_declared_and_consumed_again(rabbitmq: RabbitServer) -> None:
    await purge(rabbitmq.url)
    async with (
        open_rabbitmq(rabbitmq.url, connect_timeout_s=DEADLINE_S) as bus,
        bus.subscribe(TAINTS_QUEUE, prefetch=10) as subscription,
        await aio_pika.connect(rabbitmq.url) as raw,
    ):
        await (await raw.channel()).queue_delete(TAINTS_QUEUE)
        await publish_stubbornly(bus, 1, routing_key=ARTIFACT_TAINTED)
        assert numbers(await take(subscription)) == [1]


@pytest.mark.rabbitmq
async def test_rabbitmq_a_paused_broker_fails_the_publish_in_time(node: RabbitNode) -> None:
    await purge(node.url)
    async with open_rabbitmq(node.url, publish_timeout_s=0.5, connect_timeout_s=DEADLINE_S) as bus:
        await publish(bus, 1)
        node.pause()
        try:
            started = time.monotonic()
            with pytest.raises(BrokerUnavailable):
                await publish(bus, 2)
            waited_s = time.monotonic() - started
        finally:
            node.resume()
        assert waited_s < 2
        await publish_stubbornly(bus, 3)


@pytest.mark.rabbitmq
@pytest.mark.parametrize("how", ["restart", "kill"])
async def test_rabbitmq_a_restart_in_the_middle_loses_nothing(node: RabbitNode, how: str) -> None:
    await purge(node.url)
    total = 400
    seen: set[int] = set()
    async with (
        open_rabbitmq(node.url, publish_timeout_s=2, connect_timeout_s=DEADLINE_S) as bus,
        bus.subscribe(VALIDATED_QUEUE, prefetch=20) as subscription,
    ):

        async def produce() -> None:
            for number in range(total):
                await publish_stubbornly(bus, number, timeout_s=60)

        async def consume() -> None:
            while len(seen) < total:
                for delivery in await subscription.batch(max_items=10, max_wait_s=0.02):
                    await subscription.ack(delivery)
                    seen.update(numbers([delivery]))

        async with asyncio.timeout(90), asyncio.TaskGroup() as group:
            group.create_task(produce())
            group.create_task(consume())
            await eventually(lambda: asyncio.sleep(0, len(seen) > 50), "some work done")
            if how == "kill":
                node.kill9()
                await asyncio.to_thread(node.start)
            else:
                await asyncio.to_thread(node.restart)
            assert len(seen) < total  # it was in the middle
    assert seen == set(range(total))


async def publish_stubbornly(
    bus: Bus, number: int, *, routing_key: str = TASK_VALIDATED, timeout_s: float = DEADLINE_S
) -> None:
    """As the relay does: until it is confirmed."""
    async with asyncio.timeout(timeout_s):
        while True:
            try:
                await publish(bus, number, routing_key=routing_key)
            except BrokerUnavailable:
                await asyncio.sleep(0.1)
            else:
                return


PUBLISH_LATE = """
import asyncio, sys, time
from pathlib import Path
from dats_common.adapters.sqlite_bus import LEASE_S, open_sqlite_bus

async def main():
    async with open_sqlite_bus(Path(sys.argv[1])) as bus:
        await bus.publish("embedding.completed", {"data": {}}, event_id="late")

time.sleep(LEASE_S + 0.5)
asyncio.run(main())
"""


async def test_sqlite_a_watch_misses_nothing_while_its_loop_is_busy(tmp_path: Path) -> None:
    path = tmp_path / "bus.sqlite"
    async with open_sqlite_bus(path) as bus, bus.watch("embedding.*") as events:
        # On purpose on the loop: for longer than a consumer's lease nothing of ours is renewed.
        subprocess.run([sys.executable, "-c", PUBLISH_LATE, str(path)], check=True, timeout=60)
        async with asyncio.timeout(10):
            assert (await anext(events)).event_type == "embedding.completed"
