"""Pages of real English prose that every machine with Python has: the language reference, as `help()` shows it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

WORDS_A_PAGE = 500
"""Source: spec 1, "documents of a page each"."""
_SHIFT = 167  # Words by which a second pass over the text is displaced: no page is a copy of another.


@cache
def _words() -> tuple[str, ...]:
    from pydoc_data.topics import topics

    return tuple(word for name in sorted(topics) for word in topics[name].split(" "))


def pages(count: int, *, label: str, words: int = WORDS_A_PAGE) -> list[str]:
    """So many different pages; the label makes them differ from every other call's.

    The text is split at blanks alone, so that lines and paragraphs, which the chunker cuts at, stay as they are.
    """
    text = _words()
    a_pass = len(text) // words
    found = []
    for number in range(count):
        passes, place = divmod(number, a_pass)
        first = (place * words + passes * _SHIFT) % (len(text) - words)
        found.append(f"{label} {number}\n\n{' '.join(text[first : first + words])}")
    return found


def questions(count: int, *, seed: int = 1) -> list[str]:
    """Runs of eight words out of the text, the same ones for the same seed."""
    chance = random.Random(seed)
    text = " ".join(_words()).split()
    return [" ".join(text[first : first + 8]) for first in (chance.randrange(len(text) - 8) for _ in range(count))]


class Filler(NamedTuple):
    """A chunk of filler: its text, and which of the real texts it resembles."""

    text: str
    resembles: int


def filler(real: Sequence[str], count: int, *, seed: int) -> Iterator[Filler]:
    """Variations of real chunks, each with a fifth of its words drawn from elsewhere."""
    chance = random.Random(seed)
    vocabulary = _words()
    for number in range(count):
        words = real[number % len(real)].split(" ")
        for place in chance.sample(range(len(words)), max(1, len(words) // 5)):
            words[place] = chance.choice(vocabulary)
        yield Filler(" ".join(words), number % len(real))
