"""Spans around the broker. Source: semantic conventions for messaging.

Each delivery has a span of its own in its publisher's trace, from hand-out to settlement. A delivery that is handled
alone has its work beneath that span. Several that are handled together cannot: a span has one parent. Their work is a
trace of its own, and it and the deliveries' spans are linked both ways.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

from opentelemetry.trace import SpanKind

from dats_common.contracts.topology import (
    ANSWER_RECALLED,
    ARTIFACT_TAINTED,
    COMMANDS_EXCHANGE,
    EMBED_COMMAND,
    EMBEDDING_COMPLETED,
    EMBEDDING_FAILED,
    EMBEDDING_INVALIDATED,
    EMBEDDING_QUARANTINED,
    EVENTS_EXCHANGE,
    TASK_VALIDATED,
)
from dats_common.ports import Bus, Subscription
from dats_common.records import Delivery
from dats_common.telemetry.tracing.attributes import Attributes, id_or_none
from dats_common.telemetry.tracing.spans import OpenSpan, Tracing
from dats_common.trace_context import TRACEPARENT_HEADER, TraceContext, parse_traceparent, within_trace

_KNOWN_TYPES = frozenset(
    {
        TASK_VALIDATED, ARTIFACT_TAINTED, EMBED_COMMAND, EMBEDDING_COMPLETED, EMBEDDING_INVALIDATED, EMBEDDING_FAILED,
        EMBEDDING_QUARANTINED, ANSWER_RECALLED,
    }
)  # fmt: skip
_FAILED = frozenset({"retried", "dead_lettered"})


class Messages:
    """The spans of the deliveries that are in hand."""

    def __init__(self, tracing: Tracing, *, system: str) -> None:
        self._tracing = tracing
        self._system = system
        self._in_hand: dict[TraceContext, OpenSpan] = {}

    def sending(self, exchange: str, event_type: str) -> AbstractContextManager[OpenSpan]:
        """Around a publish: a step of the trace that the event belongs to."""
        attributes = self._of("send", exchange, event_type)
        return self._tracing.step(f"send {exchange}", attributes, kind=SpanKind.PRODUCER)

    def received(self, delivery: Delivery, queue: str) -> Delivery:
        """The delivery, with a span of its own."""
        attributes: Attributes = {
            **self._of("process", queue, delivery.event_type),
            "messaging.message.id": id_or_none(delivery.message_id),
            "messaging.message.body.size": len(delivery.body),
            "rag.attempt": delivery.attempt,
        }
        span = self._tracing.begin(
            f"process {queue}",
            kind=SpanKind.CONSUMER,
            parent=parse_traceparent(delivery.headers.get(TRACEPARENT_HEADER)),
            attributes=attributes,
        )
        if span.context is None:
            return delivery
        self._in_hand[span.context] = span
        return replace(delivery, trace=span.context)

    def settled(self, delivery: Delivery, how: str) -> None:
        """The delivery's span ends."""
        span = self._in_hand.pop(delivery.trace, None) if delivery.trace else None
        if span is not None:
            span.tell({"rag.settlement": how})
            if how in _FAILED:
                span.failed(how)
            span.end()

    @contextmanager
    def handling(self, deliveries: Sequence[Delivery]) -> Iterator[None]:
        """Around the work for these deliveries."""
        traces = [delivery.trace for delivery in deliveries if delivery.trace is not None]
        if len(traces) <= 1:
            with within_trace(traces[0] if traces else None):
                yield
            return
        batch = self._tracing.begin(
            "rag.batch",
            kind=SpanKind.INTERNAL,
            parent=None,
            links=traces,
            attributes={"messaging.batch.message_count": len(traces)},
        )
        for each in traces:
            if (span := self._in_hand.get(each)) is not None:
                span.link(batch.context)
        try:
            with within_trace(batch.context):
                yield
        finally:
            batch.end()

    def _of(self, operation: str, destination: str, event_type: str) -> Attributes:
        return {
            "messaging.system": self._system,
            "messaging.operation.name": operation,
            "messaging.operation.type": operation,
            "messaging.destination.name": destination,
            "messaging.rabbitmq.destination.routing_key": event_type if event_type in _KNOWN_TYPES else None,
        }


class TracedSubscription:
    """`ports.Subscription` around another one."""

    def __init__(self, subscription: Subscription, messages: Messages, queue: str) -> None:
        self._subscription = subscription
        self._messages = messages
        self._queue = queue
        self.stop = subscription.stop
        self._in_hand: dict[TraceContext, Delivery] = {}

    async def batch(self, *, max_items: int, max_wait_s: float) -> list[Delivery]:
        """See `ports.Subscription`."""
        taken = await self._subscription.batch(max_items=max_items, max_wait_s=max_wait_s)
        deliveries = [self._messages.received(delivery, self._queue) for delivery in taken]
        self._in_hand |= {delivery.trace: delivery for delivery in deliveries if delivery.trace is not None}
        return deliveries

    async def ack(self, delivery: Delivery) -> None:
        """See `ports.Subscription`."""
        await self._subscription.ack(delivery)
        self._settled(delivery, "acknowledged")

    async def retry(self, delivery: Delivery, *, delay_s: float) -> None:
        """See `ports.Subscription`."""
        await self._subscription.retry(delivery, delay_s=delay_s)
        self._settled(delivery, "retried")

    async def give_back(self, delivery: Delivery) -> None:
        """See `ports.Subscription`."""
        await self._subscription.give_back(delivery)
        self._settled(delivery, "given_back")

    async def hand_over(self, delivery: Delivery, *, queue: str) -> None:
        """See `ports.Subscription`."""
        await self._subscription.hand_over(delivery, queue=queue)
        self._settled(delivery, "handed_over")

    async def dead_letter(self, delivery: Delivery, *, reason: str) -> None:
        """See `ports.Subscription`."""
        await self._subscription.dead_letter(delivery, reason=reason)
        self._settled(delivery, "dead_lettered")

    def leave(self) -> None:
        """The connection closes: what was never settled goes back to the broker."""
        for delivery in list(self._in_hand.values()):
            self._settled(delivery, "left")

    def _settled(self, delivery: Delivery, how: str) -> None:
        if delivery.trace is not None:
            self._in_hand.pop(delivery.trace, None)
        self._messages.settled(delivery, how)


class TracedBus:
    """`ports.Bus` around another one."""

    def __init__(self, bus: Bus, messages: Messages) -> None:
        self._bus = bus
        self._messages = messages
        self.watch = bus.watch
        self.depth = bus.depth
        self.ping = bus.ping

    async def publish(self, routing_key: str, body: Mapping[str, Any], *, event_id: str) -> None:
        """See `ports.Bus`."""
        with self._messages.sending(EVENTS_EXCHANGE, routing_key):
            await self._bus.publish(routing_key, body, event_id=event_id)

    async def command(self, body: Mapping[str, Any], *, event_id: str) -> None:
        """See `ports.Bus`."""
        with self._messages.sending(COMMANDS_EXCHANGE, EMBED_COMMAND):
            await self._bus.command(body, event_id=event_id)

    def subscribe(self, queue: str, *, prefetch: int) -> AbstractAsyncContextManager[Subscription]:
        """See `ports.Bus`."""
        return self._subscribed(queue, prefetch=prefetch)

    @asynccontextmanager
    async def _subscribed(self, queue: str, *, prefetch: int) -> AsyncIterator[Subscription]:
        async with self._bus.subscribe(queue, prefetch=prefetch) as inner:
            subscription = TracedSubscription(inner, self._messages, queue)
            try:
                yield subscription
            finally:
                subscription.leave()
