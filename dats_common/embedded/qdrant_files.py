"""An embedded collection's files: its description, and a shard made, opened and removed whole or not at all.

collections/NAME/collection.json  how it was created, its metadata and payload indexes
collections/NAME/shard/           the engine's own files
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import qdrant_edge as edge
from google.protobuf import json_format  # type: ignore[import-untyped]
from qdrant_client import grpc

from dats_common.embedded import qdrant_translate as translate
from dats_common.errors import ConfigurationError

DESCRIPTION_FILE = "collection.json"


@dataclass(frozen=True, slots=True)
class Description:
    """How a collection was made: enough to open it again and to describe it on the wire."""

    create: grpc.CreateCollection
    indexes: Mapping[str, grpc.CreateFieldIndexCollection] = field(default_factory=dict)

    def to_json(self) -> str:
        """The text of `collection.json`."""
        body = {
            "format": 1,
            "create": json_format.MessageToDict(self.create),
            "indexes": {name: json_format.MessageToDict(one) for name, one in self.indexes.items()},
        }
        return json.dumps(body, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Description:
        """Raises: ValueError: not such a text."""
        body = json.loads(text)
        if body.get("format") != 1:
            raise ValueError(f"unknown format {body.get('format')!r}")
        return cls(
            create=json_format.ParseDict(body["create"], grpc.CreateCollection()),
            indexes={
                name: json_format.ParseDict(one, grpc.CreateFieldIndexCollection())
                for name, one in body["indexes"].items()
            },
        )


def write_description(path: Path, description: Description) -> None:
    """Old or new, never half of it, and on disk when this returns."""
    target = path / DESCRIPTION_FILE
    fresh = target.with_suffix(".new")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(description.to_json())
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(target)
    _sync_directory(path)


def create_shard(path: Path, description: Description, config: Any) -> Any:
    """The description is written last: without it the directory counts as never created."""
    remove_shard(path)
    path.mkdir(parents=True)
    shard = edge.EdgeShard.create(str(path / "shard"), config)
    shard.flush()
    write_description(path, description)
    _sync_directory(path.parent)
    return shard


def open_shard(path: Path) -> tuple[Description | None, Any]:
    """The shard with its description, or (None, None) for what is left of a creation or deletion cut short."""
    try:
        text = (path / DESCRIPTION_FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        remove_shard(path)
        return None, None
    try:
        description = Description.from_json(text)
        shard = edge.EdgeShard.load(str(path / "shard"))
        present = shard.info().payload_schema
        for name, request in description.indexes.items():
            if name not in present:
                shard.update(edge.UpdateOperation.create_field_index(name, translate.field_schema(request)))
    except BaseException as error:  # A panic of the engine is no Exception.
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise ConfigurationError(
            f"the index in {path} cannot be opened ({error}). It holds nothing that the ledger does not: "
            "move the directory away and run `dats-rag reindex`."
        ) from error
    return description, shard


def remove_shard(path: Path) -> None:
    """The description goes first, so that a removal cut short is finished at the next start."""
    if path.exists():
        (path / DESCRIPTION_FILE).unlink(missing_ok=True)
        _sync_directory(path)
        shutil.rmtree(path)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
