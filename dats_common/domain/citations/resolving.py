"""Whole texts: an answer with its markers resolved, or without any; a source with none that could be taken for one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dats_common.domain.citations.issued import Issued, Resolved
from dats_common.domain.citations.lookalikes import fold
from dats_common.domain.citations.reading import Reading
from dats_common.domain.citations.stream import MARKER, MarkerStream

_NOTHING = Issued(())
_MAY_HOLD_MARKER = re.compile(r"[^\t\n\r -~]|\[|[0-9A-Fa-f-]{36}:")
"""A bracket, an id, or a character that may read as a part of them: without any of these a text holds no marker."""


def resolve(answer: str, issued: Issued) -> Resolved:
    """The answer with every marker of an issued source in canonical form and every other one removed.

    To resolve what was resolved with the same map changes nothing.
    """
    stream = MarkerStream(issued)
    text = stream.feed(answer) + stream.finish()
    return Resolved(text, stream.source_ids, stream.spans, stream.refused)


def strip_markers(text: str) -> str:
    """The text without any markers: what it says, without what it cites."""
    return resolve(text, _NOTHING).text


def defuse_markers(text: str) -> str:
    """The text with whatever could be a marker in an answer in parentheses, also in code; nothing else changes.

    `see [1]` becomes `see (1)`, and an id and its index are joined by an underscore; `a[1]` stays.
    """
    if not _MAY_HOLD_MARKER.search(text):
        return text
    stream = _Defuser(_NOTHING)
    return stream.feed(text) + stream.finish()


class _Defuser(MarkerStream):
    """Lets everything leave, a marker in parentheses."""

    def _in_code(self, char: str) -> bool:
        return False  # A model may quote any part of a text, so what is code in it does not matter.

    def _opens_link(self, char: str) -> bool:
        return False

    def _found(self, raw: Sequence[str], reading: Reading) -> None:
        self._parenthesise(raw, joined=True)
        if fold(raw[0]) == "[":
            self._previous = MARKER

    def _give_up_claimed(self, prefix: Sequence[str], rest: Sequence[str]) -> None:
        self._held = None
        self._parenthesise(prefix, joined=False)
        self._push_all(rest)

    def _parenthesise(self, raw: Sequence[str], *, joined: bool) -> None:
        for char, following in zip(raw, [*raw[1:], " "], strict=True):
            match fold(char):
                case "[":
                    self._text("(")
                case "]":
                    self._text(")")
                case ":" if joined and not following.isspace():
                    self._text("_")
                case _:
                    self._text(char)
