"""Cuts a text into chunks by character offsets: nothing is decoded, so nothing of the source is altered or lost.

The caller says where the encoder's tokens lie; a chunk is a run of them. What lies between two tokens belongs to the
one before it, so chunks cover every visible character, also those that the tokenizer drops.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Literal

from dats_common.domain.model import Chunk

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


# How good a cut is, by boundary. Equal ranks: the fuller chunk wins.
_RANKS: dict[Strategy, tuple[int, ...]] = {
    "fixed": (0, 1, 2, 2, 2, 2, 2),
    "sentence": (0, 1, 2, 3, 4, 4, 4),
    "semantic": (0, 1, 2, 3, 4, 5, 6),
}


def chunk(
    text: str,
    spans: Sequence[tuple[int, int]],
    *,
    max_tokens: int,
    overlap_tokens: int,
    strategy: Strategy = "semantic",
) -> list[Chunk]:
    """Slices of `text` of at most `max_tokens` tokens that together hold every non-whitespace character of it.

    Args:
        spans: (start, end) character offsets of the encoder's tokens, in order.
        max_tokens: the longest chunk, in tokens.
        overlap_tokens: tokens at the start of a chunk repeated from the end of the one before; fewer where that lets
            it start at a better place, never more. At most half of `max_tokens`.
        strategy: where to cut: `fixed` fills each chunk up to the last whole word, `sentence` prefers sentence ends,
            `semantic` prefers blank lines, then line ends, then sentence ends.

    Returns: chunks in order, `text == source[char_start:char_end]` with no whitespace at either end; none for a text
        without visible characters. Each but the last holds at least a quarter of `max_tokens` beyond its overlap.
    Raises: ValueError: `max_tokens` below 1, or an overlap outside [0, max_tokens / 2].
    """
    if max_tokens < 1 or not 0 <= overlap_tokens <= max_tokens // 2:
        raise ValueError(f"cannot cut {max_tokens} tokens with an overlap of {overlap_tokens}")
    starts, boundaries = _units(text, spans)
    rank = _RANKS[strategy]
    least = overlap_tokens + max(1, max_tokens // 4)
    chunks: list[Chunk] = []
    first, count = 0, len(boundaries)
    while first < count:
        last = count
        if count - first > max_tokens:
            last = _best(boundaries, rank, range(first + max_tokens, first + least - 1, -1))
        _append(chunks, text, starts[first], starts[last], tokens=last - first)
        if last == count:
            break
        first = _best(boundaries, rank, range(last - overlap_tokens, last - overlap_tokens // 2 + 1))
    return chunks


def _append(chunks: list[Chunk], text: str, start: int, end: int, *, tokens: int) -> None:
    raw = text[start:end]
    body = raw.strip()
    if body:
        start += len(raw) - len(raw.lstrip())
        chunks.append(Chunk(len(chunks), body, tokens, start, start + len(body)))


def _best(boundaries: Sequence[int], rank: Sequence[int], candidates: range) -> int:
    """The first candidate of the highest rank."""
    best, best_rank, top = candidates[0], -1, rank[-1]
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


def within_window(*, max_tokens: int, overlap_tokens: int, window_tokens: int) -> tuple[int, int]:
    """Chunk size and overlap for a model that reads `window_tokens`: both shrink alike, so that a small window does
    not spend a larger share of the encoder on text it has seen (500/50 becomes 254/25, not 254/50)."""
    size = min(max_tokens, window_tokens)
    return size, min(overlap_tokens * size // max_tokens, size // 2)
