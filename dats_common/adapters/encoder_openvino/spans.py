"""Where the tokens of a text lie, word by word: words come again, and a tokenizer follows each character anew."""

from __future__ import annotations

import re
from collections.abc import Callable

_WORD = re.compile(r"[^ \t\n\r]+")
_LONGEST_WORD = 64
"""In characters; longer ones hardly come again."""
_MOST_WORDS = 32_768
"""Kept at most, some 10 MB."""

Spans = tuple[tuple[int, int], ...]


class WordSpans:
    """Token spans of whole texts by a tokenizer that splits at white space, as BERT's does, before anything else."""

    def __init__(self, spans_of: Callable[[str], Spans]) -> None:
        """Put it before `spans_of`, which gives the spans of the tokens of any text."""
        self._spans_of = spans_of
        self._known: dict[str, Spans] = {}

    def of(self, text: str) -> list[tuple[int, int]]:
        """Start and end of each token, in characters of `text`."""
        found: list[tuple[int, int]] = []
        for match in _WORD.finditer(text):
            word, place = match.group(), match.start()
            spans = self._known.get(word)
            if spans is None:
                spans = self._learn(word)
            for start, end in spans:
                found.append((start + place, end + place))
        return found

    def _learn(self, word: str) -> Spans:
        spans = self._spans_of(word)
        if len(word) <= _LONGEST_WORD:
            if len(self._known) >= _MOST_WORDS:
                self._known.clear()
            self._known[word] = spans
        return spans
