"""The sources of one request, and an answer that names no others."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

# Source: spec 2, "Citation Extraction Regex".
SOURCE_ID_PATTERN = re.compile(r"\[SourceId:\s*([a-f0-9-]{36}:\d+)\]")

_SOURCE_ID = re.compile(r"[a-f0-9-]{36}:\d+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Issued:
    """The sources that one request's prompt shows, in its order: alias 1 is the first.

    Raises: ValueError: one of them is no source id.
    """

    source_ids: tuple[str, ...]

    def __post_init__(self) -> None:
        for source_id in self.source_ids:
            if not _SOURCE_ID.fullmatch(source_id):
                raise ValueError(f"not a source id: {source_id!r}")

    @classmethod
    def of(cls, source_ids: Iterable[str]) -> Issued:
        """From ids in the order of the prompt."""
        return cls(tuple(source_ids))

    def __contains__(self, source_id: object) -> bool:
        return source_id in self.source_ids

    def source_id(self, alias: int) -> str | None:
        """What the alias stands for; None if it was not issued."""
        return self.source_ids[alias - 1] if 1 <= alias <= len(self.source_ids) else None

    def alias(self, source_id: str) -> int | None:
        """The number that the prompt shows for it; None if it was not issued."""
        return self.source_ids.index(source_id) + 1 if source_id in self.source_ids else None


@dataclass(frozen=True, slots=True)
class Span:
    """A canonical marker: `text[start:end] == "[SourceId: {source_id}]"`, offsets in characters."""

    start: int
    end: int
    source_id: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """An answer that names only issued sources.

    Attributes:
        source_ids: what it cites, each once, by first appearance.
        spans: its markers, in order; those in code are none.
        refused: how many markers were removed.
    """

    text: str
    source_ids: tuple[str, ...]
    spans: tuple[Span, ...]
    refused: int

    @property
    def grounded(self) -> bool:
        """At least one issued source is cited. Source: spec 2, "grounded Definition"."""
        return bool(self.source_ids)


def canonical(source_id: str) -> str:
    """The marker of a source as it leaves us."""
    return f"[SourceId: {source_id}]"
