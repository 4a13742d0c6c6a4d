"""One shape for the model's state and for production's, so that they can be compared."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from dats_common.contracts.topology import EMBEDDING_INVALIDATED, PUBLISHED_QUEUE
from dats_common.domain.model import NEVER

from .stage import Stage, message_name, taint_name
from .state import ACKED, Scenario, State, Told, World, told
from .steps import shown
from .wire import labels, ticks

Projection = Mapping[str, Any]


# --------------------------------------------------------------------------------------------------------------- model


def of_model(world: World, state: State) -> Projection:
    """The model's state; of the relay only what the scenario looks at closely."""
    scenario = world.scenario
    exact = scenario.fine_relay
    live = [(key, row) for key, row in enumerate(state.rows) if row]
    return {
        "rows": {
            key: (*row.tombstone, row.version, row.own_clock and row.version > NEVER, row.live, row.content)
            for key, row in live
        },
        "wildcards": {
            scenario.keys[key].artifact_id: tuple(stone)
            for key, stone in enumerate(state.wildcards)
            if stone.at > NEVER
        },
        "pending": set(state.pending),
        "texts": set(state.texts),
        "quarantine": {item[:3] for item in state.quarantine},
        "receipts": set(state.receipts),
        "told": {_said(event) for event in told(state)},
        "unsent": [_said(event) for event in state.unsent],
        "published": {_said(event) for event in state.published if exact or event.kind == "invalidated"},
        "points": {point.generation for point in state.points},
        "acked": {message_name(number) for number, status in enumerate(state.messages) if status == ACKED}
        | {taint_name(number) for number, status in enumerate(state.taints) if status == "acked"},
        "visible": {(key, row.version) for key, row in live if shown(world, state, key)},
    }


def _said(event: Told) -> tuple[Any, ...]:
    if event.kind == "invalidated":
        return (event.kind, event.taint, event.tombstone.through)
    return (event.kind, event.key, event.ord)


# ---------------------------------------------------------------------------------------------------------- production


async def of_production(scenario: Scenario, stage: Stage, database: Path) -> Projection:
    """Production's state, read past its ports: the tables, the index, the broker; and what a query returns."""
    exact = scenario.fine_relay
    documents = {key.document_id: number for number, key in enumerate(scenario.keys)}
    with closing(sqlite3.connect(database)) as connection:
        found = _tables(scenario, connection)
        events = connection.execute("SELECT body, sent_at FROM rag_outbox ORDER BY id").fetchall()
    unsent = [_event(body, documents) for body, sent_at in events if sent_at is None]
    if not exact:  # there the model publishes all but invalidated at once, and the rest in no order
        unsent = sorted(event for event in unsent if event[0] == "invalidated")
    points: set[int] = set()
    async for page in stage.index.scan():
        points.update(*page.values())
    return {
        **found,
        "told": {_event(body, documents) for body, _ in events},
        "unsent": unsent,
        "published": {
            _event(message.body, documents)
            for message in stage.bus.queue(PUBLISHED_QUEUE)
            if exact or message.event_type == EMBEDDING_INVALIDATED
        },
        "points": points,
        "acked": set(stage.broker.acked),
        "visible": {
            (scenario.keys.index(ref.key), ticks(version))
            for tenant_id in {key.tenant_id for key in scenario.keys}
            for ref, version in await stage.ask(stage.ledger, tenant_id)
        },
    }


def _tables(scenario: Scenario, connection: sqlite3.Connection) -> dict[str, Any]:
    keys = {(key.tenant_id, key.artifact_id): number for number, key in enumerate(scenario.keys)}
    named = labels(scenario)

    def rows(statement: str) -> list[Any]:
        return connection.execute(statement).fetchall()

    return {
        "rows": {
            keys[row[0], row[1]]: (*map(ticks, row[2:6]), bool(row[6]), row[7] or 0, named.get(row[8], ""))
            for row in rows(
                "SELECT tenant_id, artifact_id, tainted_at, tainted_through, tainted_through_own, version,"
                " version_own_clock, live_generation, content_hash FROM rag_artifacts"
            )
        },
        "wildcards": {
            row[0]: tuple(map(ticks, row[1:]))
            for row in rows("SELECT artifact_id, tainted_at, tainted_through, tainted_through_own FROM rag_wildcards")
        },
        "pending": {row[0] for row in rows("SELECT generation FROM rag_pending")},
        "texts": {row[0] for row in rows("SELECT generation FROM rag_chunks")},
        "quarantine": {
            (keys[row[0], row[1]], ticks(row[2]), named[row[3]])
            for row in rows("SELECT tenant_id, artifact_id, version, content_hash FROM rag_quarantine")
        },
        "receipts": {
            (keys[row[0], row[1]], named[row[2]], None if row[3] == NEVER else ticks(row[3]), ticks(row[4]))
            for row in rows("SELECT tenant_id, artifact_id, content_hash, claimed, placed FROM rag_receipts")
            if scenario.keeps_receipts
        },
    }


def _event(body: str | bytes, documents: Mapping[str, int]) -> tuple[Any, ...]:
    event = json.loads(body)
    kind, data = event["type"].partition(".")[2], event["data"]
    if kind == "invalidated":
        return (kind, int(data["cascade_id"]), ticks(data["through"]))
    return (kind, documents[event["id"].split(":")[1]], ticks(data["version"]))
