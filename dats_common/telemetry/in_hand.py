"""How old the work is that a writer has in hand. A broker does not say how long its first message has waited; the one
that was handed out first is older still, as long as queues are served in order."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from dats_common.contracts.readable import sent_at
from dats_common.ports import Bus, Subscription
from dats_common.records import Delivery
from dats_common.telemetry.metrics import WORK_QUEUES
from dats_common.telemetry.writer_metrics import WriterMetrics

_MOST_REMEMBERED = 10_000  # Messages that are to come again; many times what a writer has in hand.


@dataclass(frozen=True, slots=True)
class _Taken:
    delivery: Delivery
    at_s: float

    def age_s(self) -> float:
        sent = sent_at(self.delivery.body, timestamp_us=self.delivery.timestamp)
        return time.monotonic() - self.at_s if sent is None else max(0.0, time.time() - sent / 1e6)


class _InHand:
    """What was handed out of one queue and is not settled. What comes again is as old as when it came first."""

    def __init__(self) -> None:
        self._taken: dict[int, _Taken] = {}
        self._first_s: dict[str | int, float] = {}

    def take(self, delivery: Delivery) -> None:
        at_s = self._first_s.setdefault(_identity(delivery), time.monotonic())
        self._taken[id(delivery)] = _Taken(delivery, at_s)
        if len(self._first_s) > _MOST_REMEMBERED:
            del self._first_s[next(iter(self._first_s))]

    def let_go(self, delivery: Delivery) -> None:
        """It will come again."""
        self._taken.pop(id(delivery), None)

    def finish(self, delivery: Delivery) -> None:
        self.let_go(delivery)
        self._first_s.pop(_identity(delivery), None)

    def oldest_s(self) -> float:
        """Age of the oldest in seconds, 0 if there is none. Called by the thread that serves a scrape: it looks even if
        the loop hangs."""
        return max((each.age_s() for each in list(self._taken.values())), default=0.0)


def _identity(delivery: Delivery) -> str | int:
    return delivery.message_id or hash(delivery.body)


class MeasuredBus:
    """`ports.Bus` around another one."""

    def __init__(self, bus: Bus, metrics: WriterMetrics) -> None:
        self._bus = bus
        self._in_hand = {queue: _InHand() for queue in WORK_QUEUES}
        for queue, in_hand in self._in_hand.items():
            metrics.queue_oldest.labels(queue=queue).set_function(in_hand.oldest_s)

    async def publish(self, routing_key: str, body: Mapping[str, Any], *, event_id: str) -> None:
        """See `ports.Bus`."""
        await self._bus.publish(routing_key, body, event_id=event_id)

    async def command(self, body: Mapping[str, Any], *, event_id: str) -> None:
        """See `ports.Bus`."""
        await self._bus.command(body, event_id=event_id)

    @asynccontextmanager
    async def subscribe(self, queue: str, *, prefetch: int) -> AsyncIterator[Subscription]:
        """See `ports.Bus`."""
        async with self._bus.subscribe(queue, prefetch=prefetch) as subscription:
            yield _MeasuredSubscription(subscription, self._in_hand[queue])

    def watch(self, *routing_keys: str) -> AbstractAsyncContextManager[AsyncIterator[Delivery]]:
        """See `ports.Bus`."""
        return self._bus.watch(*routing_keys)

    async def depth(self, queue: str) -> int:
        """See `ports.Bus`."""
        return await self._bus.depth(queue)

    async def ping(self) -> None:
        """See `ports.Bus`."""
        await self._bus.ping()


class _MeasuredSubscription:
    """`ports.Subscription` around another one. What could not be settled is in hand still, and given back next."""

    def __init__(self, subscription: Subscription, in_hand: _InHand) -> None:
        self._subscription = subscription
        self._in_hand = in_hand

    async def batch(self, *, max_items: int, max_wait_s: float) -> list[Delivery]:
        batch = await self._subscription.batch(max_items=max_items, max_wait_s=max_wait_s)
        for delivery in batch:
            self._in_hand.take(delivery)
        return batch

    async def ack(self, delivery: Delivery) -> None:
        await self._subscription.ack(delivery)
        self._in_hand.finish(delivery)

    async def retry(self, delivery: Delivery, *, delay_s: float) -> None:
        await self._subscription.retry(delivery, delay_s=delay_s)
        self._in_hand.let_go(delivery)

    async def give_back(self, delivery: Delivery) -> None:
        await self._subscription.give_back(delivery)
        self._in_hand.let_go(delivery)

    async def hand_over(self, delivery: Delivery, *, queue: str) -> None:
        await self._subscription.hand_over(delivery, queue=queue)
        self._in_hand.let_go(delivery)

    async def dead_letter(self, delivery: Delivery, *, reason: str) -> None:
        await self._subscription.dead_letter(delivery, reason=reason)
        self._in_hand.finish(delivery)

    async def stop(self) -> None:
        await self._subscription.stop()
