"""Where an interrupted rebuild goes on: one small file in the data directory, replaced whole at each step."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from dats_common.domain.model import ArtifactKey


@dataclass(frozen=True, slots=True)
class Position:
    """How far a rebuild came.

    Attributes:
        target: which collection it writes, and with which model. Another one's position is of no use.
        recreated: it had dropped the collection first, and must not do that again.
    """

    target: str
    recreated: bool
    artifacts: int
    chunks: int
    tenant_id: str
    artifact_id: str

    @property
    def last(self) -> ArtifactKey:
        """The last artifact whose points are stored."""
        return ArtifactKey(self.tenant_id, self.artifact_id)


def load_position(path: Path, *, target: str) -> Position | None:
    """The position of an interrupted rebuild of `target`; None when there is none that can be read."""
    try:
        position = Position(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return position if position.target == target else None


def save_position(path: Path, position: Position) -> None:
    """Returns once it would outlive a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    with fresh.open("w", encoding="utf-8") as file:
        json.dump(asdict(position), file)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
