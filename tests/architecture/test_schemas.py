"""What crosses a process is frozen: a change of a model shows as a change of a committed document."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from dats_common.contracts import topology
from dats_common.contracts.asyncapi import COMMAND, DOCS, asyncapi, differing, documents
from dats_common.contracts.events import build_completed, build_embed_command, build_invalidated
from dats_common.contracts.metadata import ArtifactMetadata

ROOT = Path(__file__).parents[2]


def payload_of(event_type: str) -> dict[str, object]:
    payload: dict[str, object] = asyncapi()["components"]["messages"][event_type]["payload"]
    return payload


def test_the_committed_schemas_and_asyncapi_document_agree_with_the_models() -> None:
    stale = differing(ROOT / DOCS)
    assert not stale, f"{[str(path) for path in stale]} differ: run `{COMMAND}` and review the change"


def test_a_changed_a_missing_and_a_left_over_document_are_found(tmp_path: Path) -> None:
    for path, text in documents().items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    assert differing(tmp_path) == []
    (tmp_path / "asyncapi.json").write_text("{}", encoding="utf-8")
    (tmp_path / "schemas" / "http.problem.json").unlink()
    (tmp_path / "schemas" / "http.gone.json").write_text("{}", encoding="utf-8")
    assert differing(tmp_path) == [
        Path("asyncapi.json"),
        Path("schemas/http.gone.json"),
        Path("schemas/http.problem.json"),
    ]


def test_every_schema_is_valid_json_schema() -> None:
    for path, text in documents().items():
        if path.parts[0] == "schemas":
            jsonschema.Draft202012Validator.check_schema(json.loads(text))


def test_every_queue_of_the_topology_is_documented() -> None:
    text = json.dumps(asyncapi())
    assert all(queue.name in text for queue in topology.QUEUES)
    assert topology.COMMANDS_EXCHANGE in text


def test_every_reference_of_the_asyncapi_document_leads_somewhere() -> None:
    document = asyncapi()

    def references(value: object) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if "$ref" in value else []
            return own + [found for item in value.values() for found in references(item)]
        return [found for item in value for found in references(item)] if isinstance(value, list) else []

    found = references(document)
    assert found
    for reference in found:
        target: object = document
        for part in reference.removeprefix("#/").split("/"):
            assert isinstance(target, dict)
            target = target[part]


@pytest.mark.parametrize("data", [{"artifact_id": "a"}, {"artifact_ids": ["a", "b"]}])
def test_a_bare_taint_of_spec_1_fits_its_schema(data: dict[str, object]) -> None:
    jsonschema.validate({"data": data}, payload_of(topology.ARTIFACT_TAINTED))


def test_a_bare_validated_of_spec_1_fits_its_schema_and_one_without_content_does_not() -> None:
    data = {"artifact_id": "art-789", "content": "def fibonacci(n: int)", "metadata": {"project_id": "proj-123"}}
    jsonschema.validate({"data": data}, payload_of(topology.TASK_VALIDATED))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"data": {**data, "content": ""}}, payload_of(topology.TASK_VALIDATED))


def test_what_we_publish_fits_its_schema() -> None:
    completed = build_completed(event_id="e", at=0, artifact_id="a", chunks=3, version=1, generation=2)
    jsonschema.validate(completed, payload_of(topology.EMBEDDING_COMPLETED))
    invalidated = build_invalidated(
        event_id="e", at=0, artifact_ids=["a"], tenant_id=None, cascade_id=None, chunks_removed=3, through=1
    )
    jsonschema.validate(invalidated, payload_of(topology.EMBEDDING_INVALIDATED))
    command = build_embed_command(
        event_id="e",
        at=0,
        artifact_id="a",
        content="0123456789",
        metadata=ArtifactMetadata(project_id="p"),
        tenant_id="default",
    )
    jsonschema.validate(command, payload_of(topology.EMBED_COMMAND))
