"""What we declare on the broker: exchanges, queues, retry rungs, dead letters. Source: `contracts.topology`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aio_pika import ExchangeType
from aio_pika.abc import AbstractChannel, AbstractQueue

from dats_common.contracts.routing import PUBLISHED, PUBLISHED_MAX_MESSAGES, RETRY_RUNGS_S, retry_queue
from dats_common.contracts.topology import COMMANDS_EXCHANGE, DEAD_LETTERS_QUEUE, EVENTS_EXCHANGE, QUEUES, Queue
from dats_common.errors import ConfigurationError

DEFAULT_EXCHANGE = ""

DELIVERY_LIMIT = 1_000_000
"""In effect none. The broker charges every prefetched message of every crash, so poison is counted by attempts instead.
Source: https://www.rabbitmq.com/docs/quorum-queues#poison-message-handling (RabbitMQ 4 defaults to 20)."""

WATCH_MAX_MESSAGES = 10_000


async def declare_topology(channel: AbstractChannel) -> None:
    """Everything of `contracts.topology`; harmless when it exists already."""
    await channel.declare_exchange(EVENTS_EXCHANGE, ExchangeType.TOPIC, durable=True)
    await channel.declare_exchange(COMMANDS_EXCHANGE, ExchangeType.DIRECT, durable=True)
    await declare_dead_letters(channel)
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


async def declare_dead_letters(channel: AbstractChannel) -> AbstractQueue:
    """The queue of all dead letters."""
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


async def declare_watch(channel: AbstractChannel, routing_keys: tuple[str, ...]) -> AbstractQueue:
    """A private queue of what is published under these keys; it goes with its consumer."""
    queue = await channel.declare_queue(
        exclusive=True, auto_delete=True, arguments={"x-max-length": WATCH_MAX_MESSAGES}
    )
    for routing_key in routing_keys:
        await queue.bind(EVENTS_EXCHANGE, routing_key)
    return queue


async def declare_known(channel: AbstractChannel, name: str) -> AbstractQueue:
    """One of our queues. Raises: ConfigurationError: there is none of that name."""
    if name == DEAD_LETTERS_QUEUE:
        return await declare_dead_letters(channel)
    if name == PUBLISHED.name:
        return await _declare_published(channel)
    queue = next((queue for queue in QUEUES if queue.name == name), None)
    if queue is None:
        raise ConfigurationError(f"{name} is not a queue of this service")
    return await _declare_consumed(channel, queue)
