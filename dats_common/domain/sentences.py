"""Cuts prose and Markdown into sentences by character offsets: nothing is altered or lost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple


class Span(NamedTuple):
    """A stretch of a text: `text[start:end]`, offsets in characters."""

    start: int
    end: int


_LINE = re.compile(r"[^\n]*\n?")
_FENCE = re.compile(r" {0,3}(```+|~~~+)")
_HEADING = re.compile(r" {0,3}#{1,6}\s")
_TABLE_ROW = re.compile(r"\s*\|")
_LIST_ITEM = re.compile(r"[ \t>]*(?:[-*+•–]|\d{1,3}[.)]|[A-Za-z][.)])[ \t]+")
_WORD = re.compile(r"\w")

_RULE = re.compile(r" {0,3}(?:[-*_=][ \t]*){3,}$")

# Citation markers behind a full stop belong to the sentence before it: models write `So it is. [2]`.
_CITED = r"(?:[ \t]*\[(?:SourceId:[^\]\n]{1,80}|\d[\d, ]{0,20})\])*"
_MARKS = re.compile(r"[.!?…。！？]+[\"')\]}»”’」』）*_`]*" + _CITED)  # It matches whole runs: a long one is read once.
_FULL_WIDTH_ENDS = frozenset("。！？")  # No space follows these.
_NEXT_WORD = re.compile(r"\s+[\"'(\[«“‘*_`]*(\w*\.?)")
_ACRONYM = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")  # `J`, `U.S`, `e.g`, `p.m`

LONGEST_ABBREVIATION = 12  # Characters looked at before a full stop.

# A full stop after these never ends a sentence: something always follows.
_TITLES = """
mr mrs ms dr prof rev hon gen col maj capt lt sgt cpl cmdr gov sen rep pres mt e.g i.e cf viz vs approx ca resp esp
incl excl
"""
_UNENDING = frozenset(_TITLES.split())

# Nor after these before a number.
_COUNTED = "no nos nr fig figs eq eqs sec secs ch chap vol vols p pp art par ver v tab ref refs op"
_NUMBERED = frozenset(_COUNTED.split())

# These end sentences too, so the next word decides.
_SHORTENED = """
etc inc ltd co corp bros jr sr al et dept univ assn st ave blvd rd ft min max jan feb apr jun jul aug sep sept oct nov
dec mon tue wed thu fri ed eds
"""
_ENDING = frozenset(_SHORTENED.split())

# Words that start sentences and hardly ever continue a name.
_OPENERS = """
the a an this that these those it its he his she her they their we our you your i there here in on at by for from to
with as if when while after before since because although though however but and or so then thus also not no what who
where why how which is are was were do does did can may some many most all both each another other one two during
under until according
"""
_STARTERS = frozenset(_OPENERS.split())


def sentences(text: str) -> list[Span]:
    """The sentences of `text` in order; together they hold every visible character of it, each once.

    A line that is a list item, a heading or a table row starts a sentence; a fenced block is one. What has no letter or
    digit (a rule, the line under a table's head, a lonely bracket) belongs to the sentence before it. No span starts or
    ends with white space. Takes time linear in the length.
    """
    found: list[Span] = []
    for start, end in _pieces(text):
        raw = text[start:end]
        start += len(raw) - len(raw.lstrip())
        end -= len(raw) - len(raw.rstrip())
        if start >= end:
            continue
        wordless = found and not _WORD.search(text, start, end)
        if wordless or (len(found) == 1 and not _WORD.search(text, *found[0])):
            found[-1] = Span(found[-1].start, end)
        else:
            found.append(Span(start, end))
    return found


def _pieces(text: str) -> Iterator[tuple[int, int]]:
    """Adjoining stretches, white space included."""
    for start, end, prose in _blocks(text):
        if not prose:
            yield start, end
            continue
        marker = _LIST_ITEM.match(text, start, end)
        first = start
        for marks in _MARKS.finditer(text, marker.end() if marker else start, end):
            if _ends_sentence(text, marks, end):
                yield first, marks.end()
                first = marks.end()
        yield first, end


def _blocks(text: str) -> Iterator[tuple[int, int, bool]]:
    """Paragraphs (prose: yes), headings, table rows and fenced blocks (prose: no)."""
    start, fence = 0, ""
    for match in _LINE.finditer(text):
        line = match.group()
        opened = None if line.isspace() else _FENCE.match(line)
        if fence:
            if opened and opened.group(1).startswith(fence) and not line.strip("`~ \t\r\n"):
                yield start, match.end(), False
                start, fence = match.end(), ""
            continue
        if line.isspace():
            if not text.startswith("\n", match.end()):  # Of several blank lines the last ends the paragraph.
                yield start, match.end(), True
                start = match.end()
            continue
        alone = any(pattern.match(line) for pattern in (_HEADING, _TABLE_ROW, _RULE))
        if opened or alone or _LIST_ITEM.match(line):
            yield start, match.start(), True
            start = match.start()
        if opened:
            fence = opened.group(1)
        elif alone:
            yield start, match.end(), False
            start = match.end()
    yield start, len(text), not fence


def _ends_sentence(text: str, marks: re.Match[str], end: int) -> bool:
    """Whether the punctuation ends a sentence, judged by the words on either side of it."""
    following = text[marks.end() : marks.end() + 1]
    if marks.group()[0] in _FULL_WIDTH_ENDS:
        return True
    if marks.end() < end and not following.isspace():
        return False  # A decimal, a version, a URL, `file.py`, `Yahoo!'s`.
    after = _NEXT_WORD.match(text, marks.end(), end)
    if after is None:
        return True  # The paragraph ends.
    word = after.group(1)
    if not marks.group().startswith(".") or marks.group().startswith(".."):
        return not word[:1].islower()  # `"Why?" he asked`, `well... perhaps`
    before = text[max(0, marks.start() - LONGEST_ABBREVIATION) : marks.start()].split()
    token = before[-1].lstrip("\"'([{«“‘*_`") if before and not text[marks.start() - 1].isspace() else ""
    abbreviation = token.lower()
    if abbreviation in _UNENDING:
        return False
    if abbreviation in _NUMBERED:
        return not word[:1].isdigit()
    if abbreviation in _ENDING or (_ACRONYM.fullmatch(token)):
        return word.lower() in _STARTERS and not word.islower()
    return True
