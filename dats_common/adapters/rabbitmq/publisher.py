"""Publishing: persistent, mandatory, confirmed."""

from __future__ import annotations

import asyncio

from aio_pika import Message
from aio_pika.abc import AbstractChannel
from aio_pika.exceptions import DeliveryError, PublishError

from dats_common.adapters.rabbitmq.connection import Link, close_quietly, translated
from dats_common.adapters.rabbitmq.declarations import declare_topology


class Publisher:
    """Mandatory, persistent, confirmed publishes; any number in flight on one channel."""

    def __init__(self, link: Link, *, publish_timeout_s: float, call_timeout_s: float) -> None:
        self._link = link
        self._publish_timeout_s = publish_timeout_s
        self._call_timeout_s = call_timeout_s
        self._channel: AbstractChannel | None = None
        self._turn = asyncio.Lock()

    async def open(self) -> None:
        """Connect and declare the topology. Raises: BrokerUnavailable; ConfigurationError."""
        with translated("connecting to RabbitMQ"):
            async with asyncio.timeout(self._call_timeout_s):
                await self._ready_channel()

    async def publish(self, exchange: str, routing_key: str, message: Message) -> None:
        """Returns once a queue has taken it. Raises: BrokerUnavailable."""
        with translated(f"publishing {message.type}"):
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
            await close_quietly(channel, timeout_s=self._call_timeout_s)

    async def _ready_channel(self) -> AbstractChannel:
        async with self._turn:
            if self._channel is None or self._channel.is_closed:
                channel = await self._link.channel(confirms=True)
                try:
                    await declare_topology(channel)
                except BaseException:
                    await close_quietly(channel, timeout_s=self._call_timeout_s)
                    raise
                self._channel = channel
            return self._channel
