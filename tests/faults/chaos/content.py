"""The events' texts and bodies. Each chunk names its artifact and version, so that an answer can be judged."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dats_common.contracts.events import rfc3339
from tests.faults.chaos.plan import Event, Kind

QUESTION = "ledger report of invoices"
PROJECT = "chaos"

_LABEL = re.compile(r"\[(\S+) v(\d+)\]")
_SENTENCES = (
    "The ledger report of invoices names approvals and payments.",
    "Its second part of the ledger report lists invoices that are still open, who approved them and when they are due.",
)


def text(artifact: str, version: int) -> str:
    """One chunk, and two for every fourth artifact: in a fleet whose chunks have `CHUNK_TOKENS` at most."""
    parts = _SENTENCES if int(artifact[1:]) % 4 == 0 else _SENTENCES[:1]
    return "\n\n".join(f"[{artifact} v{version}] {sentence}" for sentence in parts)


CHUNK_TOKENS = 32


def label(found: str) -> tuple[str, int] | None:
    """Artifact and version that a text begins with."""
    match = _LABEL.match(found)
    return (match[1], int(match[2])) if match else None


def message(event: Event, *, origin_us: int) -> tuple[str, dict[str, Any]]:
    """Routing key and body of an event that goes over AMQP, as a foreign producer writes them."""
    if event.kind is Kind.POISON:
        return "task.validated", {"id": event.event_id, "data": {"artifact_id": event.artifact, "content": 7}}
    data: dict[str, Any]
    if event.kind is Kind.TAINT:
        routing_key, data = "artifact.tainted", {"artifact_ids": [event.artifact], "cascade_id": event.event_id}
    else:
        metadata = {"project_id": PROJECT, "task_id": event.event_id}
        routing_key = "task.validated"
        data = {"artifact_id": event.artifact, "content": text(event.artifact, event.version), "metadata": metadata}
    envelope: dict[str, Any] = {
        "specversion": "1.0",
        "id": event.event_id,
        "source": "chaos",
        "type": routing_key,
        "data": data,
    }
    if event.at_us is not None:
        envelope["time"] = rfc3339(origin_us + event.at_us)
    return routing_key, envelope


def shown(answer: Mapping[str, Any]) -> list[list[Any]]:
    """What an answer of POST /query shows: artifact, version and chunk of each source; version 0: unreadable."""
    return [_source(each) for each in answer["sources"]]


def _source(source: Mapping[str, Any]) -> list[Any]:
    named = label(source["snippet"])
    version = named[1] if named is not None and named[0] == source["artifact_id"] else 0
    return [source["artifact_id"], version, source["chunk_index"]]


def versions(rows: Sequence[Mapping[str, Any]]) -> dict[int, tuple[str, int]]:
    """Artifact and version of each generation, from rows of the ledger's documents."""
    named = {int(row["generation"]): label(row["body"]) for row in rows}
    return {generation: found for generation, found in named.items() if found is not None}
