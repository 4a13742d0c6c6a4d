"""Our events and deliveries as the broker's messages, and back."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from typing import Any

from aio_pika import DeliveryMode, Message
from aio_pika.abc import AbstractIncomingMessage
from aio_pika.exceptions import ChannelInvalidStateError

from dats_common.contracts.routing import ATTEMPT_HEADER, death_of
from dats_common.records import DeadLetter, Delivery
from dats_common.trace_context import trace_headers

BROKER_HEADERS = ("x-death", "x-first-death-", "x-last-death-", "x-delivery-count")
"""What the broker adds by itself; carried along, it would take part in its detection of dead-letter cycles."""


def event_message(event_type: str, body: Mapping[str, Any]) -> Message:
    """An event or command to publish; its headers say whose trace it belongs to, if anybody traces."""
    # A fresh message id for each attempt: two publishes in flight under one id hide each other's returns.
    return Message(
        body=json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(),
        content_type="application/json",
        delivery_mode=DeliveryMode.PERSISTENT,
        headers={**trace_headers()},
        message_id=uuid.uuid4().hex,
        type=event_type,
    )


def copied_message(delivery: Delivery, headers: Mapping[str, Any]) -> Message:
    """The same message for another queue, under other headers."""
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


def delivery_of(message: AbstractIncomingMessage, *, received_s: float) -> Delivery:
    """The port's view of a message."""
    attempt = message.headers.get(ATTEMPT_HEADER)
    return Delivery(
        body=message.body,
        event_type=message.type or message.routing_key or "",
        received_s=received_s,
        message_id=message.message_id,
        attempt=attempt if isinstance(attempt, int) and attempt > 0 else 1,
        timestamp=None if message.timestamp is None else int(message.timestamp.timestamp()) * 1_000_000,
        redelivered=bool(message.redelivered),
        headers=dict(message.headers),
        handle=message,
    )


def dead_letter_of(message: AbstractIncomingMessage, *, with_body: bool = False) -> DeadLetter:
    """The operators' view of a message; its content only where it was asked for."""
    return DeadLetter(
        letter_id=letter_id_of(message),
        death=death_of(message.headers, event_type=message.type or message.routing_key or ""),
        size_bytes=len(message.body),
        body=message.body if with_body else None,
    )


def letter_id_of(message: AbstractIncomingMessage) -> str:
    """What operators call a dead letter by."""
    # What the broker moved by itself may be a foreign producer's message without any id.
    return message.message_id or f"sha256:{hashlib.sha256(message.body).hexdigest()[:32]}"


def is_live(message: AbstractIncomingMessage) -> bool:
    """Whether it can still be settled: its channel is there."""
    try:
        return not message.channel.is_closed
    except ChannelInvalidStateError:  # how the library says that it is closed
        return False
