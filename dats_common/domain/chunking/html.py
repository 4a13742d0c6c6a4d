"""HTML: readable text, every character of which knows where in the page it stands.

Left out is what is no content: scripts and styles, navigation, what is hidden. A page with one `main` is that alone.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dats_common.domain.chunking.outline import MAX_ANCHOR_CHARS, Outline, Piece, Reading, Sectioner

if TYPE_CHECKING:
    from justhtml import Node


def _names(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


_DROPPED = _names("button canvas datalist dialog head iframe math nav object script select style svg template textarea")
_DROPPED_ROLES = frozenset({"banner", "contentinfo", "navigation", "search"})
# Of DocBook's and Sphinx's pages, which mark these by class alone.
_DROPPED_CLASSES = frozenset({"headerlink", "navfooter", "navheader", "toc"})
_BLOCKS = _names(
    "address article aside blockquote body caption dd details div dl dt fieldset figcaption figure footer form h1 h2 "
    "h3 h4 h5 h6 header hr html li main ol p pre section summary table tbody tfoot thead tr ul"
)
_LINES = frozenset({"dd", "dt", "li", "tr"})  # Parted by a line end: together they are one list, or one table.
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_PREFORMATTED = frozenset({"listing", "pre"})
_CELLS = frozenset({"td", "th"})
CELL_GAP = " | "
"""Between two cells of a row."""
_GAPS = ("", " ", CELL_GAP, "\n", "\n\n")  # The widest last.

# Once begun these match, or could in one way only: nonsense costs its length and no more. A tag left open ends all.
_PAGE = re.compile(r"\s*(?:<\?xml[^>]*>\s*)?(?:<!--(?:[^-]|-(?!->))*-->\s*)*<(?:!doctype\s+html|html)\b", re.IGNORECASE)
_VALUE = r"""(?:"[^"]*(?:"|\Z)|'[^']*(?:'|\Z)|[^\s"'>][^\s>]*|(?=>|\Z))"""
_ATTRIBUTES = rf"[^>=]*(?:=\s*{_VALUE}[^>=]*)*(?:>|\Z)"
_RAW_TEXT = "iframe|noembed|noframes|script|style|textarea|title|xmp"
_MARKUP = re.compile(
    "<(?:"
    r"!--(?:-?>|.*?(?:--!?>|\Z))"
    r"|(?P<bogus>(?:\?|!(?!doctype))[^>]*>?)"
    r"|plaintext\b.*"
    rf"|(?P<raw>{_RAW_TEXT})(?=[\s/>]){_ATTRIBUTES}.*?(?:</(?P=raw)(?=[\s/>])|\Z)"
    rf"|/?[a-z][^\s/>]*{_ATTRIBUTES}"
    ")",
    re.IGNORECASE | re.DOTALL,
)
_SPACES = re.compile(r"[ \t\n\f\r]+")
_PLAIN = re.compile(r"[^&<\r\0]+")
_LINE_END_BEHIND_TAG = re.compile(r">(?:\r\n?|\n)")
_TAG = re.compile(r"<[A-Za-z/!][^<>]*>")
_REFERENCE = re.compile(r"&(?:#[xX][0-9a-fA-F]{1,8}|#[0-9]{1,8}|[A-Za-z][A-Za-z0-9]{1,31});?")


def is_page(content: str) -> bool:
    """Whether it says of itself that it is an HTML page."""
    return bool(_PAGE.match(content[:2000].lstrip("\ufeff")))


def read_html(content: str) -> Reading | None:
    """The readable text of a page or a fragment; None where there is none, or no tag at its beginning: what was read
    off a page already is text."""
    if not content.lstrip("\ufeff \t\r\n").startswith("<"):
        return None
    from justhtml import JustHTML

    markup = _MARKUP.sub(_without_bogus_comment, content)
    root = JustHTML(markup, sanitize=False, track_node_locations=True, scripting_enabled=False).root
    main = _main(root)
    reading = _written(markup, main)
    if reading is None and main is not root:
        return _written(markup, root)  # It is filled by scripts; what there is stands around it.
    return reading


def _without_bogus_comment(found: re.Match[str]) -> str:
    """`<!x>` and `<?x>` are comments by the standard, but not in a comment, a script or an attribute; the parser takes
    them for text. White space of their length keeps all places."""
    return found.group() if found["bogus"] is None else " " * len(found.group())


def _written(markup: str, top: Node) -> Reading | None:
    writer = _Writer(markup)
    for step, node in _steps(top):
        if step == "text":
            writer.text(node)
        elif step == "open":
            writer.open(node)
        else:
            writer.close(node)
    reading = writer.reading()
    return None if reading.text.isspace() or not reading.text else reading


def _main(root: Node) -> Node:
    """The page's `main`, if it has one and no more."""
    found = [node for step, node in _steps(root) if step == "open" and _is_main(node)]
    return found[0] if len(found) == 1 else root


def _is_main(node: Node) -> bool:
    return node.name == "main" or (node.attrs or {}).get("role") == "main"


def _steps(root: Node) -> Iterator[tuple[str, Node]]:
    """Opens, texts and closes of the tree in order; a loop, since pages nest deeper than Python calls."""
    waiting: list[tuple[str, Node]] = [("open", root)]
    headings = 0  # Open ones.
    while waiting:
        step, node = waiting.pop()
        yield step, node
        if node.name in _HEADINGS:
            headings += 1 if step == "open" else -1
        if step == "open":
            waiting.append(("close", node))
            for child in reversed(node.children or ()):
                if child.name == "#text":
                    waiting.append(("text", child))
                elif not child.name.startswith(("#", "!")) and not _is_dropped(child, in_heading=headings > 0):
                    waiting.append(("open", child))


def _is_dropped(node: Node, *, in_heading: bool) -> bool:
    said = node.attrs or {}
    return (
        (node.name in _DROPPED and not (in_heading and node.name == "button"))  # What unfolds is a button's heading.
        or said.get("role") in _DROPPED_ROLES
        or "hidden" in said
        or said.get("aria-hidden") == "true"
        or not _DROPPED_CLASSES.isdisjoint((said.get("class") or "").split())
    )


class _Writer:
    """Puts the text together. What parts it is put before what follows, so that nothing is parted from nothing."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._source_end = 0  # Of what was read last.
        self._parts: list[str] = []
        self._length = 0
        self._pieces: list[Piece] = []
        self._blocks: list[int] = []
        self._anchors: list[tuple[int, str]] = []
        self._sections = Sectioner()
        self._gap = ""
        self._at_block = False
        self._preformatted = 0
        self._flat_cells = 0
        self._ids: list[str] = []  # Opened, with no text behind them yet.
        self._heading: _Heading | None = None

    def open(self, node: Node) -> None:
        if node.name in _HEADINGS:
            self._close_heading()  # One within another ends it.
        said = node.attrs or {}
        anchor = said.get("id") or (said.get("name") if node.name == "a" else None)
        if anchor and len(anchor) <= MAX_ANCHOR_CHARS and not any(letter.isspace() for letter in anchor):
            self._ids.append(anchor)
        self._part_at(node)
        if node.name in _CELLS:
            self._part(CELL_GAP)
            self._flat_cells += _is_flat(node)
        elif node.name == "br":
            self._part("\n")
        elif node.name in _PREFORMATTED:
            self._preformatted += 1
        elif node.name in _HEADINGS:
            self._heading = _Heading(_HEADINGS[node.name])

    def close(self, node: Node) -> None:
        self._part_at(node)
        if node.name in _CELLS:
            self._flat_cells -= _is_flat(node)
        elif node.name in _PREFORMATTED:
            self._preformatted -= 1
        elif node.name in _HEADINGS:
            self._close_heading()

    def text(self, node: Node) -> None:
        for run, start, end in _runs(self._source, self._offset(node), str(node.data or "")):
            if start is None:
                start = end = self._source_end
            self._source_end = max(end, self._source_end)
            if self._preformatted:
                self._append_verbatim(run, start, end)
                continue
            at = 0
            for gap in _SPACES.finditer(run):
                self._append(run[at : gap.start()], min(end, start + at), min(end, start + gap.start()))
                self._part(" ")
                at = gap.end()
            self._append(run[at:], min(end, start + at), end)

    def reading(self) -> Reading:
        """What was written."""
        outline = Outline(tuple(self._sections.sections), tuple(self._blocks), tuple(self._anchors))
        return Reading("".join(self._parts), outline, tuple(self._pieces))

    def _offset(self, node: Node) -> int | None:
        """Where its text begins. The parser drops the line end right behind a `pre`'s tag, but counts from it."""
        offset, holder = node.origin_offset, node.parent
        if not offset or holder is None or holder.name not in _PREFORMATTED or (holder.children or ())[:1] != [node]:
            return offset
        dropped = _LINE_END_BEHIND_TAG.match(self._source, offset - 1)
        return dropped.end() if dropped else offset

    def _part_at(self, node: Node) -> None:
        if node.name in _LINES:
            self._part("\n")
        elif node.name in _BLOCKS:
            self._part("\n\n")
            self._at_block = not self._flat_cells

    def _part(self, gap: str) -> None:
        """Ask for a gap; of several that meet the widest stays."""
        if self._flat_cells and not self._preformatted and gap != CELL_GAP:
            gap = " "
        if _GAPS.index(gap) > _GAPS.index(self._gap):
            self._gap = gap

    def _append_verbatim(self, run: str, start: int, end: int) -> None:
        """With its white space, but for the line ends behind it: they are a gap like others."""
        body = run.rstrip("\n")
        self._append(body, start, min(end, start + len(body)))
        if len(body) < len(run):
            self._part("\n" * min(2, len(run) - len(body)))

    def _append(self, body: str, start: int, end: int) -> None:
        """`body` comes from [start, end) of the source."""
        if not body:
            return
        if self._parts and self._gap:
            self._parts.append(self._gap)
            self._length += len(self._gap)
        if self._at_block:
            self._blocks.append(self._length)
        self._gap, self._at_block = "", False
        if self._ids and not body.isspace():
            self._anchors.append((self._length, self._ids[-1]))
            self._ids.clear()
        if self._heading and self._heading.start is None:
            self._heading.start, self._heading.part = self._length, len(self._parts)
        self._parts.append(body)
        self._pieces.append(Piece(self._length, len(body), start, end))
        self._length += len(body)

    def _close_heading(self) -> None:
        heading, self._heading = self._heading, None
        if heading is None or heading.start is None:
            return
        self._sections.open(heading.start, level=heading.level, heading="".join(self._parts[heading.part :]))
        if self._ids and not (self._anchors and self._anchors[-1][0] >= heading.start):
            self._anchors.append((heading.start, self._ids[-1]))  # Within the heading, behind its words.
            self._ids.clear()


@dataclass(slots=True)
class _Heading:
    """A heading that is open: where its text starts, once there is some, and its first part."""

    level: int
    start: int | None = None
    part: int = 0


def _is_flat(cell: Node) -> bool:
    """Whether a cell is one paragraph at most: then its row is one line. Old pages lay out whole texts in a cell."""
    inner = [child for child in cell.children or () if child.name in _BLOCKS]
    return len(inner) <= 1 and not any(child.name in _BLOCKS for block in inner for child in block.children or ())


def _runs(source: str, offset: int | None, data: str) -> Iterator[tuple[str, int | None, int]]:
    """Parts of a text node with the stretch of the source each comes from: as long as itself, or a character reference.

    The parser says where a node begins. Behind that it has put characters for references and one line end for two,
    and dropped NULs and tags that mean nothing. None: unknown, which a page that moves its text about can lead to.
    """
    if offset is None or ("&" not in data and source.startswith(data, offset)):
        yield data, offset, (offset or 0) + len(data)
        return
    at, done = offset, 0
    while done < len(data):
        plain = _PLAIN.match(source, at)
        run = plain.group() if plain else ""
        if run and data.startswith(run, done):
            yield run, at, at + len(run)
            at, done = at + len(run), done + len(run)
        elif run and run.startswith(data[done:]):
            yield data[done:], at, at + len(data) - done
            return
        elif source.startswith("\r", at):
            at += 1
            if data.startswith("\n", done) and not source.startswith("\n", at):
                yield "\n", at - 1, at
                done += 1
        elif tag := _TAG.match(source, at):
            at = tag.end()
        elif source.startswith("\0", at) and not data.startswith("\ufffd", done):
            at += 1
        elif (found := _reference(source, at)) and data.startswith(found[0], done):
            yield found[0], at, at + found[1]
            at, done = at + found[1], done + len(found[0])
        elif source.startswith((data[done], "\0"), at):
            yield data[done], at, at + 1
            at, done = at + 1, done + 1
        else:
            yield data[done:], None, 0
            return


def _reference(source: str, at: int) -> tuple[str, int] | None:
    """The character reference there: what it means, and its length."""
    match = _REFERENCE.match(source, at)
    return (html.unescape(match.group()), len(match.group())) if match else None
