"""The bus itself: publish, consume, watch, count."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aio_pika.abc import AbstractChannel, AbstractQueue

from dats_common.adapters.rabbitmq.connection import Link, Report, close_quietly, persist, report_wait, translated
from dats_common.adapters.rabbitmq.dead_letters import RabbitDeadLetters
from dats_common.adapters.rabbitmq.declarations import declare_known, declare_watch
from dats_common.adapters.rabbitmq.messages import event_message
from dats_common.adapters.rabbitmq.publisher import Publisher
from dats_common.adapters.rabbitmq.subscription import RabbitSubscription
from dats_common.contracts.topology import COMMANDS_EXCHANGE, DEAD_LETTERS_QUEUE, EMBED_COMMAND, EVENTS_EXCHANGE
from dats_common.ports import Subscription
from dats_common.records import Delivery

WATCH_PREFETCH = 256


class RabbitBus(RabbitDeadLetters):
    """`ports.Bus` on RabbitMQ; open it with `open_rabbitmq`."""

    def __init__(
        self,
        *,
        publisher: Publisher,
        consumers: Link,
        call_timeout_s: float,
        connect_timeout_s: float | None,
        report: Report,
    ) -> None:
        super().__init__(publisher=publisher, consumers=consumers, call_timeout_s=call_timeout_s)
        self._connect_timeout_s = connect_timeout_s
        self._report = report

    async def publish(self, routing_key: str, body: Mapping[str, Any], *, event_id: str) -> None:
        """See `ports.Bus`. The event id travels in the envelope that `body` is."""
        await self._publisher.publish(EVENTS_EXCHANGE, routing_key, event_message(routing_key, body))

    async def command(self, body: Mapping[str, Any], *, event_id: str) -> None:
        """See `ports.Bus`."""
        await self._publisher.publish(COMMANDS_EXCHANGE, EMBED_COMMAND, event_message(EMBED_COMMAND, body))

    @asynccontextmanager
    async def subscribe(self, queue: str, *, prefetch: int) -> AsyncIterator[Subscription]:
        """See `ports.Bus`. Raises: ConfigurationError; BrokerUnavailable: not served within `connect_timeout_s`."""
        async with self._subscription(
            queue, declare=lambda channel: declare_known(channel, queue), prefetch=prefetch
        ) as subscription:
            yield subscription

    @asynccontextmanager
    async def watch(self, *routing_keys: str) -> AsyncIterator[AsyncIterator[Delivery]]:
        """See `ports.Bus`. Sees what is published from now on, save while its connection is lost."""
        async with self._subscription(
            "events", declare=lambda channel: declare_watch(channel, routing_keys), prefetch=WATCH_PREFETCH
        ) as subscription:
            yield _acknowledged(subscription)

    async def depth(self, queue: str) -> int:
        """See `ports.Bus`. Raises: BrokerUnavailable, also when there is no such queue."""
        with translated(f"looking at {queue}"):
            async with asyncio.timeout(self._call_timeout_s):
                # A failed passive declare closes its channel: use one that nobody else needs.
                channel = await self._consumers.channel(confirms=False)
                try:
                    declared = await channel.declare_queue(queue, passive=True)
                finally:
                    await close_quietly(channel, timeout_s=self._call_timeout_s)
        return declared.declaration_result.message_count or 0

    async def ping(self) -> None:
        """See `ports.Bus`."""
        await self.depth(DEAD_LETTERS_QUEUE)

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
    publishing = Link(url, name=f"{name} publisher", heartbeat_s=heartbeat_s, timeout_s=call_timeout_s)
    consuming = Link(url, name=f"{name} consumer", heartbeat_s=heartbeat_s, timeout_s=call_timeout_s)
    publisher = Publisher(publishing, publish_timeout_s=publish_timeout_s, call_timeout_s=call_timeout_s)
    try:
        await persist(publisher.open, within_s=connect_timeout_s, report=report)
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
