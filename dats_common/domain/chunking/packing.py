"""Cuts a text into chunks by character offsets: nothing is decoded, so nothing of the source is altered or lost.

The caller says where the encoder's tokens lie; a chunk is a run of them. What lies between two tokens belongs to the
one before it, so chunks cover every visible character, also those that the tokenizer drops.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Literal

from dats_common.domain.chunking.outline import NO_OUTLINE, Outline

Strategy = Literal["fixed", "sentence", "semantic"]

WIDEST_TOKEN = 100
"""Characters. Source: BERT's WordPiece makes one unknown token of any longer word (`max_input_chars_per_word`).

Counted as one token, a line of a million characters would be one chunk; wider stretches count a token for each
`PIECE` characters instead.
"""
PIECE = 4  # Characters of an average English token.

_SENTENCE_ENDS = frozenset(".!?…。！？")
_FULL_WIDTH_ENDS = frozenset("。！？")  # No space follows these.
_CLOSERS = "\"')]}»”’"
_PERHAPS_AN_END = _SENTENCE_ENDS | frozenset(_CLOSERS)


class Boundary(IntEnum):
    """What lies between two tokens, from the worst place to cut to the best."""

    CHARACTER = 0
    WORD = 1
    PUNCTUATION = 2
    SPACE = 3
    SENTENCE = 4
    LINE = 5
    BLANK_LINE = 6
    BLOCK = 7
    SECTION = 8


# How good a cut is, by boundary. Equal ranks: the fuller chunk wins.
_RANKS: dict[Strategy, tuple[int, ...]] = {
    "fixed": (0, 1, 2, 2, 2, 2, 2, 2, 2),
    "sentence": (0, 1, 2, 3, 4, 4, 4, 4, 4),
    "semantic": (0, 1, 2, 3, 4, 5, 6, 7, 8),
}


@dataclass(frozen=True, slots=True)
class Limits:
    """How long chunks are, in tokens of the encoder.

    Attributes:
        max_tokens: the longest chunk.
        overlap_tokens: tokens at the start of a chunk repeated from the end of the one before; fewer where that lets it
            start at a better place, never more.
        min_tokens: each chunk but the last has so many, its overlap included; None: a quarter of `max_tokens` beyond
            the overlap.
        min_overlap_tokens: None: half of the overlap.

    Raises: ValueError: `max_tokens` below 1, an overlap outside [0, max_tokens / 2], or a least above its most.
    """

    max_tokens: int
    overlap_tokens: int
    min_tokens: int | None = None
    min_overlap_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or not 0 <= self.overlap_tokens <= self.max_tokens // 2:
            raise ValueError(f"cannot cut {self.max_tokens} tokens with an overlap of {self.overlap_tokens}")
        if (self.min_tokens or 0) > self.max_tokens or (self.min_overlap_tokens or 0) > self.overlap_tokens:
            raise ValueError("the least is above the most")

    @property
    def least(self) -> int:
        """The earliest place for a cut, in tokens behind the start of a chunk."""
        moves_on = self.overlap_tokens + 1
        if self.min_tokens is not None:
            return max(moves_on, self.min_tokens)
        return max(moves_on, self.overlap_tokens + max(1, self.max_tokens // 4))

    @property
    def least_overlap(self) -> int:
        """The shortest overlap."""
        return self.overlap_tokens // 2 if self.min_overlap_tokens is None else self.min_overlap_tokens

    def within(self, window_tokens: int) -> Limits:
        """The same for a model that reads `window_tokens`: everything shrinks alike."""
        size, overlap = within_window(
            max_tokens=self.max_tokens, overlap_tokens=self.overlap_tokens, window_tokens=window_tokens
        )

        def shrunk(least: int | None) -> int | None:
            return None if least is None else least * size // self.max_tokens

        return Limits(size, overlap, shrunk(self.min_tokens), shrunk(self.min_overlap_tokens))


def within_window(*, max_tokens: int, overlap_tokens: int, window_tokens: int) -> tuple[int, int]:
    """Chunk size and overlap for a model that reads `window_tokens`: both shrink alike, so that a small window does
    not spend a larger share of the encoder on text it has seen (500/50 becomes 254/25, not 254/50)."""
    size = min(max_tokens, window_tokens)
    return size, min(overlap_tokens * size // max_tokens, size // 2)


@dataclass(frozen=True, slots=True)
class Cut:
    """A stretch of the text, without white space at its ends."""

    start: int
    end: int
    tokens: int


def pack(
    text: str,
    token_spans: Callable[[str], Sequence[tuple[int, int]]],
    *,
    limits: Limits,
    strategy: Strategy = "semantic",
    outline: Outline = NO_OUTLINE,
    is_bounded: bool = True,
) -> list[Cut]:
    """Stretches of `text` within `limits` that together hold every non-whitespace character of it.

    Args:
        token_spans: (start, end) character offsets of the encoder's tokens in a text, in order.
        strategy: where to cut: `fixed` fills each chunk up to the last whole word, `sentence` prefers sentence ends,
            `semantic` prefers sections, then blocks, then blank lines, then line ends, then sentence ends.
        outline: of `text`; without one there are neither sections nor blocks.
        is_bounded: no chunk holds parts of two sections. What fits is one chunk with all that stands under it; what is
            very short is joined to a neighbour.

    Returns: in order; none for a text without visible characters.
    """
    starts, boundaries = _units(text, token_spans(text))
    rank = _RANKS[strategy]
    top = rank[Boundary.BLANK_LINE]
    count = len(boundaries)
    regions = [(0, count)]
    if outline.sections and count:
        firsts = [min(bisect_left(starts, section.start), count) for section in outline.sections]
        _mark(boundaries, (bisect_left(starts, block) for block in outline.blocks), Boundary.BLOCK)
        _mark(boundaries, firsts, Boundary.SECTION)
        top = rank[Boundary.SECTION]
        if is_bounded:
            regions = _regions(firsts, [section.level for section in outline.sections], count, limits)

    def counted(first: int, last: int) -> int:
        cut = _cut(text, starts[first], starts[last], tokens=0)
        return len(token_spans(text[cut.start : cut.end])) if cut else 0

    cuts: list[Cut] = []
    for first, end in regions:
        while first < end:
            last = end
            if end - first > limits.max_tokens:
                last = _best(boundaries, rank, range(first + limits.max_tokens, first + limits.least - 1, -1), top)
            cut = _cut(text, starts[first], starts[last], tokens=last - first)
            planned = last - first
            if cut and (_splits_a_word(boundaries, first) or _splits_a_word(boundaries, last)):
                while (tokens := counted(first, last)) > limits.max_tokens and last > first + 1:
                    fits = _longest(counted, first, last, limits.max_tokens)
                    last = _best(boundaries, rank, range(fits, min(fits, first + limits.least) - 1, -1), top)
                cut = _cut(text, starts[first], starts[last], tokens=max(tokens, last - first))
            if cut:
                cuts.append(cut)
            if last == end:
                break
            share = (last - first) / planned  # What had to be shorter than it was planned repeats as much less.
            earliest = max(first + 1, last - int(limits.overlap_tokens * share))
            latest = max(earliest, last - int(limits.least_overlap * share))
            first = _best(boundaries, rank, range(earliest, latest + 1), top)
    return cuts


def _cut(text: str, start: int, end: int, *, tokens: int) -> Cut | None:
    raw = text[start:end]
    body = raw.strip()
    start += len(raw) - len(raw.lstrip())
    return Cut(start, start + len(body), tokens) if body else None


def _splits_a_word(boundaries: Sequence[Boundary], position: int) -> bool:
    """Whether a cut there leaves a part of a word, which alone is other tokens, and mostly more of them."""
    return position < len(boundaries) and boundaries[position] <= Boundary.WORD


def _longest(counted: Callable[[int, int], int], first: int, last: int, most: int) -> int:
    """The farthest place, at least one unit on, up to which there are at most so many tokens; `last` is too far."""
    fits = first + 1
    while last - fits > 1:
        middle = (fits + last) // 2
        if counted(first, middle) > most:
            last = middle
        else:
            fits = middle
    return fits


def _mark(boundaries: list[Boundary], units: Iterable[int], boundary: Boundary) -> None:
    for unit in units:
        if unit < len(boundaries):
            boundaries[unit] = boundary


def _best(boundaries: Sequence[int], rank: Sequence[int], candidates: range, top: int) -> int:
    """The first candidate of the highest rank; none ranks above `top`."""
    best, best_rank = candidates[0], -1
    for position in candidates:
        found = rank[boundaries[position]]
        if found > best_rank:
            best, best_rank = position, found
            if found == top:
                break
    return best


def _units(text: str, spans: Sequence[tuple[int, int]]) -> tuple[list[int], list[Boundary]]:
    """Where each token's stretch starts (plus the end of the text), and the boundary before each.

    A stretch reaches from a token's start to the next one's; wide ones are cut into pieces.
    """
    if not text or text.isspace():
        return [0], []
    starts, boundaries = [0], [Boundary.BLANK_LINE]
    end = spans[0][1] if spans else len(text)
    for start, following_end in spans[1:]:
        if start - starts[-1] > WIDEST_TOKEN:
            _append_pieces(starts, boundaries, start)
        boundaries.append(_boundary(text, end, start))
        starts.append(max(start, starts[-1]))
        end = following_end
    if len(text) - starts[-1] > WIDEST_TOKEN:
        _append_pieces(starts, boundaries, len(text))
    starts.append(len(text))
    return starts, boundaries


def _append_pieces(starts: list[int], boundaries: list[Boundary], end: int) -> None:
    pieces = range(starts[-1] + PIECE, end, PIECE)
    starts.extend(pieces)
    boundaries.extend([Boundary.WORD] * len(pieces))


def _boundary(text: str, end: int, start: int) -> Boundary:
    """What lies between a token that ends at `end` and the next one, which starts at `start`."""
    if start < end or end == 0:
        return Boundary.CHARACTER  # Byte-level tokenizers make several tokens of one character.
    gap, before = text[end:start], text[end - 1]
    if gap == " " and before not in _PERHAPS_AN_END:
        return Boundary.SPACE  # Two words of a sentence: most of what there is.
    lines = gap.count("\n")
    if lines:
        return Boundary.BLANK_LINE if lines > 1 else Boundary.LINE
    if before in _PERHAPS_AN_END:
        mark = text[max(0, end - 4) : end].rstrip(_CLOSERS)[-1:]
        if mark in _FULL_WIDTH_ENDS or (gap and mark in _SENTENCE_ENDS):
            return Boundary.SENTENCE
    if gap.isspace():
        return Boundary.SPACE
    return Boundary.WORD if before.isalnum() and text[start : start + 1].isalnum() else Boundary.PUNCTUATION


# ----------------------------------------------------------------------------------------------------------- regions


@dataclass(frozen=True, slots=True)
class _Region:
    first: int
    end: int
    level: int

    @property
    def tokens(self) -> int:
        return self.end - self.first


def _regions(firsts: Sequence[int], levels: Sequence[int], count: int, limits: Limits) -> list[tuple[int, int]]:
    """Which stretches of units are cut on their own."""
    joined: list[_Region] = []
    for region in _whole([*firsts, count], levels, limits.max_tokens):
        if joined and _belong_together(joined[-1], region, limits):
            joined[-1] = _Region(joined[-1].first, region.end, joined[-1].level)
        else:
            joined.append(region)
    return [(region.first, region.end) for region in joined]


def _belong_together(before: _Region, region: _Region, limits: Limits) -> bool:
    """Short neighbours, such as a class's accessors; and a heading with next to nothing under it and its first section,
    also one that is too long for a chunk anyway."""
    together = before.tokens + region.tokens
    if region.level == before.level:
        return together <= limits.max_tokens // 4
    is_below = region.level > before.level and before.tokens < limits.max_tokens // 8
    return is_below and (together <= limits.max_tokens or region.tokens > limits.max_tokens)


def _whole(edges: Sequence[int], levels: Sequence[int], max_tokens: int) -> list[_Region]:
    """Sections that fit with all they hold; of others, their own text and then what they hold."""
    regions: list[_Region] = []
    waiting = [(0, len(levels))]
    while waiting:
        low, high = waiting.pop()
        if edges[high] - edges[low] <= max_tokens or high - low == 1:
            if edges[high] > edges[low]:
                regions.append(_Region(edges[low], edges[high], levels[low]))
            continue
        parts = _siblings(levels, low, high)
        if len(parts) == 1:
            parts = [(low, low + 1), *_siblings(levels, low + 1, high)]
        waiting.extend(reversed(parts))
    return regions


def _siblings(levels: Sequence[int], low: int, high: int) -> list[tuple[int, int]]:
    """The sections [low, high) as runs, each of them one with those of higher levels behind it."""
    heads = [low]
    for position in range(low + 1, high):
        if levels[position] <= levels[heads[-1]]:
            heads.append(position)
    return list(pairwise([*heads, high]))
