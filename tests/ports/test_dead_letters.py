"""What operators do with dead letters, on the in-memory twin, the laptop's SQLite queue and RabbitMQ alike."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import cast

import pytest
from servers import RabbitServer
from test_bus import DEADLINE_S, Broker, memory_broker, rabbitmq_broker, sqlite_broker

from dats_common.adapters.rabbitmq import DEAD_LETTERS_BYTES, open_rabbitmq
from dats_common.contracts.topology import DEAD_LETTERS_QUEUE, TASK_VALIDATED, VALIDATED_QUEUE
from dats_common.ports import Bus, OperatorsBus, Subscription
from dats_common.records import DeadLetter, Delivery

MANY = 45
"""Enough that an order by text ("10" before "2") or by hash shows."""


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
async def bus(broker: Broker) -> AsyncIterator[OperatorsBus]:
    async with broker.open() as bus:
        yield cast(OperatorsBus, bus)


async def receive(subscription: Subscription, count: int) -> list[Delivery]:
    got: list[Delivery] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(got) < count:
            got += await subscription.batch(max_items=count - len(got), max_wait_s=0.2)
    return got


async def die(bus: Bus, bodies: Sequence[str], *, reason: str = "data.content: is required") -> None:
    """Publish them as events, and let a consumer give each up at its first try."""
    for body in bodies:
        await bus.publish(TASK_VALIDATED, {"data": body}, event_id=body)
    async with bus.subscribe(VALIDATED_QUEUE, prefetch=len(bodies)) as subscription:
        for delivery in await receive(subscription, len(bodies)):
            await subscription.dead_letter(delivery, reason=reason)
    await lie_there(bus, len(bodies))


async def lie_there(bus: Bus, count: int) -> None:
    """So many dead letters, none of them in anybody's hand."""
    async with asyncio.timeout(DEADLINE_S):
        while await bus.depth(DEAD_LETTERS_QUEUE) != count:
            await asyncio.sleep(0.02)


async def bodies(bus: OperatorsBus, *, limit: int = 1000) -> list[str]:
    return [text_of(letter) for letter in await bus.dead_letters(limit=limit, with_bodies=True)]


def text_of(letter: DeadLetter) -> str:
    assert letter.body is not None
    return letter.body.decode().split('"')[3]


async def test_a_dead_letter_says_why_where_from_how_often_and_when(bus: OperatorsBus) -> None:
    await bus.publish(TASK_VALIDATED, {"data": "x"}, event_id="1")
    async with bus.subscribe(VALIDATED_QUEUE, prefetch=1) as subscription:
        [first] = await receive(subscription, 1)
        await subscription.retry(first, delay_s=1.0)
        [second] = await receive(subscription, 1)
        await subscription.dead_letter(second, reason="gave up after 2 attempts")
    await lie_there(bus, 1)
    [letter] = await bus.dead_letters(limit=10)
    assert letter.death.reason == "gave up after 2 attempts"
    assert (letter.death.source_queue, letter.death.attempts) == (VALIDATED_QUEUE, 2)
    assert letter.death.event_type == TASK_VALIDATED
    assert letter.death.first_died_at is not None
    assert letter.size_bytes == len(second.body)


async def test_content_is_handed_out_only_on_demand(bus: OperatorsBus) -> None:
    await die(bus, ["secret"])
    [closed] = await bus.dead_letters(limit=10)
    assert closed.body is None
    await lie_there(bus, 1)
    [opened] = await bus.dead_letters(limit=10, with_bodies=True)
    assert opened.body == b'{"data":"secret"}'
    assert "secret" not in repr(opened)


async def test_looking_takes_nothing_and_keeps_the_order(bus: OperatorsBus) -> None:
    names = [f"letter-{number}" for number in range(MANY)]
    await die(bus, names)
    for looked_at in (MANY, 12, 1, MANY):
        assert await bodies(bus, limit=looked_at) == names[:looked_at]
        await lie_there(bus, MANY)


async def test_one_letter_is_found_behind_others_without_disturbing_them(bus: OperatorsBus) -> None:
    names = [f"letter-{number}" for number in range(MANY)]
    await die(bus, names)
    last = (await bus.dead_letters(limit=MANY))[-1]
    await lie_there(bus, MANY)
    assert await bus.dead_letters(limit=5, only=[last.letter_id]) == [last]
    await lie_there(bus, MANY)
    assert await bodies(bus) == names


async def test_a_replayed_letter_comes_again_as_if_it_had_never_failed(bus: OperatorsBus) -> None:
    await die(bus, ["one", "two", "three"])
    letters = await bus.dead_letters(limit=10)
    await lie_there(bus, 3)
    assert await bus.replay_dead_letters(only=[letters[1].letter_id]) == [letters[1].letter_id]
    await lie_there(bus, 2)
    async with bus.subscribe(VALIDATED_QUEUE, prefetch=5) as subscription:
        [again] = await receive(subscription, 1)
        assert again.body == b'{"data":"two"}'
        assert (again.event_type, again.attempt) == (TASK_VALIDATED, 1)
        assert "x-reason" not in again.headers
        await subscription.dead_letter(again, reason="again")
    await lie_there(bus, 3)
    assert sorted(await bodies(bus)) == ["one", "three", "two"]


async def test_a_letter_that_dies_again_keeps_the_time_of_its_first_death(bus: OperatorsBus) -> None:
    await die(bus, ["one"])
    [first] = await bus.dead_letters(limit=1)
    await lie_there(bus, 1)
    await bus.replay_dead_letters()
    async with bus.subscribe(VALIDATED_QUEUE, prefetch=1) as subscription:
        [again] = await receive(subscription, 1)
        await subscription.dead_letter(again, reason="again")
    await lie_there(bus, 1)
    [second] = await bus.dead_letters(limit=1)
    assert second.death.reason == "again"
    assert second.death.first_died_at == first.death.first_died_at


async def test_everything_is_replayed_once_also_more_than_memory_may_hold(bus: OperatorsBus) -> None:
    filling = "x" * (DEAD_LETTERS_BYTES // 4)
    names = [f"letter-{number}-{filling}" for number in range(6)]
    await die(bus, names)
    assert len(set(await bus.replay_dead_letters())) == len(names)
    async with bus.subscribe(VALIDATED_QUEUE, prefetch=10) as subscription:
        came = [delivery.body.decode().split('"')[3] for delivery in await receive(subscription, len(names))]
        assert sorted(came) == sorted(names)
    await lie_there(bus, 0)


async def test_dropping_takes_only_what_was_named(bus: OperatorsBus) -> None:
    await die(bus, ["one", "two", "three"])
    letters = await bus.dead_letters(limit=10)
    await lie_there(bus, 3)
    assert await bus.drop_dead_letters(only=[letters[0].letter_id, "no such letter"]) == [letters[0].letter_id]
    await lie_there(bus, 2)
    assert await bodies(bus) == ["two", "three"]
    await lie_there(bus, 2)
    assert len(await bus.drop_dead_letters()) == 2
    await lie_there(bus, 0)
    assert await bus.dead_letters(limit=10) == []


async def test_a_letter_from_a_queue_that_is_not_ours_stays(bus: OperatorsBus) -> None:
    await die(bus, ["ours"])
    async with bus.subscribe(DEAD_LETTERS_QUEUE, prefetch=1) as subscription:
        [letter] = await receive(subscription, 1)
        # Given up while it was read as a dead letter: its source is the dead letters' queue itself.
        await subscription.dead_letter(letter, reason="moved by hand")
    await lie_there(bus, 1)
    assert await bus.replay_dead_letters() == []
    await lie_there(bus, 1)
    [stays] = await bus.dead_letters(limit=10)
    assert not stays.death.is_replayable


# ------------------------------------------------------------------------------------------------------ RabbitMQ only

DIES_BETWEEN_PUBLISH_AND_ACK = """
import asyncio, os, signal, sys
from dats_common.adapters.rabbitmq import RabbitBus, open_rabbitmq

class Publisher:
    def __init__(self, real):
        self.real = real

    async def publish(self, *message):
        await self.real.publish(*message)
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with open_rabbitmq(sys.argv[1], connect_timeout_s=20) as bus:
        doomed = RabbitBus(publisher=Publisher(bus._publisher), consumers=bus._consumers, call_timeout_s=10,
                           connect_timeout_s=20, report=print)
        await doomed.replay_dead_letters()

asyncio.run(main())
"""


@pytest.mark.rabbitmq
async def test_a_crash_between_publish_and_acknowledgement_leaves_a_letter_in_both(rabbitmq: RabbitServer) -> None:
    async with rabbitmq_broker(rabbitmq) as broker, broker.open() as opened:
        bus = cast(OperatorsBus, opened)
        await die(bus, ["one", "two"])
        replaying = subprocess.Popen(
            [sys.executable, "-c", DIES_BETWEEN_PUBLISH_AND_ACK, rabbitmq.url], env=dict(os.environ)
        )
        assert await asyncio.to_thread(replaying.wait, DEADLINE_S) == -signal.SIGKILL
        await lie_there(bus, 2)
        assert await bodies(bus) == ["one", "two"]
        async with bus.subscribe(VALIDATED_QUEUE, prefetch=5) as subscription:
            [copy] = await receive(subscription, 1)
            assert copy.body == b'{"data":"one"}'


@pytest.mark.rabbitmq
async def test_another_process_sees_what_died(rabbitmq: RabbitServer) -> None:
    async with rabbitmq_broker(rabbitmq) as broker, broker.open() as writer:
        await die(writer, ["one"])
        async with open_rabbitmq(rabbitmq.url, connect_timeout_s=DEADLINE_S) as operator:
            assert len(await operator.dead_letters(limit=10)) == 1
