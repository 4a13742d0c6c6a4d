"""Passages as one Markdown text within a token budget. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_FENCE = re.compile(r"`{3,}")
_SPACE = re.compile(r"\s+")
HEADING_MAX_CHARS = 200
CODE_DOMAIN = "code"


@dataclass(frozen=True, slots=True)
class Block:
    """A passage to show: its heading is the source's name.

    Attributes:
        tokens: of the text, as counted when it was indexed.
        code: show it in a fence, marked with `language`.
    """

    heading: str
    text: str
    tokens: int
    code: bool = False
    language: str = ""


@dataclass(frozen=True, slots=True)
class Context:
    """The assembled text, the positions of the blocks that fitted, in order, and how many tokens it has."""

    text: str
    used: tuple[int, ...]
    tokens: int


def assemble(blocks: Sequence[Block], *, budget_tokens: int, count_tokens: Callable[[str], int]) -> Context:
    """Blocks in the given order while they fit; one that does not fit is passed over for smaller ones behind it.

    What frames a text is counted here, the text itself was when it was indexed: tokens do not reach across white space,
    so the sum is the whole's count (but for a chunk that had to be cut within a word).

    If not even one fits, the first is cut at a line or word end, so that a caller with a small budget still gets
    the best passage's beginning.
    """
    parts: list[str] = []
    used: list[int] = []
    tokens = 0
    for position, block in enumerate(blocks):
        size = block.tokens + count_tokens(_markdown(block, ""))
        if tokens + size <= budget_tokens:
            parts.append(_markdown(block, block.text))
            used.append(position)
            tokens += size
    if not parts and blocks:
        part = _cut(blocks[0], budget_tokens=budget_tokens, count_tokens=count_tokens)
        return Context(part, (0,), count_tokens(part)) if part else Context("", (), 0)
    return Context("\n\n".join(parts), tuple(used), tokens)


def _markdown(block: Block, text: str) -> str:
    """The block with `text` (all of its own, a beginning, or nothing) in it."""
    heading = _SPACE.sub(" ", block.heading).strip()[:HEADING_MAX_CHARS]
    body = text.strip("\n")
    if block.code:
        longest = max((len(run) for run in _FENCE.findall(block.text)), default=2)
        fence = "`" * (longest + 1)
        body = f"{fence}{block.language}\n{body}\n{fence}"
    return f"## {heading}\n\n{body}"


def _cut(block: Block, *, budget_tokens: int, count_tokens: Callable[[str], int]) -> str:
    low, high = 0, len(block.text)
    while low < high:  # the longest prefix that fits; the count grows with the prefix
        middle = (low + high + 1) // 2
        if count_tokens(_markdown(block, block.text[:middle])) <= budget_tokens:
            low = middle
        else:
            high = middle - 1
    if low == 0:
        return ""
    end = max(block.text.rfind("\n", 0, low), block.text.rfind(" ", 0, low))
    return _markdown(block, block.text[: end if end > low // 2 else low])
