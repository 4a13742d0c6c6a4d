"""Contracts only grow: what the last release sent is still read, and what it read is still sent."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from evolution import Direction, breaks
from releases import last_release

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"
FROZEN = sorted(path.name for path in last_release().schemas.glob("*.json"))
# Others send these. The envelope surrounds events both ways, and writers of both releases read a replica's command.
TAKEN = ("event.task.", "event.artifact.", "event.envelope", "event.rag.embed")


def directions(name: str) -> list[Direction]:
    if name.startswith(("event.envelope", "event.rag.embed")):
        return ["in", "out"]
    return ["in"] if name.startswith(TAKEN) or name.endswith("-request.json") else ["out"]


def schema(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", FROZEN)
def test_a_contract_only_grows_since_the_last_release(name: str) -> None:
    assert (SCHEMAS / name).is_file(), "a contract of the last release is gone"
    old, new = schema(last_release().schemas, name), schema(SCHEMAS, name)
    assert [found for direction in directions(name) for found in breaks(old, new, direction=direction)] == []


def changed(name: str, **changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    old = schema(SCHEMAS, name)
    new = copy.deepcopy(old)
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = new
        for each in parents:
            place = place[each]
        if value is None:
            del place[last]
        else:
            place[last] = value
    return old, new


ADDED = {"properties__colour": {"type": "string"}}


@pytest.mark.parametrize(
    ("name", "changes", "direction", "found"),
    [
        ("event.task.validated.json", ADDED, "in", []),
        ("event.embedding.completed.json", ADDED, "out", []),
        ("event.task.validated.json", ADDED | {"required": ["artifact_id", "content", "metadata", "colour"]}, "in",
         ["$.colour: may be missing"]),
        ("event.task.validated.json", {"properties__tenant_id": None}, "in", ["$.tenant_id: is gone"]),
        ("event.embedding.completed.json", {"properties__chunks": None}, "out", ["$.chunks: is gone"]),
        ("event.embedding.completed.json", {"properties__chunks__type": "string"}, "out",
         ["$.chunks: string against integer"]),
        ("event.embedding.completed.json", {"properties__status__enum": ["indexed", "unchanged", "brewed"]}, "out",
         ["$.status: more values than ['indexed', 'unchanged']"]),
        ("event.embedding.completed.json", {"required": ["artifact_id"]}, "out",
         [f"$.{field}: may be missing" for field in ("chunks", "generation", "status", "version")]),
        ("http.query-request.json", {"properties__top_k__maximum": 50}, "in", ["$.top_k: maximum 50 against 100"]),
        ("http.query-request.json", {"properties__top_k__maximum": 200}, "in", []),
    ],
)  # fmt: skip
def test_what_breaks_others_is_found_and_what_is_added_is_not(
    name: str, changes: dict[str, Any], direction: Direction, found: list[str]
) -> None:
    assert breaks(*changed(name, **changes), direction=direction) == found


def test_a_field_of_a_nested_object_that_is_gone_is_found() -> None:
    old, new = changed("http.query-response.json", **{"$defs__SourceReference__properties__snippet": None})
    assert "$.sources[].snippet: is gone" in breaks(old, new, direction="out")
