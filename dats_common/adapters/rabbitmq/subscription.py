"""Consuming: a channel and a task for each queue, opened again whenever they are lost."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import structlog
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue

from dats_common.adapters.rabbitmq.connection import Link, Report, close_quietly, persist, translated
from dats_common.adapters.rabbitmq.declarations import DEFAULT_EXCHANGE
from dats_common.adapters.rabbitmq.messages import copied_message, delivery_of, is_live
from dats_common.adapters.rabbitmq.publisher import Publisher
from dats_common.contracts.routing import ATTEMPT_HEADER, dead_letter_headers, retry_queue, rung_for
from dats_common.contracts.topology import DEAD_LETTERS_QUEUE
from dats_common.errors import BrokerUnavailable, ConfigurationError
from dats_common.records import Delivery

log = structlog.get_logger(component="rabbitmq")


class RabbitSubscription:
    """A consumer that comes back by itself. At most `prefetch` messages are buffered or in hand."""

    def __init__(
        self,
        name: str,
        *,
        declare: Callable[[AbstractChannel], Awaitable[AbstractQueue]],
        link: Link,
        publisher: Publisher,
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
        self._buffer: deque[Delivery] = deque()  # bounded by the broker: prefetch
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
                lost = await persist(self._start, within_s=None, report=self._report)
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
        with translated(f"subscribing to {self._name}"):
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
        with translated(f"subscribing to {self._name}"):
            async with asyncio.timeout(self._timeout_s):
                channel = await self._link.channel(confirms=False)
                try:
                    await self._consume_on(channel, lost)
                except BaseException:
                    await close_quietly(channel, timeout_s=self._timeout_s)
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
            await close_quietly(channel, timeout_s=self._timeout_s)

    async def _receive(self, message: AbstractIncomingMessage) -> None:
        if self._stopped:
            await self._settled(message.nack(requeue=True))
            return
        self._buffer.append(delivery_of(message, received_s=asyncio.get_running_loop().time()))
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
            live = [delivery for delivery in taken if is_live(delivery.handle)]
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
            await self._settled(self._buffer.popleft().handle.nack(requeue=True))

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
            await self._publisher.publish(DEFAULT_EXCHANGE, queue, copied_message(delivery, headers))
        except BrokerUnavailable as error:
            log.warning("message_not_moved", queue=queue, error=str(error))
            await self.give_back(delivery)
        else:
            await self.ack(delivery)

    async def _settled(self, call: Awaitable[object]) -> None:
        """A settlement that its channel did not survive needs no report: the message comes again."""
        with suppress(BrokerUnavailable), translated("settling"):
            async with asyncio.timeout(self._timeout_s):
                await call
