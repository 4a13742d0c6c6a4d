"""A source and its sentences as words, read once for all who judge by it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dats_common.domain.sentences import Span, sentences
from dats_common.domain.sparse import STOP_WORDS, terms

WINDOW_SENTENCES = 3
"""Source: as `grounding.SUPPORTED_FROM`. One sentence is too narrow for claims that sum up; whole sources make any
claim look supported once there are several."""

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Reading:
    """A sentence and its words: terms are stemmed and carry meaning, `words` are these and the small ones."""

    text: str
    terms: frozenset[str]
    words: frozenset[str]


@dataclass(frozen=True, slots=True)
class Passage:
    """A source, its sentences and their places in it, and every few of them that stand together."""

    text: str
    spans: tuple[Span, ...]
    sentences: tuple[Reading, ...]
    windows: tuple[Reading, ...]


def read_sentence(text: str) -> Reading:
    """The words of one sentence."""
    found = frozenset(terms(text))
    small = {word for word in _WORD.findall(text.lower()) if word in STOP_WORDS}
    return Reading(text, found, found | small)


@lru_cache(maxsize=256)  # An answer's sources are judged by several, and those that are asked for much come again.
def read_passage(source: str) -> Passage:
    """The sentences of a source."""
    spans = tuple(sentences(source))
    found = tuple(read_sentence(source[start:end]) for start, end in spans)
    return Passage(source, spans, found, tuple(_windows(found)))


def _windows(passage: Sequence[Reading]) -> Iterator[Reading]:
    for first in range(max(1, len(passage) - WINDOW_SENTENCES + 1)):
        window = passage[first : first + WINDOW_SENTENCES]
        yield Reading(
            "",
            frozenset().union(*(each.terms for each in window)),
            frozenset().union(*(each.words for each in window)),
        )
