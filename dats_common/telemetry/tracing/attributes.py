"""All that a span may say. What is not listed never leaves, so content, queries and secrets cannot get in by accident.

Source: OpenTelemetry semantic conventions 1.40 (HTTP, database, messaging, generative AI); `rag.query.*` is spec 1's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

Value = str | int | float | bool
Attributes = Mapping[str, Value | None]
"""None: not known, and not told."""

ATTRIBUTES: Mapping[str, str] = MappingProxyType(
    {
        "http.request.method": "one of the methods that the service knows, else `_OTHER`",
        "http.route": "template of the route, never the path",
        "http.response.status_code": "status of the response",
        "error.type": "class of the error, or the status from 500 on; never its message",
        "rag.query.mode": "vector, keyword or hybrid",
        "rag.query.max_tokens": "token budget of the context",
        "rag.query.results_count": "passages in the result",
        "rag.query.tokens_used": "tokens of the context",
        "rag.query.dropped": "candidates that the guard refused",
        "rag.answer.action": "CITE, ROUTE or WITHDRAWN",
        "rag.answer.confidence": "in percent",
        "rag.answer.citations": "sources that are cited",
        "rag.legs": "legs of the search, all in one round trip: dense, sparse or both",
        "rag.items": "how many things the step was given: texts, candidates, passages, points, events, ids",
        "rag.kept": "how many of them are left after it",
        "rag.purpose": "why a model was asked: answer or rating",
        "rag.settlement": "how a delivery ended: acknowledged, retried, given_back, handed_over, dead_lettered, left",
        "rag.attempt": "which try of the delivery it was",
        "rag.cancelled": "the caller did not wait for the end: a deadline, or a client that left",
        "gen_ai.operation.name": "chat or embeddings; rerank is ours",
        "gen_ai.provider.name": "what runs the model: ollama, openvino, sentence-transformers, extractive",
        "gen_ai.request.model": "model that was asked for",
        "gen_ai.response.model": "model that wrote, as answers name it",
        "gen_ai.request.max_tokens": "most tokens it may write",
        "gen_ai.request.temperature": "sampling temperature",
        "gen_ai.output.type": "text, or json where a schema is asked for",
        "gen_ai.usage.input_tokens": "tokens that the model read, by its own count",
        "gen_ai.usage.output_tokens": "tokens that it wrote",
        "gen_ai.response.time_to_first_chunk": "seconds until the first piece of the draft",
        "gen_ai.embeddings.dimension.count": "length of the vectors",
        "db.system.name": "qdrant, postgresql or sqlite",
        "db.operation.name": "name of the port's method",
        "db.collection.name": "Qdrant's collection",
        "messaging.system": "rabbitmq, or `dats_sqlite` for the laptop's queue",
        "messaging.operation.name": "send or process",
        "messaging.operation.type": "send or process",
        "messaging.destination.name": "exchange when sending, queue when processing",
        "messaging.rabbitmq.destination.routing_key": "type of the event, if it is one of ours",
        "messaging.message.id": "the broker's id of the message, if it looks like one",
        "messaging.message.body.size": "bytes",
        "messaging.batch.message_count": "deliveries that are handled together",
    }
)

_ID = re.compile(r"[A-Za-z0-9._:-]{1,80}", re.ASCII)
_LONGEST = 200


def allowed(attributes: Attributes) -> Iterator[tuple[str, Value]]:
    """Those that are listed and known, long text cut."""
    for name, value in attributes.items():
        if name in ATTRIBUTES and value is not None:
            yield name, value[:_LONGEST] if isinstance(value, str) else value


def id_or_none(text: str | None) -> str | None:
    """A stranger's id, if it looks like one: it may hold anything."""
    return text if text is not None and _ID.fullmatch(text) else None
