"""What a text is made of, and where in it something stands: what every format is read into. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from dats_common.domain.model import Location

MAX_HEADING_CHARS = 200
MAX_ANCHOR_CHARS = 256
MAX_LEVEL = 12
"""Deeper structure is taken for part of what holds it."""


@dataclass(frozen=True, slots=True)
class Section:
    """A stretch of text under one heading, up to the next section of whatever level.

    Attributes:
        start: its first character, the heading's own.
        level: a section holds those behind it of a higher level.
        path: headings from the outermost to its own; of code, the names of definitions.
    """

    start: int
    level: int
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outline:
    """The structure of a text; every list is ascending.

    Attributes:
        sections: the first starts where the text does, unless there are none.
        blocks: where paragraphs, lists, tables and code begin: good places to cut.
        anchors: (offset, id) of places that a link can open.
    """

    sections: tuple[Section, ...] = ()
    blocks: tuple[int, ...] = ()
    anchors: tuple[tuple[int, str], ...] = ()


NO_OUTLINE = Outline()


@dataclass(frozen=True, slots=True)
class Piece:
    """`length` characters of a text from `start` on, which come from [source_start, source_end): one for one, or all
    from all where the two differ in length."""

    start: int
    length: int
    source_start: int
    source_end: int

    def source_of(self, start: int, end: int) -> tuple[int, int]:
        """Where the part of it within the characters [start, end) of the text comes from."""
        if self.source_end - self.source_start != self.length:
            return self.source_start, self.source_end
        low, high = max(0, start - self.start), min(self.length, end - self.start)
        return self.source_start + low, self.source_start + high


@dataclass(frozen=True, slots=True)
class Reading:
    """A source made readable.

    Attributes:
        text: what is cut, embedded and shown.
        outline: of `text`.
        pieces: where `text` came from, ascending by `start`, characters that were put between them left out; None: it
            is the source itself.
    """

    text: str
    outline: Outline = NO_OUTLINE
    pieces: tuple[Piece, ...] | None = None


class Sectioner:
    """Collects sections and knows the headings above the next one."""

    def __init__(self) -> None:
        self.sections: list[Section] = [Section(0, 0, ())]
        self._above: list[tuple[int, str]] = []

    def open(self, start: int, *, level: int, heading: str) -> None:
        """A heading of `level` (1 is the highest) at `start`; sections come in order. An empty one parts the text, but
        names nothing."""
        while self._above and self._above[-1][0] >= level:
            self._above.pop()
        self._above.append((level, one_line(heading)))
        if self.sections[-1].start == start:
            self.sections.pop()  # Nothing stands before the first heading.
        self.sections.append(Section(start, level, tuple(name for _, name in self._above if name)))


def one_line(heading: str) -> str:
    """A heading as locations keep it."""
    return " ".join(heading.split())[:MAX_HEADING_CHARS]


class Places:
    """Tells of stretches of one reading where a person finds them."""

    def __init__(self, source: str, reading: Reading) -> None:
        self._outline = reading.outline
        self._starts = [section.start for section in reading.outline.sections]
        self._anchor_starts = [start for start, _ in reading.outline.anchors]
        self._pieces = reading.pieces
        self._piece_starts = [piece.start for piece in reading.pieces or ()]
        self._lines = _offsets(source, "\n")
        self._pages = _offsets(source, "\f") if reading.pieces is None else []

    def source_span(self, start: int, end: int) -> tuple[int, int]:
        """From where to where in the source the characters [start, end) of the text come."""
        if self._pieces is None:
            return start, end
        first = max(0, bisect_right(self._piece_starts, start) - 1)
        held = self._pieces[first : bisect_left(self._piece_starts, end)]
        spans = [piece.source_of(start, end) for piece in held if start < piece.start + piece.length]
        if not spans:  # It holds nothing but what was put between two pieces.
            return self._pieces[first].source_end, self._pieces[first].source_end
        return min(span[0] for span in spans), max(span[1] for span in spans)

    def location(self, start: int, end: int) -> Location:
        """Of the characters [start, end) of the text: the headings above most of it, and lines of the source."""
        path, subject = self._subject(start, end)
        first, last = self.source_span(start, end)
        return Location(
            heading_path=path,
            line_start=bisect_left(self._lines, first) + 1,
            line_end=bisect_left(self._lines, max(first, last - 1)) + 1,
            page=bisect_left(self._pages, first) + 1 if self._pages else None,
            anchor=self._anchor(subject),
        )

    def _subject(self, start: int, end: int) -> tuple[tuple[str, ...], int]:
        """What most of it stands under, and where that begins.

        A section that makes less than a quarter of it, such as a title with a line under it, is passed over.
        """
        sections = self._outline.sections
        if not sections:
            return (), start
        held = sections[bisect_right(self._starts, start) - 1 : bisect_left(self._starts, end)]
        if len(held) == 1:
            return held[0].path, start
        edges = [start, *(section.start for section in held[1:]), end]
        large = [
            section
            for section, (low, high) in zip(held, pairwise(edges), strict=True)
            if 4 * (high - low) >= end - start
        ]
        named = large or held
        path = named[0].path
        for section in named[1:]:
            path = _common(path, section.path)
        return path, max(start, named[0].start)

    def _anchor(self, subject: int) -> str | None:
        last = bisect_right(self._anchor_starts, subject) - 1
        return self._outline.anchors[last][1] if last >= 0 else None


def _common(one: Sequence[str], other: Sequence[str]) -> tuple[str, ...]:
    shared = 0
    while shared < min(len(one), len(other)) and one[shared] == other[shared]:
        shared += 1
    return tuple(one[:shared])


def _offsets(text: str, sign: str) -> list[int]:
    found, at = [], text.find(sign)
    while at >= 0:
        found.append(at)
        at = text.find(sign, at + 1)
    return found
