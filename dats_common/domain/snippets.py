"""How much of a chunk a reader is shown. Pure. Source: spec 2, "Snippet Rules"."""

from __future__ import annotations

SNIPPET_CHARS = 200
SNIPPET_FULL_CHARS = 1000


def snippet(text: str) -> str:
    """The beginning of a chunk, for lists."""
    return text if len(text) <= SNIPPET_CHARS else f"{text[:SNIPPET_CHARS]}..."


def snippet_full(text: str) -> str:
    """What a reader sees of a chunk on demand; never for logs."""
    return text[:SNIPPET_FULL_CHARS]
