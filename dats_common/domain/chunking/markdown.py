"""Markdown: sections by headings. The text is its own reading."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from dats_common.domain.chunking.outline import MAX_HEADING_CHARS, Outline, Reading, Sectioner

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

_BYTE_ORDER_MARK = "\ufeff"
_LINE_END = re.compile(r"\r\n?|\n")  # As markdown-it counts lines.
_FRONT_MATTER = re.compile(r"\ufeff?---[ \t]*\r?\n")
_FRONT_MATTER_END = re.compile(r"^(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.MULTILINE)


@lru_cache(maxsize=1)
def _blocks() -> MarkdownIt:
    """Reads blocks alone: what stands within a line has no place to cut."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable("table")
    parser.core.ruler.enableOnly(["normalize", "block"])
    return _warmed(parser)


@lru_cache(maxsize=1)
def _inline() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return _warmed(MarkdownIt("commonmark"))


def _warmed(parser: MarkdownIt) -> MarkdownIt:
    """It compiles its rules at the first call, and another thread that calls meanwhile would find only some of them."""
    parser.parse("*a*")
    return parser


def read_markdown(text: str) -> Reading:
    """Sections by headings that stand for themselves: one in a list, a quotation or a fence is text."""
    body = _end_of_front_matter(text)
    if not body and text.startswith(_BYTE_ORDER_MARK):
        body = len(_BYTE_ORDER_MARK)  # It would hide a heading.
    first = 0 if text[:body] == _BYTE_ORDER_MARK else body  # It belongs to what follows.
    lines = [first, *(body + match.end() for match in _LINE_END.finditer(text[body:]))]
    sections = Sectioner()
    blocks: list[int] = []
    tokens = _blocks().parse(text[body:])
    for number, token in enumerate(tokens):
        if token.level or token.map is None or token.nesting < 0:
            continue
        start = lines[token.map[0]]
        blocks.append(start)
        if token.type == "heading_open":  # Its words are the next token.
            sections.open(start, level=int(token.tag[1:]), heading=_plain(tokens[number + 1].content))
    return Reading(text, Outline(tuple(sections.sections), tuple(blocks)))


def _end_of_front_matter(text: str) -> int:
    """Behind a block of metadata between `---` and `---`, which would be read as a heading; 0 without one."""
    opening = _FRONT_MATTER.match(text)
    closing = opening and _FRONT_MATTER_END.search(text, opening.end())
    return closing.end() if closing else 0


def _plain(heading: str) -> str:
    """A heading without its markup."""
    (parsed,) = _inline().parseInline(heading[: 2 * MAX_HEADING_CHARS])
    shown = "".join(
        " " if child.type in {"softbreak", "hardbreak"} else child.content
        for child in parsed.children or ()
        if child.type != "html_inline"
    )
    return shown.strip() or heading
