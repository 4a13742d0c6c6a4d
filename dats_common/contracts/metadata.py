"""What a producer may say about an artifact: one definition for events and for POST /embed."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import ConfigDict, Field, field_validator, model_validator

from dats_common.contracts.fields import (
    MAX_TAGS,
    ArtifactId,
    Identifier,
    Label,
    Line,
    Tag,
    TenantId,
    Wire,
    unique,
)
from dats_common.domain.model import Scope, SourceMetadata

MAX_EXTRA_BYTES = 16 * 1024

# Never carried into `extra`: the artifact's key says these.
_KEY_FIELDS = frozenset({"artifact_id", "tenant_id"})


class ArtifactMetadata(Wire):
    """An artifact's metadata. Unknown keys are kept with the artifact, uninterpreted.

    `null` means absent, except for `verified`: an unclear approval is refused.
    """

    model_config = ConfigDict(extra="allow")

    artifact_id: ArtifactId | None = None
    tenant_id: TenantId | None = None
    project_id: Identifier
    provenance_id: Label = ""
    task_id: Label = ""
    domain: Label = ""
    doc_type: Label = ""
    verified: bool = True
    scope: Annotated[Scope, Field(strict=False)] = Scope.PROJECT
    user_id: Identifier | None = None
    tags: Annotated[list[Tag], Field(default_factory=list, max_length=MAX_TAGS)]
    title: Line = ""
    language: Label = ""
    source_type: Label = ""
    source_id: Label = ""
    source_uri: Line = ""
    source_updated_at: Label = ""

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: item for key, item in value.items() if item is not None or key == "verified"}

    @field_validator("tags")
    @classmethod
    def _each_tag_once(cls, tags: list[str]) -> list[str]:
        return unique(tags)

    @model_validator(mode="after")
    def _is_whole(self) -> ArtifactMetadata:
        if self.scope is Scope.USER and self.user_id is None:
            raise ValueError("scope 'user' needs user_id")
        if len(self.extra_json().encode()) > MAX_EXTRA_BYTES:
            raise ValueError(f"unknown keys hold more than {MAX_EXTRA_BYTES} bytes of JSON")
        return self

    def extra_json(self) -> str:
        """Canonical JSON of the keys we do not interpret: equal content gives equal text.

        Raises: ValueError: a string that no database takes, a number that is not finite, or a value that is not JSON.
        """
        extra = self.model_extra or {}
        _check_storable(extra)
        return json.dumps(extra, sort_keys=True, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_source(cls, source: SourceMetadata) -> ArtifactMetadata:
        """The reverse of `to_source`."""
        known = {name: value for name, value in asdict(source).items() if name != "extra"}
        return cls.model_validate({**json.loads(source.extra), **known, "tags": list(source.tags)})

    def to_source(self) -> SourceMetadata:
        """The domain's value; the artifact's key is kept elsewhere."""
        known = {name: getattr(self, name) for name in type(self).model_fields if name not in _KEY_FIELDS}
        return SourceMetadata(**{**known, "tags": tuple(self.tags)}, extra=self.extra_json())


def _check_storable(value: object) -> None:
    match value:
        case None | bool() | int():
            return
        case str():
            if "\0" in value or not _is_unicode(value):
                raise ValueError("unknown keys hold a null character or a lone surrogate")
        case float():
            if not math.isfinite(value):
                raise ValueError("unknown keys hold a number that is not finite")
        case dict():
            for key, item in value.items():
                _check_storable(key)
                _check_storable(item)
        case list():
            for item in value:
                _check_storable(item)
        case _:
            raise ValueError("unknown keys hold something that is not JSON")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
