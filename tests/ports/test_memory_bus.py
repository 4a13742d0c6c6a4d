"""What the bus in memory can do to its consumers, and the broker does: cut one connection and leave the others."""

from __future__ import annotations

from dats_common.adapters.memory_bus import MemoryBus, MemorySubscription
from dats_common.contracts.topology import ARTIFACT_TAINTED, TAINTS_QUEUE, TASK_VALIDATED, VALIDATED_QUEUE
from dats_common.ports import Subscription


def cut(subscription: Subscription) -> MemorySubscription:
    assert isinstance(subscription, MemorySubscription)
    subscription.disconnect()
    return subscription


async def test_what_a_cut_off_consumer_had_in_hand_comes_to_the_standby_and_its_ack_means_nothing() -> None:
    bus = MemoryBus()
    async with (
        bus.subscribe(VALIDATED_QUEUE, prefetch=10) as active,
        bus.subscribe(VALIDATED_QUEUE, prefetch=10) as standby,
    ):
        bus.inject(TASK_VALIDATED, b"{}")
        (lost,) = await active.batch(max_items=1, max_wait_s=0)
        cut(active)
        (again,) = await standby.batch(max_items=1, max_wait_s=0)
        await active.ack(lost)
        assert again.redelivered
        assert bus.queue(VALIDATED_QUEUE)
        await standby.ack(again)
        assert not bus.queue(VALIDATED_QUEUE)


async def test_a_consumer_that_comes_back_stands_behind_the_one_that_took_over() -> None:
    bus = MemoryBus()
    async with (
        bus.subscribe(VALIDATED_QUEUE, prefetch=10) as first,
        bus.subscribe(VALIDATED_QUEUE, prefetch=10) as second,
    ):
        returned = cut(first)
        returned.reconnect()
        assert isinstance(second, MemorySubscription)
        assert bus.serves(VALIDATED_QUEUE, second)
        assert not bus.serves(VALIDATED_QUEUE, returned)
        cut(second)
        assert bus.serves(VALIDATED_QUEUE, returned)


async def test_a_cut_off_consumer_gets_nothing_also_where_all_are_served() -> None:
    bus = MemoryBus()
    async with bus.subscribe(TAINTS_QUEUE, prefetch=10) as first, bus.subscribe(TAINTS_QUEUE, prefetch=10) as second:
        away = cut(first)
        bus.inject(ARTIFACT_TAINTED, b"{}")
        assert not bus.serves(TAINTS_QUEUE, away)
        assert len(await second.batch(max_items=1, max_wait_s=0)) == 1
