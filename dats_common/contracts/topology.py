"""Names on the broker that other teams rely on. Fixed.

Source: spec 1 "Subscribed Events" and "Configuration".
"""

from __future__ import annotations

from dataclasses import dataclass

EVENTS_EXCHANGE = "task.events"
COMMANDS_EXCHANGE = "rag.commands"

TASK_VALIDATED = "task.validated"
ARTIFACT_TAINTED = "artifact.tainted"
EMBED_COMMAND = "rag.embed"

EMBEDDING_COMPLETED = "embedding.completed"
EMBEDDING_INVALIDATED = "embedding.invalidated"
EMBEDDING_FAILED = "embedding.failed"
EMBEDDING_QUARANTINED = "embedding.quarantined"
ANSWER_RECALLED = "answer.recalled"

VALIDATED_QUEUE = "rag-service-events"
TAINTS_QUEUE = "rag-service-taints"
COMMANDS_QUEUE = "rag-service-commands"
DEAD_LETTERS_QUEUE = "rag-service-events.dlq"
PUBLISHED_QUEUE = "rag-service-published"
"""Bounded copy of what we publish. It makes every event routable, so that `mandatory` finds a broken topology rather
than a moment without subscribers, and lets a late subscriber look back."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue and how it is bound.

    Attributes:
        single_active: one consumer at a time; the others wait as standbys.
    """

    name: str
    exchange: str
    routing_keys: tuple[str, ...]
    single_active: bool = False


QUEUES = (
    Queue(VALIDATED_QUEUE, EVENTS_EXCHANGE, (TASK_VALIDATED,), single_active=True),
    Queue(COMMANDS_QUEUE, COMMANDS_EXCHANGE, (EMBED_COMMAND,), single_active=True),
    # Not single-active: T1 needs no epoch, and a taint must not wait for a paused writer.
    Queue(TAINTS_QUEUE, EVENTS_EXCHANGE, (ARTIFACT_TAINTED,)),
)
