"""The contracts as documents: docs/asyncapi.json and docs/schemas/*.json, generated from the models and the topology.

`python -m dats_common.contracts.asyncapi --write` writes them; without it, the documents are compared.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from dats_common.contracts import answers, api, events, topology
from dats_common.trace_context import TRACEPARENT_HEADER

DOCS = Path("docs")
COMMAND = "python -m dats_common.contracts.asyncapi --write"

API_MODELS: tuple[type[BaseModel], ...] = (
    api.QueryRequest,
    api.QueryResponse,
    api.EmbedRequest,
    api.EmbedResponse,
    api.InvalidateResponse,
    api.BatchInvalidateRequest,
    api.BatchInvalidateResponse,
    api.HealthResponse,
    api.ProbeResponse,
    api.Problem,
    answers.AnswerRequest,
    answers.AnswerResponse,
    answers.StoredAnswer,
)


@dataclass(frozen=True, slots=True)
class Event:
    """One kind of message on the broker, seen from the service."""

    name: str
    action: Literal["receive", "send"]
    data: type[BaseModel]
    exchange: str = topology.EVENTS_EXCHANGE


EVENTS = (
    Event(topology.TASK_VALIDATED, "receive", events.ValidatedData),
    Event(topology.ARTIFACT_TAINTED, "receive", events.TaintedData),
    Event(topology.EMBED_COMMAND, "receive", events.ValidatedData, exchange=topology.COMMANDS_EXCHANGE),
    Event(topology.EMBEDDING_COMPLETED, "send", events.CompletedData),
    Event(topology.EMBEDDING_INVALIDATED, "send", events.InvalidatedData),
    Event(topology.EMBEDDING_FAILED, "send", events.FailedData),
    Event(topology.EMBEDDING_QUARANTINED, "send", events.QuarantinedData),
    Event(topology.ANSWER_RECALLED, "send", events.RecalledData),
)


def documents() -> dict[Path, str]:
    """Every document, by its path below docs."""
    schemas = {f"event.{event.name}": event.data for event in EVENTS}
    schemas |= {"event.envelope": events.Envelope}
    schemas |= {f"http.{_kebab(model.__name__)}": model for model in API_MODELS}
    found = {Path("schemas") / f"{name}.json": _text(_schema(model)) for name, model in schemas.items()}
    return {Path("asyncapi.json"): _text(asyncapi()), **found}


def asyncapi() -> dict[str, Any]:
    """The AsyncAPI 3.0 document of the service."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "DATS RAG service",
            "version": "1.0.0",
            "description": "Approved outputs become searchable, tainted ones vanish from every answer at once. "
            "JSON in UTF-8, persistent messages; the routing key is the event's type.",
        },
        "defaultContentType": "application/json",
        "channels": {event.name: _channel(event) for event in EVENTS},
        "operations": {f"{event.action}.{event.name}": _operation(event) for event in EVENTS},
        "components": {"messages": {event.name: _message(event) for event in EVENTS}},
    }


def main() -> int:
    """0 when the documents are written or up to date, else 1."""
    if "--write" in sys.argv[1:]:
        for path, text in documents().items():
            (DOCS / path).parent.mkdir(parents=True, exist_ok=True)
            (DOCS / path).write_text(text, encoding="utf-8")
        return 0
    stale = differing(DOCS)
    if stale:
        sys.stderr.write(f"out of date: {', '.join(map(str, stale))}; run `{COMMAND}`\n")
    return int(bool(stale))


def differing(docs: Path) -> list[Path]:
    """Documents below `docs` that are missing, differ, or belong to no model any more."""
    wanted = documents()
    kept = {path.relative_to(docs) for path in (docs / "schemas").glob("*.json")}
    stale = [path for path, text in wanted.items() if not _same(docs / path, text)]
    return sorted([*stale, *(kept - wanted.keys())])


def _same(file: Path, text: str) -> bool:
    return file.is_file() and file.read_text(encoding="utf-8") == text


_EXCHANGE_TYPES = {topology.EVENTS_EXCHANGE: "topic", topology.COMMANDS_EXCHANGE: "direct"}


def _channel(event: Event) -> dict[str, Any]:
    queues = [queue.name for queue in topology.QUEUES if event.name in queue.routing_keys]
    binding = {
        "is": "routingKey",
        "exchange": {
            "name": event.exchange,
            "type": _EXCHANGE_TYPES[event.exchange],
            "durable": True,
            "autoDelete": False,
        },
    }
    channel = {
        "address": event.name,
        "messages": {event.name: {"$ref": f"#/components/messages/{event.name}"}},
        "bindings": {"amqp": binding},
    }
    if event.action == "receive":
        channel["description"] = f"Consumed from the quorum queue {', '.join(queues)}."
    return channel


def _operation(event: Event) -> dict[str, Any]:
    return {
        "action": event.action,
        "channel": {"$ref": f"#/channels/{event.name}"},
        "messages": [{"$ref": f"#/channels/{event.name}/messages/{event.name}"}],
    }


_TRACED = {
    "type": "object",
    "properties": {
        TRACEPARENT_HEADER: {
            "type": "string",
            "description": "whose trace the message belongs to (W3C Trace Context); not needed",
        }
    },
}


def _message(event: Event) -> dict[str, Any]:
    return {
        "name": event.name,
        "contentType": "application/json",
        "summary": (event.data.__doc__ or "").split("\n")[0],
        "headers": _TRACED,
        "payload": _payload(event),
    }


def _payload(event: Event) -> dict[str, Any]:
    payload = _schema(events.Envelope)
    data = _schema(event.data)
    # References of a nested schema are resolved from the document's root: put the parts in place of them.
    payload["properties"]["data"] = _inlined(data, data.pop("$defs", {}))
    if event.action == "send":
        payload["required"] = ["specversion", "id", "source", "type", "time", "data"]
    return payload


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema()


def _inlined(schema: Any, parts: Mapping[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_inlined(item, parts) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return {**_inlined(parts[schema["$ref"].rpartition("/")[2]], parts), **rest}
    return {key: _inlined(value, parts) for key, value in schema.items()}


def _kebab(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


def _text(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False, sort_keys=True) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
