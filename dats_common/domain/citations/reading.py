"""What a bracket says, as it reads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dats_common.domain.citations.issued import Issued

_SEPARATOR = re.compile(r"[,;&]|\band\b|(?<=\d) (?=\d)")
_ID = r"[0-9a-f-]{36}:[0-9]+"
_SOURCE_ID_WORD = r"source[ _-]?[il|]ds?"  # An l or a bar reads as an i.
_ITEM = re.compile(
    rf"(?:(?:{_SOURCE_ID_WORD}|sources?) ?[:#=]? ?#? ?)?"
    rf"(?:(?P<id>{_ID})|(?P<low>[0-9]+)(?: ?(?:-|to) ?(?P<high>[0-9]+))?|-[0-9]+)"
)
_NAMES_SOURCE_ID = re.compile(rf"{_SOURCE_ID_WORD}\b")
_NAMES_SOURCE = re.compile(r"sources?[:#=]")
PREFIX = re.compile(r"\[[^a-z0-9]*source(?:(?P<id>[_-]?[il|]ds?)|s)?[:#=]")
BARE = re.compile(rf"(?:{_SOURCE_ID_WORD} ?[:#=]? ?)?(?P<id>{_ID})")


def _prefixes(*atoms: str) -> str:
    """A pattern for every beginning of the sequence of atoms."""
    pattern = ""
    for atom in reversed(atoms):
        pattern = f"(?:{atom}{pattern})?"
    return pattern


_ID_PREFIX = r"(?:[0-9a-f-]{0,36}|[0-9a-f-]{36}:[0-9]*)"
BARE_PREFIX = re.compile(
    rf"{_prefixes(*'source', '[ _-]', '[il|]', 'd', 's')}|{_prefixes(*'source', '[il|]', 'd', 's')}"
    rf"|(?:{_SOURCE_ID_WORD} ?[:#=]? ?)?{_ID_PREFIX}"
)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a marker says: the issued ids, how many parts were not issued, and whether it names SourceIds."""

    source_ids: tuple[str, ...]
    refused: int
    names_source_id: bool


def read_marker(folded: str, issued: Issued, *, claimed: bool) -> Reading | None:
    """What a bracket says; None if it is no marker.

    Args:
        folded: as it reads, from bracket to bracket; white space as single blanks.
        claimed: it is known to name a SourceId.
    """
    parts = [part.strip(" ^#") for part in _SEPARATOR.split(folded[1:-1].replace("\\", ""))]
    items = [_ITEM.fullmatch(part) for part in parts if part]
    names_source_id = claimed or _NAMES_SOURCE_ID.search(folded) is not None
    if items and all(items):
        meant = [_sources_of(item, issued) for item in items if item]
        ids = tuple(source_id for sources in meant for source_id in sources)
        return Reading(ids, sum(not sources for sources in meant), names_source_id)
    if names_source_id or _NAMES_SOURCE.search(folded):
        return Reading((), 1, names_source_id)
    return None


def _sources_of(item: re.Match[str], issued: Issued) -> Sequence[str]:
    """What a part of a marker cites; nothing unless all of it was issued."""
    source_id, low, high = item["id"], item["low"], item["high"]
    if source_id:
        return (source_id,) if source_id in issued else ()
    if low is None or any(number and number[0] == "0" for number in (low, high)):
        return ()
    first, last = int(low), int(high or low)
    if first > last or last > len(issued.source_ids):
        return ()
    return issued.source_ids[first - 1 : last]
