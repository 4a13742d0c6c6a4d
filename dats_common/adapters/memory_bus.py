"""The bus in memory: the same promises as the broker within one event loop, and its misbehaviour on demand.

Time is the running loop's, so a simulated loop simulates the delays too.
"""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from dats_common.contracts.routing import (
    PUBLISHED,
    PUBLISHED_MAX_MESSAGES,
    QUEUE_NAMES,
    dead_letter_headers,
    death_of,
    destinations,
    is_single_active,
    matches,
    replayed_headers,
)
from dats_common.contracts.topology import (
    COMMANDS_EXCHANGE,
    DEAD_LETTERS_QUEUE,
    EMBED_COMMAND,
    EVENTS_EXCHANGE,
    PUBLISHED_QUEUE,
)
from dats_common.errors import BrokerUnavailable, ConfigurationError
from dats_common.ports import MOST_DEAD_LETTERS, Subscription
from dats_common.records import DeadLetter, Delivery
from dats_common.trace_context import trace_headers


@dataclass(slots=True, eq=False)
class _Message:
    """One message of one queue. `holder` has it in hand; `handouts` tells its deliveries apart."""

    body: bytes
    event_type: str
    message_id: str
    attempt: int = 1
    timestamp: int | None = None
    headers: dict[str, Any] = field(default_factory=dict)
    redelivered: bool = False
    visible_at: float = 0.0
    holder: MemorySubscription | None = None
    handouts: int = 0

    def copy(self) -> _Message:
        """The same message for another queue, held by nobody."""
        return _Message(
            body=self.body,
            event_type=self.event_type,
            message_id=self.message_id,
            attempt=self.attempt,
            timestamp=self.timestamp,
            headers=dict(self.headers),
            redelivered=self.redelivered,
        )

    def put_back(self) -> None:
        """Return it to its place in the queue; the delivery in hand is stale from here."""
        self.holder = None
        self.redelivered = True


@dataclass(frozen=True, slots=True, eq=False)
class _Handle:
    message: _Message
    handout: int


class MemorySubscription:
    """A consumer of `MemoryBus`."""

    def __init__(self, bus: MemoryBus, queue: str, *, prefetch: int) -> None:
        self._bus = bus
        self._queue = queue
        self._prefetch = prefetch
        self._stopped = False

    async def batch(self, *, max_items: int, max_wait_s: float) -> list[Delivery]:
        """See `ports.Subscription`."""
        while True:
            await self._available(1, timeout_s=None)
            await self._available(max_items, timeout_s=max_wait_s)
            taken = [self._hand_out(message) for message in self._takeable()[:max_items]]
            if taken or self._stopped:
                return taken

    async def ack(self, delivery: Delivery) -> None:
        """See `ports.Subscription`."""
        if self._settles(delivery):
            self._bus.queue(self._queue).remove(delivery.handle.message)
            self._bus.changed()

    async def give_back(self, delivery: Delivery) -> None:
        """See `ports.Subscription`."""
        if self._settles(delivery):
            delivery.handle.message.put_back()
            self._bus.changed()

    async def retry(self, delivery: Delivery, *, delay_s: float) -> None:
        """See `ports.Subscription`. The delay is exact."""
        if self._settles(delivery):
            again = self._moved(delivery, self._queue)
            again.attempt += 1
            again.visible_at = asyncio.get_running_loop().time() + delay_s

    async def hand_over(self, delivery: Delivery, *, queue: str) -> None:
        """See `ports.Subscription`."""
        if self._settles(delivery):
            self._moved(delivery, queue)

    async def dead_letter(self, delivery: Delivery, *, reason: str) -> None:
        """See `ports.Subscription`."""
        if self._settles(delivery):
            dead = self._moved(delivery, DEAD_LETTERS_QUEUE)
            dead.headers = dead_letter_headers(
                delivery.headers,
                reason=reason,
                source_queue=self._queue,
                attempts=delivery.attempt,
                event_type=delivery.event_type,
                at=round(asyncio.get_running_loop().time() * 1e6),
            )
            dead.attempt = 1

    async def stop(self) -> None:
        """See `ports.Subscription`. Nothing is buffered here: what is not in hand is in the queue."""
        self._stopped = True
        self._bus.leave(self._queue, self)

    async def close(self) -> None:
        """Stop; what was never settled goes back to the queue."""
        self._stopped = True
        self.disconnect()

    def disconnect(self) -> None:
        """The connection is lost: what is in hand comes again, to whoever is served then."""
        self._bus.leave(self._queue, self)
        for message in self._in_hand():
            message.put_back()
        self._bus.changed()

    def reconnect(self) -> None:
        """Consume again, behind those who consume already."""
        if not self._stopped:
            self._bus.join(self._queue, self)

    def _in_hand(self) -> list[_Message]:
        return [message for message in self._bus.queue(self._queue) if message.holder is self]

    def _takeable(self) -> list[_Message]:
        if self._stopped or not self._bus.serves(self._queue, self):
            return []
        now = asyncio.get_running_loop().time()
        waiting = [m for m in self._bus.queue(self._queue) if m.holder is None and m.visible_at <= now]
        return waiting[: self._prefetch - len(self._in_hand())]

    async def _available(self, wanted: int, *, timeout_s: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self._stopped and len(self._takeable()) < wanted:
                    await self._bus.change(self._queue)

    def _hand_out(self, message: _Message) -> Delivery:
        message.holder = self
        message.handouts += 1
        self._bus.duplicate(self._queue, message)
        return Delivery(
            body=message.body,
            event_type=message.event_type,
            received_s=asyncio.get_running_loop().time(),
            message_id=message.message_id,
            attempt=message.attempt,
            timestamp=message.timestamp,
            redelivered=message.redelivered,
            headers=dict(message.headers),
            handle=_Handle(message, message.handouts),
        )

    def _settles(self, delivery: Delivery) -> bool:
        handle: _Handle = delivery.handle
        return handle.message.holder is self and handle.handout == handle.message.handouts

    def _moved(self, delivery: Delivery, queue: str) -> _Message:
        message: _Message = delivery.handle.message
        moved = message.copy()
        moved.redelivered = False
        self._bus.queue(self._queue).remove(message)
        self._bus.queue(queue).append(moved)
        self._bus.changed()
        return moved


class MemoryBus:
    """`ports.Bus` for tests and simulation. Share one object among all who are to meet."""

    def __init__(self, *, new_id: Callable[[], str] = lambda: uuid.uuid4().hex) -> None:
        """Args: new_id: names messages and watches."""
        self._new_id = new_id
        self._queues: dict[str, list[_Message]] = {name: [] for name in sorted(QUEUE_NAMES)}
        self._consumers: dict[str, list[MemorySubscription]] = {}
        self._watches: dict[str, tuple[str, ...]] = {}
        self._duplicates = 0
        self._changed = asyncio.Event()

    # -- the port

    async def publish(self, routing_key: str, body: Mapping[str, Any], *, event_id: str) -> None:
        """See `ports.Bus`."""
        encoded = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        self.inject(routing_key, encoded, headers=trace_headers())

    async def command(self, body: Mapping[str, Any], *, event_id: str) -> None:
        """See `ports.Bus`."""
        encoded = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        self.inject(EMBED_COMMAND, encoded, exchange=COMMANDS_EXCHANGE, headers=trace_headers())

    @asynccontextmanager
    async def subscribe(self, queue: str, *, prefetch: int) -> AsyncIterator[Subscription]:
        """See `ports.Bus`. Raises: ConfigurationError: no such queue."""
        async with self._subscription(queue, prefetch=prefetch) as subscription:
            yield subscription

    @asynccontextmanager
    async def watch(self, *routing_keys: str) -> AsyncIterator[AsyncIterator[Delivery]]:
        """See `ports.Bus`."""
        name = f"watch.{self._new_id()}"
        self._queues[name], self._watches[name] = [], routing_keys
        try:
            async with self._subscription(name, prefetch=PUBLISHED_MAX_MESSAGES) as subscription:
                yield _acknowledged(subscription)
        finally:
            del self._queues[name], self._watches[name]

    async def depth(self, queue: str) -> int:
        """See `ports.Bus`. Messages that wait out a retry are not counted."""
        now = asyncio.get_running_loop().time()
        return sum(message.holder is None and message.visible_at <= now for message in self.queue(queue))

    async def ping(self) -> None:
        """Always there."""

    async def dead_letters(
        self, *, limit: int, only: Collection[str] | None = None, with_bodies: bool = False
    ) -> list[DeadLetter]:
        """See `ports.DeadLetters`."""
        return [_dead_letter(message, with_body=with_bodies) for message in self._dead(only)[:limit]]

    async def replay_dead_letters(self, *, only: Collection[str] | None = None) -> list[str]:
        """See `ports.DeadLetters`."""
        replayed = []
        for message in self._dead(only):
            death = death_of(message.headers, event_type=message.event_type)
            if death.is_replayable:
                again = message.copy()
                again.headers, again.redelivered = replayed_headers(message.headers), False
                self.queue(death.source_queue).append(again)
                self.queue(DEAD_LETTERS_QUEUE).remove(message)
                replayed.append(message.message_id)
        self.changed()
        return replayed

    async def published(self) -> list[bytes]:
        """See `ports.LookBack`."""
        return [message.body for message in self.queue(PUBLISHED_QUEUE)]

    async def drop_dead_letters(self, *, only: Collection[str] | None = None) -> list[str]:
        """See `ports.DeadLetters`."""
        dropped = self._dead(only)
        for message in dropped:
            self.queue(DEAD_LETTERS_QUEUE).remove(message)
        return [message.message_id for message in dropped]

    def _dead(self, only: Collection[str] | None) -> list[_Message]:
        waiting = [message for message in self.queue(DEAD_LETTERS_QUEUE) if message.holder is None][:MOST_DEAD_LETTERS]
        return [message for message in waiting if only is None or message.message_id in only]

    # -- what a foreign publisher and a misbehaving broker do

    def inject(
        self,
        routing_key: str,
        body: bytes,
        *,
        exchange: str = EVENTS_EXCHANGE,
        timestamp: int | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> None:
        """Publish raw bytes, as a foreign producer may. Raises: BrokerUnavailable: no queue is bound."""
        targets = destinations(exchange, routing_key)
        targets += [name for name, patterns in self._watches.items() if any(matches(p, routing_key) for p in patterns)]
        if not targets:
            raise BrokerUnavailable(f"publishing {routing_key}: no queue is bound")
        message = _Message(
            body=body,
            event_type=routing_key,
            message_id=self._new_id(),
            timestamp=timestamp,
            headers=dict(headers or {}),
        )
        for name in targets:
            self.queue(name).append(message.copy())
        del self.queue(PUBLISHED.name)[:-PUBLISHED_MAX_MESSAGES]
        self.changed()

    def redeliver_unacked(self) -> int:
        """Every consumer's connection is lost: what is in hand comes again. Returns how many messages."""
        held = [message for queue in self._queues.values() for message in queue if message.holder is not None]
        for message in held:
            message.put_back()
        self.changed()
        return len(held)

    def duplicate_next(self, count: int) -> None:
        """The next `count` deliveries each come once more."""
        self._duplicates += count

    def shuffle(self, seed: int) -> None:
        """Reorder what waits in every queue."""
        order = random.Random(seed)  # noqa: S311 - a reproducible order, not a secret
        for queue in self._queues.values():
            order.shuffle(queue)

    # -- for the subscriptions

    def queue(self, name: str) -> list[_Message]:
        """The messages of a queue, those in hand included. Raises: ConfigurationError."""
        if name not in self._queues:
            raise ConfigurationError(f"{name} is not a queue of this service")
        return self._queues[name]

    def serves(self, queue: str, subscription: MemorySubscription) -> bool:
        """Whether this consumer gets messages now, or stands by."""
        consumers = self._consumers[queue]
        return subscription in (consumers[:1] if is_single_active(queue) else consumers)

    def join(self, queue: str, subscription: MemorySubscription) -> None:
        """The consumer is served, or stands by behind the others."""
        consumers = self._consumers.setdefault(queue, [])
        if subscription not in consumers:
            consumers.append(subscription)
        self.changed()

    def leave(self, queue: str, subscription: MemorySubscription) -> None:
        """The consumer takes no more; a standby takes its place."""
        if subscription in self._consumers[queue]:
            self._consumers[queue].remove(subscription)
        self.changed()

    def duplicate(self, queue: str, message: _Message) -> None:
        """Add a second copy of a message that is being handed out, if one was asked for."""
        if self._duplicates:
            self._duplicates -= 1
            self.queue(queue).append(message.copy())
            self.changed()

    def changed(self) -> None:
        """Wake everybody who waits."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def change(self, queue: str) -> None:
        """Wait for a change, or until the next delayed message of the queue is due."""
        now = asyncio.get_running_loop().time()
        due = [message.visible_at - now for message in self.queue(queue) if message.visible_at > now]
        # Not asyncio.wait_for: before Python 3.12 it loses a cancellation that comes together with the event.
        with suppress(TimeoutError):
            async with asyncio.timeout(min(due, default=None)):
                await self._changed.wait()

    @asynccontextmanager
    async def _subscription(self, queue: str, *, prefetch: int) -> AsyncIterator[MemorySubscription]:
        self.queue(queue)
        subscription = MemorySubscription(self, queue, prefetch=prefetch)
        self.join(queue, subscription)
        try:
            yield subscription
        finally:
            await subscription.close()


def _dead_letter(message: _Message, *, with_body: bool) -> DeadLetter:
    return DeadLetter(
        letter_id=message.message_id,
        death=death_of(message.headers, event_type=message.event_type),
        size_bytes=len(message.body),
        body=message.body if with_body else None,
    )


async def _acknowledged(subscription: MemorySubscription) -> AsyncIterator[Delivery]:
    while deliveries := await subscription.batch(max_items=1, max_wait_s=0):
        for delivery in deliveries:
            await subscription.ack(delivery)
            yield delivery
