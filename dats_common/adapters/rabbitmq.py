"""The bus on RabbitMQ (3.10 or later, quorum queues), over aio-pika.

Two connections: one publishes, one consumes, so that a broker that blocks publishers still takes acknowledgements.
Each subscription owns a channel and a task that opens it again whenever it is lost.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

import aio_pika
import structlog
from aio_pika import DeliveryMode, ExchangeType, Message
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage, AbstractQueue
from aio_pika.exceptions import (
    CONNECTION_EXCEPTIONS,
    AuthenticationError,
    ChannelInvalidStateError,
    ChannelPreconditionFailed,
    DeliveryError,
    ProbableAuthenticationError,
    PublishError,
)

from dats_common.contracts.routing import (
    ATTEMPT_HEADER,
    PUBLISHED,
    PUBLISHED_MAX_MESSAGES,
    RETRY_RUNGS_S,
    dead_letter_headers,
    death_of,
    replayed_headers,
    retry_queue,
    rung_for,
)
from dats_common.contracts.topology import (
    COMMANDS_EXCHANGE,
    DEAD_LETTERS_QUEUE,
    EMBED_COMMAND,
    EVENTS_EXCHANGE,
    QUEUES,
    Queue,
)
from dats_common.errors import BrokerUnavailable, ConfigurationError
from dats_common.ports import MOST_DEAD_LETTERS, DeadLetter, Delivery, Subscription

log = structlog.get_logger(component="rabbitmq")

T = TypeVar("T")

DEFAULT_EXCHANGE = ""

DELIVERY_LIMIT = 1_000_000
"""In effect none. The broker charges every prefetched message of every crash, so poison is counted by attempts instead.
Source: https://www.rabbitmq.com/docs/quorum-queues#poison-message-handling (RabbitMQ 4 defaults to 20)."""

WATCH_MAX_MESSAGES = 10_000
WATCH_PREFETCH = 256

DEAD_LETTERS_BYTES = 32 * 1024 * 1024
"""How much of those that are to be settled is in our memory at a time."""

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
REPORT_EVERY_S = 5.0

BETWEEN_NODES = re.compile(r",(?=amqps?://)")  # a bare comma may stand in a password

BROKER_HEADERS = ("x-death", "x-first-death-", "x-last-death-", "x-delivery-count")
"""What the broker adds by itself; carried along, it would take part in its detection of dead-letter cycles."""

Report = Callable[[float, BrokerUnavailable], None]


def report_wait(waited_s: float, error: BrokerUnavailable) -> None:
    """Log that the broker is still away."""
    log.warning("broker_waited", waited_s=round(waited_s, 1), error=str(error))


@contextmanager
def _translated(doing: str) -> Iterator[None]:
    """Library errors become ours, once. A timeout belongs inside."""
    try:
        yield
    except (AuthenticationError, ProbableAuthenticationError) as error:
        raise ConfigurationError("RabbitMQ refused the credentials: check DATS_RABBITMQ_URL") from error
    except ChannelPreconditionFailed as error:
        raise ConfigurationError(
            f"{doing}: a queue or exchange of that name exists with other properties; delete or rename it ({error})"
        ) from error
    except PublishError as error:
        raise BrokerUnavailable(f"{doing}: no queue is bound") from error
    except (*CONNECTION_EXCEPTIONS, TimeoutError) as error:
        raise BrokerUnavailable(f"{doing}: {type(error).__name__}") from error
    except asyncio.CancelledError as error:
        # The library rejects calls in flight with CancelledError when their channel dies; only a real cancellation
        # is counted on the task.
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise BrokerUnavailable(f"{doing}: the channel was closed") from error


async def _persist(attempt: Callable[[], Awaitable[T]], *, within_s: float | None, report: Report) -> T:
    """Repeat with back-off until it works. Raises: BrokerUnavailable: not within `within_s` (None: for ever)."""
    clock = asyncio.get_running_loop().time
    started, reported, pause_s = clock(), float("-inf"), FIRST_PAUSE_S
    while True:
        try:
            return await attempt()
        except BrokerUnavailable as error:
            now = clock()
            if within_s is not None and now + pause_s - started > within_s:
                raise
            if now - reported >= REPORT_EVERY_S:
                report(now - started, error)
                reported = now
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


# -------------------------------------------------------------------------------------------------------- topology


async def _declare_topology(channel: AbstractChannel) -> None:
    """Everything of `contracts.topology`; harmless when it exists already."""
    await channel.declare_exchange(EVENTS_EXCHANGE, ExchangeType.TOPIC, durable=True)
    await channel.declare_exchange(COMMANDS_EXCHANGE, ExchangeType.DIRECT, durable=True)
    await _declare_dead_letters(channel)
    for queue in QUEUES:
        await _declare_consumed(channel, queue)
        for rung_s in RETRY_RUNGS_S:
            await _declare_rung(channel, queue.name, rung_s)
    await _declare_published(channel)


async def _declare_quorum(channel: AbstractChannel, name: str, arguments: Mapping[str, Any]) -> AbstractQueue:
    return await channel.declare_queue(name, durable=True, arguments={"x-queue-type": "quorum", **arguments})


def _to_queue(name: str) -> dict[str, Any]:
    """Dead-letter to a queue without a moment in which the message is in neither."""
    return {
        "x-dead-letter-exchange": DEFAULT_EXCHANGE,
        "x-dead-letter-routing-key": name,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",  # at-least-once needs it
    }


async def _declare_dead_letters(channel: AbstractChannel) -> AbstractQueue:
    return await _declare_quorum(channel, DEAD_LETTERS_QUEUE, {"x-delivery-limit": DELIVERY_LIMIT})


async def _declare_consumed(channel: AbstractChannel, queue: Queue) -> AbstractQueue:
    arguments = {"x-delivery-limit": DELIVERY_LIMIT, **_to_queue(DEAD_LETTERS_QUEUE)}
    if queue.single_active:
        arguments["x-single-active-consumer"] = True
    return await _bound(await _declare_quorum(channel, queue.name, arguments), queue)


async def _declare_rung(channel: AbstractChannel, queue: str, rung_s: int) -> None:
    await _declare_quorum(channel, retry_queue(queue, rung_s), {"x-message-ttl": rung_s * 1000, **_to_queue(queue)})


async def _declare_published(channel: AbstractChannel) -> AbstractQueue:
    arguments = {"x-max-length": PUBLISHED_MAX_MESSAGES, "x-overflow": "drop-head", "x-delivery-limit": DELIVERY_LIMIT}
    return await _bound(await _declare_quorum(channel, PUBLISHED.name, arguments), PUBLISHED)


async def _bound(declared: AbstractQueue, queue: Queue) -> AbstractQueue:
    for routing_key in queue.routing_keys:
        await declared.bind(queue.exchange, routing_key)
    return declared


async def _declare_watch(channel: AbstractChannel, routing_keys: tuple[str, ...]) -> AbstractQueue:
    queue = await channel.declare_queue(
        exclusive=True, auto_delete=True, arguments={"x-max-length": WATCH_MAX_MESSAGES}
    )
    for routing_key in routing_keys:
        await queue.bind(EVENTS_EXCHANGE, routing_key)
    return queue


async def _declare_known(channel: AbstractChannel, name: str) -> AbstractQueue:
    if name == DEAD_LETTERS_QUEUE:
        return await _declare_dead_letters(channel)
    if name == PUBLISHED.name:
        return await _declare_published(channel)
    queue = next((queue for queue in QUEUES if queue.name == name), None)
    if queue is None:
        raise ConfigurationError(f"{name} is not a queue of this service")
    return await _declare_consumed(channel, queue)


# ------------------------------------------------------------------------------------------- connection and publisher


class _Link:
    """One connection, opened when first needed and again after it was lost, to any node of the cluster."""

    def __init__(self, url: str, *, name: str, heartbeat_s: int, timeout_s: float) -> None:
        self._nodes = deque(BETWEEN_NODES.split(url))  # the first is tried first: it answered last
        self._name = name
        self._heartbeat_s = heartbeat_s
        self._timeout_s = timeout_s
        self._connection: AbstractConnection | None = None
        self._turn = asyncio.Lock()

    async def channel(self, *, confirms: bool) -> AbstractChannel:
        """A fresh channel. Library errors pass through: callers translate them with what they were doing."""
        connection = await self._open()
        channel = connection.channel(publisher_confirms=confirms, on_return_raises=confirms)
        await channel.initialize()
        return channel

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(BrokerUnavailable), _translated("closing"):
                async with asyncio.timeout(self._timeout_s):
                    await connection.close()

    async def _open(self) -> AbstractConnection:
        async with self._turn:
            if self._connection is None or not self._connection.connected.is_set():
                await self.close()
                self._connection = await self._connect()
            return self._connection

    async def _connect(self) -> AbstractConnection:
        """To the first node that answers. One that hangs uses up the caller's time, and is the last one next time."""
        for nodes_left in reversed(range(len(self._nodes))):
            try:
                return await aio_pika.connect(
                    self._nodes[0],
                    timeout=self._timeout_s,
                    heartbeat=self._heartbeat_s,
                    client_properties={"connection_name": self._name},
                )
            except BaseException as error:
                self._nodes.rotate(-1)
                if not nodes_left or not isinstance(error, CONNECTION_EXCEPTIONS):
                    raise
        raise AssertionError("a URL has at least one part")


async def _close_quietly(channel: AbstractChannel, *, timeout_s: float) -> None:
    """Close a channel whose end matters to nobody any more."""
    with suppress(BrokerUnavailable), _translated("closing a channel"):
        async with asyncio.timeout(timeout_s):
            await channel.close()


class _Publisher:
    """Mandatory, persistent, confirmed publishes; any number in flight on one channel."""

    def __init__(self, link: _Link, *, publish_timeout_s: float, call_timeout_s: float) -> None:
        self._link = link
        self._publish_timeout_s = publish_timeout_s
        self._call_timeout_s = call_timeout_s
        self._channel: AbstractChannel | None = None
        self._turn = asyncio.Lock()

    async def open(self) -> None:
        """Connect and declare the topology. Raises: BrokerUnavailable; ConfigurationError."""
        with _translated("connecting to RabbitMQ"):
            async with asyncio.timeout(self._call_timeout_s):
                await self._ready_channel()

    async def publish(self, exchange: str, routing_key: str, message: Message) -> None:
        """Returns once a queue has taken it. Raises: BrokerUnavailable."""
        with _translated(f"publishing {message.type}"):
            async with asyncio.timeout(self._publish_timeout_s):
                channel = await self._ready_channel()
                target = await channel.get_exchange(exchange, ensure=False)
                try:
                    await target.publish(message, routing_key, mandatory=True)
                except PublishError:  # returned: the channel is not to blame
                    raise
                except DeliveryError:
                    # A channel that met a quorum queue without a leader is refused for good (seen on RabbitMQ 3.10),
                    # also once there is one again. Over a new channel the queue takes everything.
                    await self._replace(channel)
                    raise

    async def _replace(self, channel: AbstractChannel) -> None:
        """The next publish opens another; what is in flight on this one is refused, as after a lost connection."""
        if self._channel is channel:
            self._channel = None
            await _close_quietly(channel, timeout_s=self._call_timeout_s)

    async def _ready_channel(self) -> AbstractChannel:
        async with self._turn:
            if self._channel is None or self._channel.is_closed:
                channel = await self._link.channel(confirms=True)
                try:
                    await _declare_topology(channel)
                except BaseException:
                    await _close_quietly(channel, timeout_s=self._call_timeout_s)
                    raise
                self._channel = channel
            return self._channel


# -------------------------------------------------------------------------------------------------------- messages


def _event_message(event_type: str, body: Mapping[str, Any]) -> Message:
    # A fresh message id for each attempt: two publishes in flight under one id hide each other's returns.
    return Message(
        body=json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(),
        content_type="application/json",
        delivery_mode=DeliveryMode.PERSISTENT,
        message_id=uuid.uuid4().hex,
        type=event_type,
    )


def _copied_message(delivery: Delivery, headers: Mapping[str, Any]) -> Message:
    source: AbstractIncomingMessage = delivery.handle
    return Message(
        body=delivery.body,
        headers={name: value for name, value in headers.items() if not name.startswith(BROKER_HEADERS)},
        content_type=source.content_type,
        content_encoding=source.content_encoding,
        correlation_id=source.correlation_id,
        delivery_mode=DeliveryMode.PERSISTENT,
        message_id=uuid.uuid4().hex,
        timestamp=source.timestamp,
        type=delivery.event_type,
    )


def _delivery(message: AbstractIncomingMessage) -> Delivery:
    attempt = message.headers.get(ATTEMPT_HEADER)
    return Delivery(
        body=message.body,
        event_type=message.type or message.routing_key or "",
        message_id=message.message_id,
        attempt=attempt if isinstance(attempt, int) and attempt > 0 else 1,
        timestamp=None if message.timestamp is None else int(message.timestamp.timestamp()) * 1_000_000,
        redelivered=bool(message.redelivered),
        headers=dict(message.headers),
        handle=message,
    )


def _dead_letter(message: AbstractIncomingMessage, *, with_body: bool = False) -> DeadLetter:
    return DeadLetter(
        letter_id=_letter_id(message),
        death=death_of(message.headers, event_type=message.type or message.routing_key or ""),
        size_bytes=len(message.body),
        body=message.body if with_body else None,
    )


def _letter_id(message: AbstractIncomingMessage) -> str:
    # What the broker moved by itself may be a foreign producer's message without any id.
    return message.message_id or f"sha256:{hashlib.sha256(message.body).hexdigest()[:32]}"


def _is_live(message: AbstractIncomingMessage) -> bool:
    try:
        return not message.channel.is_closed
    except ChannelInvalidStateError:  # how the library says that it is closed
        return False


# ---------------------------------------------------------------------------------------------------- subscription


class RabbitSubscription:
    """A consumer that comes back by itself. At most `prefetch` messages are buffered or in hand."""

    def __init__(
        self,
        name: str,
        *,
        declare: Callable[[AbstractChannel], Awaitable[AbstractQueue]],
        link: _Link,
        publisher: _Publisher,
        prefetch: int,
        timeout_s: float,
        report: Report,
    ) -> None:
        self._name = name
        self._declare = declare
        self._link = link
        self._publisher = publisher
        self._prefetch = prefetch
        self._timeout_s = timeout_s
        self._report = report
        self._buffer: deque[AbstractIncomingMessage] = deque()  # bounded by the broker: prefetch
        self._changed = asyncio.Event()
        self._consuming = asyncio.Event()
        self._stopped = False
        self._failure: ConfigurationError | None = None
        self._channel: AbstractChannel | None = None
        self._cancel_consumer: Callable[[], Awaitable[object]] | None = None

    # -- the life of the consumer

    async def run(self) -> None:
        """Consume, and start again after every loss, until `stop`. One task owns this."""
        try:
            while not self._stopped:
                lost = await _persist(self._start, within_s=None, report=self._report)
                self._consuming.set()
                await lost.wait()
                self._consuming.clear()
                await self._drop_channel()
        except ConfigurationError as error:
            self._failure = error
            self._consuming.set()
            self._changed.set()

    async def started(self, *, timeout_s: float | None) -> None:
        """Wait until the broker serves this consumer. Raises: BrokerUnavailable; ConfigurationError."""
        with _translated(f"subscribing to {self._name}"):
            async with asyncio.timeout(timeout_s):
                await self._consuming.wait()
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """Stop; what was never settled goes back to the queue."""
        await self.stop()
        await self._drop_channel()

    async def _start(self) -> asyncio.Event:
        lost = asyncio.Event()
        with _translated(f"subscribing to {self._name}"):
            async with asyncio.timeout(self._timeout_s):
                channel = await self._link.channel(confirms=False)
                try:
                    await self._consume_on(channel, lost)
                except BaseException:
                    await _close_quietly(channel, timeout_s=self._timeout_s)
                    raise
        return lost

    async def _consume_on(self, channel: AbstractChannel, lost: asyncio.Event) -> None:
        channel.close_callbacks.add(lambda *_: lost.set())
        underlay = await channel.get_underlay_channel()
        underlay.on_consumer_cancel_callbacks.add(lambda _: lost.set())
        await channel.set_qos(prefetch_count=self._prefetch)
        queue = await self._declare(channel)
        # Set before consuming: the first message may come before the call returns.
        self._channel = channel
        tag = await queue.consume(self._receive)
        self._cancel_consumer = lambda: queue.cancel(tag)

    async def _drop_channel(self) -> None:
        """Forget a channel and its stale messages: the broker brings them again."""
        self._buffer.clear()
        channel, self._channel, self._cancel_consumer = self._channel, None, None
        if channel is not None:
            await _close_quietly(channel, timeout_s=self._timeout_s)

    async def _receive(self, message: AbstractIncomingMessage) -> None:
        if self._stopped:
            await self._settled(message.nack(requeue=True))
            return
        self._buffer.append(message)
        self._changed.set()

    # -- the port

    async def batch(self, *, max_items: int, max_wait_s: float) -> list[Delivery]:
        """See `ports.Subscription`. Cancelling it loses nothing. Raises: ConfigurationError: the queue is not ours."""
        while True:
            await self._filled(1, timeout_s=None)
            await self._filled(max_items, timeout_s=max_wait_s)
            if self._failure is not None:
                raise self._failure
            taken = [self._buffer.popleft() for _ in range(min(max_items, len(self._buffer)))]
            live = [_delivery(message) for message in taken if _is_live(message)]
            if live or self._stopped:
                return live

    async def ack(self, delivery: Delivery) -> None:
        """See `ports.Subscription`."""
        await self._settled(delivery.handle.ack())

    async def give_back(self, delivery: Delivery) -> None:
        """See `ports.Subscription`."""
        await self._settled(delivery.handle.nack(requeue=True))

    async def retry(self, delivery: Delivery, *, delay_s: float) -> None:
        """See `ports.Subscription`. The delay is the shortest rung of the ladder that is long enough, 30 s at most."""
        headers = {**delivery.headers, ATTEMPT_HEADER: delivery.attempt + 1}
        await self._move(delivery, queue=retry_queue(self._name, rung_for(delay_s)), headers=headers)

    async def hand_over(self, delivery: Delivery, *, queue: str) -> None:
        """See `ports.Subscription`."""
        await self._move(delivery, queue=queue, headers=delivery.headers)

    async def dead_letter(self, delivery: Delivery, *, reason: str) -> None:
        """See `ports.Subscription`."""
        headers = dead_letter_headers(
            delivery.headers,
            reason=reason,
            source_queue=self._name,
            attempts=delivery.attempt,
            event_type=delivery.event_type,
            at=time.time_ns() // 1000,
        )
        await self._move(delivery, queue=DEAD_LETTERS_QUEUE, headers=headers)

    async def stop(self) -> None:
        """See `ports.Subscription`."""
        if self._stopped:
            return
        self._stopped = True
        self._changed.set()
        if self._cancel_consumer is not None:
            await self._settled(self._cancel_consumer())
        while self._buffer:
            await self._settled(self._buffer.popleft().nack(requeue=True))

    async def _filled(self, wanted: int, *, timeout_s: float | None) -> None:
        """Wait until `wanted` messages are buffered, or the time is up, or there will be none."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while len(self._buffer) < wanted and not self._stopped and self._failure is None:
                    self._changed.clear()
                    await self._changed.wait()

    async def _move(self, delivery: Delivery, *, queue: str, headers: Mapping[str, Any]) -> None:
        """Durable there, then acknowledged here. Not taken there: handed back here, uncounted."""
        try:
            await self._publisher.publish(DEFAULT_EXCHANGE, queue, _copied_message(delivery, headers))
        except BrokerUnavailable as error:
            log.warning("message_not_moved", queue=queue, error=str(error))
            await self.give_back(delivery)
        else:
            await self.ack(delivery)

    async def _settled(self, call: Awaitable[object]) -> None:
        """A settlement that its channel did not survive needs no report: the message comes again."""
        with suppress(BrokerUnavailable), _translated("settling"):
            async with asyncio.timeout(self._timeout_s):
                await call


# -------------------------------------------------------------------------------------------------------------- bus


class RabbitBus:
    """`ports.Bus` on RabbitMQ; open it with `open_rabbitmq`."""

    def __init__(
        self,
        *,
        publisher: _Publisher,
        consumers: _Link,
        call_timeout_s: float,
        connect_timeout_s: float | None,
        report: Report,
    ) -> None:
        self._publisher = publisher
        self._consumers = consumers
        self._call_timeout_s = call_timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._report = report

    async def publish(self, routing_key: str, body: Mapping[str, Any], *, event_id: str) -> None:
        """See `ports.Bus`. The event id travels in the envelope that `body` is."""
        await self._publisher.publish(EVENTS_EXCHANGE, routing_key, _event_message(routing_key, body))

    async def command(self, body: Mapping[str, Any], *, event_id: str) -> None:
        """See `ports.Bus`."""
        await self._publisher.publish(COMMANDS_EXCHANGE, EMBED_COMMAND, _event_message(EMBED_COMMAND, body))

    @asynccontextmanager
    async def subscribe(self, queue: str, *, prefetch: int) -> AsyncIterator[Subscription]:
        """See `ports.Bus`. Raises: ConfigurationError; BrokerUnavailable: not served within `connect_timeout_s`."""
        async with self._subscription(
            queue, declare=lambda channel: _declare_known(channel, queue), prefetch=prefetch
        ) as subscription:
            yield subscription

    @asynccontextmanager
    async def watch(self, *routing_keys: str) -> AsyncIterator[AsyncIterator[Delivery]]:
        """See `ports.Bus`. Sees what is published from now on, save while its connection is lost."""
        async with self._subscription(
            "events", declare=lambda channel: _declare_watch(channel, routing_keys), prefetch=WATCH_PREFETCH
        ) as subscription:
            yield _acknowledged(subscription)

    async def depth(self, queue: str) -> int:
        """See `ports.Bus`. Raises: BrokerUnavailable, also when there is no such queue."""
        with _translated(f"looking at {queue}"):
            async with asyncio.timeout(self._call_timeout_s):
                # A failed passive declare closes its channel: use one that nobody else needs.
                channel = await self._consumers.channel(confirms=False)
                try:
                    declared = await channel.declare_queue(queue, passive=True)
                finally:
                    await _close_quietly(channel, timeout_s=self._call_timeout_s)
        return declared.declaration_result.message_count or 0

    async def ping(self) -> None:
        """See `ports.Bus`."""
        await self.depth(DEAD_LETTERS_QUEUE)

    async def dead_letters(
        self, *, limit: int, only: Collection[str] | None = None, with_bodies: bool = False
    ) -> list[DeadLetter]:
        """See `ports.DeadLetters`."""
        found: list[DeadLetter] = []

        def note(message: AbstractIncomingMessage) -> None:
            letter = _dead_letter(message, with_body=with_bodies)
            if len(found) < limit and (only is None or letter.letter_id in only):
                found.append(letter)

        async with self._dead_letters_in_hand(note):
            return found

    async def replay_dead_letters(self, *, only: Collection[str] | None = None) -> list[str]:
        """See `ports.DeadLetters`."""
        return await self._settle_dead_letters(only, self._replay)

    async def drop_dead_letters(self, *, only: Collection[str] | None = None) -> list[str]:
        """See `ports.DeadLetters`."""
        return await self._settle_dead_letters(only, _always)

    async def _settle_dead_letters(
        self, only: Collection[str] | None, settle: Callable[[AbstractIncomingMessage], Awaitable[bool]]
    ) -> list[str]:
        """Settle those for which `settle` says so, as many at a time as may be in our memory."""
        settled: list[str] = []
        pick = _Pick(only)
        while pick.again():
            async with self._dead_letters_in_hand(pick.note):
                for message in pick.held:
                    if await settle(message):
                        with _translated("taking a dead letter"):
                            await message.ack()
                        settled.append(_letter_id(message))
        return settled

    async def _replay(self, message: AbstractIncomingMessage) -> bool:
        letter = _dead_letter(message)
        if not letter.death.is_replayable:
            return False
        delivery = replace(_delivery(message), event_type=letter.death.event_type)
        again = _copied_message(delivery, replayed_headers(message.headers))
        await self._publisher.publish(DEFAULT_EXCHANGE, letter.death.source_queue, again)
        return True

    @asynccontextmanager
    async def _dead_letters_in_hand(self, note: Callable[[AbstractIncomingMessage], None]) -> AsyncIterator[None]:
        """Show them to `note`, oldest first; whatever was not acknowledged in the block goes back, in order.

        One consumer holds all of them until its channel closes. Other ways disturb a quorum queue's order: what goes
        back comes before what was never out, but behind what came back earlier; single gets go back in the order of
        their delivery tags as text, and rejected ones by hash.
        """
        seen, complete = 0, asyncio.Event()
        with _translated("looking at the dead letters"):
            async with asyncio.timeout(self._call_timeout_s):
                channel = await self._consumers.channel(confirms=False)
        try:
            with _translated("looking at the dead letters"):
                async with asyncio.timeout(self._call_timeout_s):
                    queue = await _declare_dead_letters(channel)
                    waiting = min(queue.declaration_result.message_count or 0, MOST_DEAD_LETTERS)

                    async def receive(message: AbstractIncomingMessage) -> None:
                        nonlocal seen
                        seen += 1
                        if seen <= waiting:
                            note(message)
                        if seen == waiting:
                            complete.set()

                    if waiting:
                        await channel.set_qos(prefetch_count=waiting)
                        await queue.consume(receive)
            with suppress(TimeoutError):  # somebody else may have taken one since they were counted
                async with asyncio.timeout(self._call_timeout_s if waiting else 0):
                    await complete.wait()
            yield
            # The broker answers in order: once it has closed the channel, it has taken the acknowledgements.
            with _translated("taking dead letters"):
                async with asyncio.timeout(self._call_timeout_s):
                    await channel.close()
        finally:
            await _close_quietly(channel, timeout_s=self._call_timeout_s)

    @asynccontextmanager
    async def _subscription(
        self, name: str, *, declare: Callable[[AbstractChannel], Awaitable[AbstractQueue]], prefetch: int
    ) -> AsyncIterator[RabbitSubscription]:
        subscription = RabbitSubscription(
            name,
            declare=declare,
            link=self._consumers,
            publisher=self._publisher,
            prefetch=prefetch,
            timeout_s=self._call_timeout_s,
            report=self._report,
        )
        consuming = asyncio.create_task(subscription.run(), name=f"consume {name}")
        try:
            await subscription.started(timeout_s=self._connect_timeout_s)
            yield subscription
        finally:
            await subscription.stop()
            consuming.cancel()
            await asyncio.gather(consuming, return_exceptions=True)
            await subscription.close()


async def _always(_: AbstractIncomingMessage) -> bool:
    return True


class _Pick:
    """Which dead letters to settle, pass by pass. What dies again meanwhile was not there in the first one."""

    def __init__(self, only: Collection[str] | None) -> None:
        self._only = only
        self._there: set[str] = set()
        self._passes = 0
        self._bytes = 0
        self._left_some = True
        self.held: list[AbstractIncomingMessage] = []

    def again(self) -> bool:
        """Begin a pass, if the one before had to leave some."""
        if not self._left_some:
            return False
        self._there -= {_letter_id(message) for message in self.held}
        self._passes, self.held, self._bytes, self._left_some = self._passes + 1, [], 0, False
        return True

    def note(self, message: AbstractIncomingMessage) -> None:
        """Hold it, unless it is not wanted or too much for now."""
        letter_id = _letter_id(message)
        if self._passes == 1 and (self._only is None or letter_id in self._only):
            self._there.add(letter_id)
        if letter_id not in self._there:
            return
        if self.held and self._bytes + len(message.body) > DEAD_LETTERS_BYTES:
            self._left_some = True
            return
        self.held.append(message)
        self._bytes += len(message.body)


async def _acknowledged(subscription: RabbitSubscription) -> AsyncIterator[Delivery]:
    while deliveries := await subscription.batch(max_items=1, max_wait_s=0):
        for delivery in deliveries:
            await subscription.ack(delivery)
            yield delivery


@asynccontextmanager
async def open_rabbitmq(
    url: str,
    *,
    name: str = "dats-rag",
    publish_timeout_s: float = 5.0,
    call_timeout_s: float = 10.0,
    connect_timeout_s: float | None = None,
    heartbeat_s: int = 10,
    report: Report = report_wait,
) -> AsyncIterator[RabbitBus]:
    """Connect, declare the topology, and keep both alive.

    Args:
        url: `amqp://user:password@host:port/vhost`; of a cluster, the nodes' URLs with commas between them.
        name: shown for our connections in the broker's lists.
        publish_timeout_s: bound of one publish, from the call to the confirmation.
        call_timeout_s: bound of everything else that asks the broker something.
        connect_timeout_s: how long to wait for a broker that is away at the start; None waits for ever.
        heartbeat_s: a hung process is found after about three of them.
        report: called at once and then every few seconds while the broker is away.

    Raises:
        BrokerUnavailable: not reached within `connect_timeout_s`.
        ConfigurationError: credentials refused, or a queue exists with other properties.
    """
    publishing = _Link(url, name=f"{name} publisher", heartbeat_s=heartbeat_s, timeout_s=call_timeout_s)
    consuming = _Link(url, name=f"{name} consumer", heartbeat_s=heartbeat_s, timeout_s=call_timeout_s)
    publisher = _Publisher(publishing, publish_timeout_s=publish_timeout_s, call_timeout_s=call_timeout_s)
    try:
        await _persist(publisher.open, within_s=connect_timeout_s, report=report)
        yield RabbitBus(
            publisher=publisher,
            consumers=consuming,
            call_timeout_s=call_timeout_s,
            connect_timeout_s=connect_timeout_s,
            report=report,
        )
    finally:
        await consuming.close()
        await publishing.close()
