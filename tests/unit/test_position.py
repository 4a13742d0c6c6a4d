"""Where an interrupted rebuild goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from dats_common.domain.model import ArtifactKey
from services.cli.position import Position, load_position, save_position

TARGET = "embedded/dats_embeddings/a-model"
POSITION = Position(TARGET, recreated=True, artifacts=3, chunks=40, tenant_id="acme", artifact_id="docs/ä.py")


def test_a_position_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "data" / "reindex.json"
    save_position(path, POSITION)
    assert load_position(path, target=TARGET) == POSITION
    assert POSITION.last == ArtifactKey("acme", "docs/ä.py")
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_the_newest_position_replaces_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "reindex.json"
    save_position(path, POSITION)
    save_position(path, Position(TARGET, True, 4, 50, "acme", "z"))
    found = load_position(path, target=TARGET)
    assert found is not None
    assert found.chunks == 50


def test_another_collection_or_model_has_no_position(tmp_path: Path) -> None:
    path = tmp_path / "reindex.json"
    save_position(path, POSITION)
    assert load_position(path, target="embedded/dats_embeddings/another-model") is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"target": 1}', "\x00"])
def test_a_file_that_cannot_be_read_is_no_position(tmp_path: Path, content: str) -> None:
    path = tmp_path / "reindex.json"
    path.write_text(content)
    assert load_position(path, target=TARGET) is None


def test_without_a_file_there_is_no_position(tmp_path: Path) -> None:
    assert load_position(tmp_path / "none.json", target=TARGET) is None
