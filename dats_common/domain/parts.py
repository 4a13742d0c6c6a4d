"""A passage in short parts, each of which says one thing. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

PART_TOKENS = 32
"""About a sentence. Source: docs/retrieval.md, "The nearest part": parts of 20 to 50 tokens gain alike, of 130 less."""

TITLE_CHARS = 200
"""A longer title is cut: it would fill the model's window and leave no room for the part."""


def parts(text: str, spans: Sequence[tuple[int, int]], *, title: str = "", most_tokens: int = PART_TOKENS) -> list[str]:
    """The passage in as few parts as there must be, nearly equal in length; what lies between two is in neither.

    Args:
        spans: (start, end) offsets of the tokens in `text`, in order.
        title: of the document, its beginning: starts every part, which seldom says by itself what it is about.
        most_tokens: of a part, the title left out.

    Returns: in order; the whole text where it has no tokens.
    """
    count = -(-len(spans) // most_tokens)
    edges = [len(spans) * number // count for number in range(count + 1)] if count else []
    cut = [text[spans[first][0] : spans[end - 1][1]] for first, end in pairwise(edges)] or [text]
    return [f"{title[:TITLE_CHARS]}: {part}" for part in cut] if title else cut
