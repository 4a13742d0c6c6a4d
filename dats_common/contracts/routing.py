"""How a message finds its queues, for brokers that do not route by themselves; and what a settled message carries.

Pure: RabbitMQ is told these facts once (declarations), the laptop's queue and the in-memory twin follow them here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dats_common.contracts.topology import (
    DEAD_LETTERS_QUEUE,
    EVENTS_EXCHANGE,
    PUBLISHED_QUEUE,
    QUEUES,
    Queue,
)
from dats_common.domain.settlement import RETRY_LADDER_S

ATTEMPT_HEADER = "x-attempt"
ATTEMPTS_HEADER = "x-attempts"
EVENT_TYPE_HEADER = "x-event-type"
FIRST_DIED_HEADER = "x-first-died"
REASON_HEADER = "x-reason"
SOURCE_QUEUE_HEADER = "x-source-queue"

REASON_MAX_CHARS = 500
"""A reason is for a list on a screen; a stack trace in a header would near the broker's frame limit."""

PUBLISHED = Queue(PUBLISHED_QUEUE, EVENTS_EXCHANGE, ("embedding.*", "answer.recalled"))
PUBLISHED_MAX_MESSAGES = 10_000
"""About a day of events of a busy fleet; the oldest go first."""

RETRY_RUNGS_S = tuple(round(delay_s) for delay_s in RETRY_LADDER_S)
"""Delays of the retry ladder in whole seconds, one waiting queue each: what `domain.settlement` decides."""

QUEUE_NAMES = frozenset(queue.name for queue in QUEUES) | {DEAD_LETTERS_QUEUE, PUBLISHED_QUEUE}


def retry_queue(queue: str, rung_s: int) -> str:
    """Name of the queue where messages of `queue` wait `rung_s` seconds."""
    return f"{queue}.retry.{rung_s}s"


def rung_for(delay_s: float) -> int:
    """The shortest rung in seconds that waits at least `delay_s`; the longest one when none does."""
    return next((rung_s for rung_s in RETRY_RUNGS_S if rung_s >= delay_s), RETRY_RUNGS_S[-1])


def matches(pattern: str, routing_key: str) -> bool:
    """Whether a topic binding takes a routing key: `*` stands for one word, `#` for any number of words.

    Source: AMQP 0-9-1, section 3.1.3.3.
    """
    return _words_match(pattern.split("."), routing_key.split("."))


def _words_match(pattern: Sequence[str], words: Sequence[str]) -> bool:
    if not pattern:
        return not words
    head, rest = pattern[0], pattern[1:]
    if head == "#":
        return any(_words_match(rest, words[skipped:]) for skipped in range(len(words) + 1))
    return bool(words) and head in ("*", words[0]) and _words_match(rest, words[1:])


def destinations(exchange: str, routing_key: str) -> list[str]:
    """Names of the fixed queues that take a message; empty when it is unroutable."""
    return [
        queue.name
        for queue in (*QUEUES, PUBLISHED)
        if queue.exchange == exchange and any(matches(pattern, routing_key) for pattern in queue.routing_keys)
    ]


def is_single_active(queue: str) -> bool:
    """Whether one consumer at a time is served, the others standing by."""
    return any(known.name == queue and known.single_active for known in QUEUES)


def dead_letter_headers(
    headers: Mapping[str, Any], *, reason: str, source_queue: str, attempts: int, event_type: str, at: int
) -> dict[str, Any]:
    """The message's headers plus why and where it ended. Its attempts start anew when somebody replays it.

    Args:
        at: microseconds since 1970 UTC. A letter that was replayed and dies again keeps the time of its first death.
    """
    kept = {name: value for name, value in headers.items() if name != ATTEMPT_HEADER}
    return (
        {FIRST_DIED_HEADER: at}
        | kept
        | {
            REASON_HEADER: reason[:REASON_MAX_CHARS],
            SOURCE_QUEUE_HEADER: source_queue,
            ATTEMPTS_HEADER: attempts,
            EVENT_TYPE_HEADER: event_type,
        }
    )


def replayed_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """The headers of a dead letter that gets another try, as if it had never failed, save when it did first."""
    gone = {ATTEMPT_HEADER, REASON_HEADER, SOURCE_QUEUE_HEADER, ATTEMPTS_HEADER, EVENT_TYPE_HEADER}
    return {name: value for name, value in headers.items() if name not in gone}


@dataclass(frozen=True, slots=True)
class Death:
    """Why, where from, how often and when a dead letter failed, as far as its headers tell.

    Attributes:
        first_died_at: microseconds since 1970 UTC.
    """

    reason: str
    source_queue: str
    attempts: int
    event_type: str
    first_died_at: int | None

    @property
    def is_replayable(self) -> bool:
        """Whether it came from a queue that is ours to put it back into."""
        return self.source_queue in {queue.name for queue in QUEUES}


def death_of(headers: Mapping[str, Any], *, event_type: str) -> Death:
    """What our headers say; else what the broker noted when it moved the message by itself (`x-death`)."""
    deaths = headers.get("x-death")
    oldest = deaths[-1] if isinstance(deaths, list) and deaths and isinstance(deaths[-1], dict) else {}
    noted = oldest.get("time")
    by_broker = int(noted.timestamp() * 1e6) if isinstance(noted, datetime) else None
    routed = oldest.get("routing-keys") or [event_type]
    died_at = headers.get(FIRST_DIED_HEADER, by_broker)
    attempts = headers.get(ATTEMPTS_HEADER, 1)
    return Death(
        reason=str(headers.get(REASON_HEADER) or f"the broker moved it: {oldest.get('reason', 'no reason given')}"),
        source_queue=str(headers.get(SOURCE_QUEUE_HEADER) or oldest.get("queue", "")),
        attempts=attempts if isinstance(attempts, int) else 1,
        event_type=str(headers.get(EVENT_TYPE_HEADER) or routed[0]),
        first_died_at=died_at if isinstance(died_at, int) else None,
    )
