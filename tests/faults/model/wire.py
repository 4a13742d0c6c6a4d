"""The model's small numbers and labels as what producers send, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dats_common.contracts.events import parse_validated, rfc3339
from dats_common.contracts.topology import EMBED_COMMAND, TASK_VALIDATED
from dats_common.domain.model import NEVER

from .state import Approved, Scenario, Tainted

START_US = 1_600_000_000_000_000
TICK_US = 1_000_000_000
"""One step of the model's clock: longer than anything that production times within a run."""


def ticks(ord_us: int) -> int:
    """An ORD as the model counts."""
    return NEVER if ord_us == NEVER else (ord_us - START_US) // TICK_US


def validated_body(event: Approved) -> Mapping[str, Any]:
    """What QA would send."""
    data = {
        "artifact_id": event.key.artifact_id,
        "tenant_id": event.key.tenant_id,
        "content": words(event.content),
        "metadata": {"project_id": "p"},
    }
    return {"data": data, **_time(event.claimed)}


def validated_type(event: Approved) -> str:
    """How the broker would bring it: only a command may claim the ledger's own clock."""
    return EMBED_COMMAND if event.own_clock else TASK_VALIDATED


def tainted_body(taint: Tainted, number: int) -> Mapping[str, Any]:
    """What Cascade would send; the answer tells by `cascade_id` which taint it is about."""
    data = {"artifact_ids": list(taint.artifact_ids), "tenant_id": taint.tenant_id, "cascade_id": str(number)}
    return {"data": data, **_time(taint.claimed)}


def words(content: str) -> str:
    """A text of two chunks."""
    return " ".join(f"paragraph {number} of content {content}." for number in range(6))


def labels(scenario: Scenario) -> dict[str, str]:
    """The model's name of each content, by the hash that the ledger knows it by."""
    return {
        parse_validated(
            json.dumps(validated_body(event)).encode(), event_type=validated_type(event)
        ).content_hash: event.content
        for event in scenario.approved
    }


def _time(claimed: int | None) -> dict[str, str]:
    return {} if claimed is None else {"time": rfc3339(START_US + claimed * TICK_US)}
