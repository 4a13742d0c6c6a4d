"""Citations: what a model wrote as a marker becomes the id of an issued source, or leaves the text. Pure.

A prompt shows its sources as `[1]` to `[n]`, because a small model copies a short alias better than a full id. What
leaves us names sources in full: `[SourceId: {document_id}:{chunk_index}]`. Only ids issued for this very request can
come out, whatever the model was talked into, and whichever letters, brackets and spaces it wrote them with.

A marker in an answer is
- a number, a list or a range in square brackets, with or without "source" before it: `[1]`, `[1, 3]`, `[1-3]`,
  `[source 2]`; but not a subscript (`a[1]`, `f(x)[0]`), the value of an assignment (`x = [1, 2]`) or code;
- a SourceId in square brackets, right, wrong or broken;
- a full id on its own, with or without "SourceId" before it: no such text leaves unless it was issued.
In Markdown code the second kind is removed if it was not issued; all else there is the author's own text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

# Source: spec 2, "Citation Extraction Regex".
SOURCE_ID_PATTERN = re.compile(r"\[SourceId:\s*([a-f0-9-]{36}:\d+)\]")

LONGEST_MARKER = 120
"""Characters. A SourceId has about 55, so that a pair of them fits; what is longer is no marker and is let go."""

SNIPPET_CHARS = 200  # Source: spec 2, "Snippet Rules".
SNIPPET_FULL_CHARS = 1000  # Source: spec 2, "Snippet Rules".

_SOURCE_ID = re.compile(r"[a-f0-9-]{36}:\d+", re.ASCII)

_MAY_HOLD_MARKER = re.compile(r"[^\t\n\r -~]|\[|[0-9A-Fa-f-]{36}:")
"""A bracket, an id, or a character that may read as a part of them: without any of these a text holds no marker."""

# --------------------------------------------------------------------------------------------------------- lookalikes

# What readers take for one of our signs and NFKD does not fold into it. Source: Unicode's confusables.txt, in part.
_OPENING = "【〔〖〚⟦⦋⁅❲⟬⦗⦍⦏⹕⹗⸢⎡"
_CLOSING = "】〕〗〛⟧⦌⁆❳⟭⦘⦎⦐⹖⹘⸣⎤"
_LOOKALIKES: dict[str, str] = {
    **dict.fromkeys(_OPENING, "["),
    **dict.fromkeys(_CLOSING, "]"),
    **dict.fromkeys("‹〈⟨❮ᐸ˂", "<"),
    **dict.fromkeys("›〉⟩❯ᐳ˃", ">"),
    **dict.fromkeys("«《⟪≪", "<<"),
    **dict.fromkeys("»》⟫≫", ">>"),
    **{"⋘": "<<<", "⋙": ">>>"},
    **dict.fromkeys("‐‑‒–—―−⁃", "-"),
    **dict.fromkeys("∶꞉ː", ":"),
    **dict.fromkeys("ǀ∣│❘", "|"),
    **dict.fromkeys("∕⁄⧸", "/"),
    **{"、": ",", "٬": ",", "،": ",", "▁": "_"},
    **dict.fromkeys("ѕꜱ", "s"),
    **dict.fromkeys("оοօᴏ", "o"),
    **dict.fromkeys("υսᴜ", "u"),
    **dict.fromkeys("ʀᴦ", "r"),
    **dict.fromkeys("сᴄ", "c"),
    **dict.fromkeys("еᴇ", "e"),
    **dict.fromkeys("іıιɪӏ", "i"),
    **dict.fromkeys("ԁᴅ", "d"),
}
_FILLERS = frozenset("\u115f\u1160\u17b4\u17b5\u3164\uffa0")  # Letters by category, and yet nothing is seen.


@lru_cache(maxsize=8192)
def fold(char: str) -> str:
    """What a character reads as: lower case, ASCII where it looks like that; "" for what is not seen.

    Accents are dropped, any white space is a blank, any decimal digit an ASCII one. Some characters read as several.
    """
    folded = []
    for part in unicodedata.normalize("NFKD", char).casefold():
        if part.isspace():
            folded.append(" ")
        elif part not in _FILLERS and unicodedata.category(part) not in {"Mn", "Me", "Cf", "Cc", "Cs"}:
            digit = unicodedata.decimal(part, None)
            folded.append(_LOOKALIKES.get(part, part) if digit is None else str(digit))
    return "".join(folded)


# ------------------------------------------------------------------------------------------------------------- issued


@dataclass(frozen=True, slots=True)
class Issued:
    """The sources that one request's prompt shows, in its order: alias 1 is the first.

    Raises: ValueError: one of them is no source id.
    """

    source_ids: tuple[str, ...]

    def __post_init__(self) -> None:
        for source_id in self.source_ids:
            if not _SOURCE_ID.fullmatch(source_id):
                raise ValueError(f"not a source id: {source_id!r}")

    @classmethod
    def of(cls, source_ids: Iterable[str]) -> Issued:
        """From ids in the order of the prompt."""
        return cls(tuple(source_ids))

    def __contains__(self, source_id: object) -> bool:
        return source_id in self.source_ids

    def source_id(self, alias: int) -> str | None:
        """What the alias stands for; None if it was not issued."""
        return self.source_ids[alias - 1] if 1 <= alias <= len(self.source_ids) else None

    def alias(self, source_id: str) -> int | None:
        """The number that the prompt shows for it; None if it was not issued."""
        return self.source_ids.index(source_id) + 1 if source_id in self.source_ids else None


@dataclass(frozen=True, slots=True)
class Span:
    """A canonical marker: `text[start:end] == "[SourceId: {source_id}]"`, offsets in characters."""

    start: int
    end: int
    source_id: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """An answer that names only issued sources.

    Attributes:
        source_ids: what it cites, each once, by first appearance.
        spans: its markers, in order; those in code are none.
        refused: how many markers were removed.
    """

    text: str
    source_ids: tuple[str, ...]
    spans: tuple[Span, ...]
    refused: int

    @property
    def grounded(self) -> bool:
        """At least one issued source is cited. Source: spec 2, "grounded Definition"."""
        return bool(self.source_ids)


def canonical(source_id: str) -> str:
    """The marker of a source as it leaves us."""
    return f"[SourceId: {source_id}]"


def resolve(answer: str, issued: Issued) -> Resolved:
    """The answer with every marker of an issued source in canonical form and every other one removed.

    To resolve what was resolved with the same map changes nothing.
    """
    stream = MarkerStream(issued)
    text = stream.feed(answer) + stream.finish()
    return Resolved(text, stream.source_ids, stream.spans, stream.refused)


def strip_markers(text: str) -> str:
    """The text without any markers: what it says, without what it cites."""
    return resolve(text, _NOTHING).text


def defuse_markers(text: str) -> str:
    """The text with whatever could be a marker in an answer in parentheses, also in code; nothing else changes.

    `see [1]` becomes `see (1)`, and an id and its index are joined by an underscore; `a[1]` stays.
    """
    if not _MAY_HOLD_MARKER.search(text):
        return text
    stream = _Defuser(_NOTHING)
    return stream.feed(text) + stream.finish()


def snippet(text: str) -> str:
    """The beginning of a chunk, for lists. Source: spec 2, "Snippet Rules"."""
    return text if len(text) <= SNIPPET_CHARS else f"{text[:SNIPPET_CHARS]}..."


def snippet_full(text: str) -> str:
    """What a reader sees of a chunk on demand; never for logs. Source: spec 2, "Snippet Rules"."""
    return text[:SNIPPET_FULL_CHARS]


# ------------------------------------------------------------------------------------------------------------ reading

_SEPARATOR = re.compile(r"[,;&]|\band\b|(?<=\d) (?=\d)")
_ID = r"[0-9a-f-]{36}:[0-9]+"
_SOURCE_ID_WORD = r"source[ _-]?[il|]ds?"  # An l or a bar reads as an i.
_ITEM = re.compile(
    rf"(?:(?:{_SOURCE_ID_WORD}|sources?) ?[:#=]? ?#? ?)?"
    rf"(?:(?P<id>{_ID})|(?P<low>[0-9]+)(?: ?(?:-|to) ?(?P<high>[0-9]+))?|-[0-9]+)"
)
_NAMES_SOURCE_ID = re.compile(rf"{_SOURCE_ID_WORD}\b")
_NAMES_SOURCE = re.compile(r"sources?[:#=]")
_PREFIX = re.compile(r"\[[^a-z0-9]*source(?:(?P<id>[_-]?[il|]ds?)|s)?[:#=]")
_BARE = re.compile(rf"(?:{_SOURCE_ID_WORD} ?[:#=]? ?)?(?P<id>{_ID})")


def _prefixes(*atoms: str) -> str:
    """A pattern for every beginning of the sequence of atoms."""
    pattern = ""
    for atom in reversed(atoms):
        pattern = f"(?:{atom}{pattern})?"
    return pattern


_ID_PREFIX = r"(?:[0-9a-f-]{0,36}|[0-9a-f-]{36}:[0-9]*)"
_BARE_PREFIX = re.compile(
    rf"{_prefixes(*'source', '[ _-]', '[il|]', 'd', 's')}|{_prefixes(*'source', '[il|]', 'd', 's')}"
    rf"|(?:{_SOURCE_ID_WORD} ?[:#=]? ?)?{_ID_PREFIX}"
)


@dataclass(frozen=True, slots=True)
class _Reading:
    """What a marker says: the issued ids, how many parts were not issued, and whether it names SourceIds."""

    source_ids: tuple[str, ...]
    refused: int
    names_source_id: bool


def _read(folded: str, issued: Issued, *, claimed: bool) -> _Reading | None:
    """What a bracket says; None if it is no marker.

    Args:
        folded: as it reads, from bracket to bracket; white space as single blanks.
        claimed: it is known to name a SourceId.
    """
    parts = [part.strip(" ^#") for part in _SEPARATOR.split(folded[1:-1].replace("\\", ""))]
    items = [_ITEM.fullmatch(part) for part in parts if part]
    names_source_id = claimed or _NAMES_SOURCE_ID.search(folded) is not None
    if items and all(items):
        meant = [_sources_of(item, issued) for item in items if item]
        ids = tuple(source_id for sources in meant for source_id in sources)
        return _Reading(ids, sum(not sources for sources in meant), names_source_id)
    if names_source_id or _NAMES_SOURCE.search(folded):
        return _Reading((), 1, names_source_id)
    return None


def _sources_of(item: re.Match[str], issued: Issued) -> Sequence[str]:
    """What a part of a marker cites; nothing unless all of it was issued."""
    source_id, low, high = item["id"], item["low"], item["high"]
    if source_id:
        return (source_id,) if source_id in issued else ()
    if low is None or any(number and number[0] == "0" for number in (low, high)):
        return ()
    first, last = int(low), int(high or low)
    if first > last or last > len(issued.source_ids):
        return ()
    return issued.source_ids[first - 1 : last]


# ---------------------------------------------------------------------------------------------------------- candidates

_ID_LEADS = frozenset("s0123456789abcdef")  # How a SourceId or an id begins.
_KEY_LEADS = frozenset("s")
_PADDING = " ],^#-\\"
_LIST_CHARS = frozenset("0123456789abcdef" + "sourceilant" + " ],;&:#=^_|-\\")
_PREFIX_ENDS = frozenset(":#=")
_RESIDUE = "…"  # What a marker leaves behind that was removed within brackets.
_NEVER_WITHIN = frozenset("`" + _RESIDUE)


class _Candidate:
    """What may still become a marker.

    Attributes:
        raw: its characters as they came.
        folded: what they read as; white space as single blanks.
        bracketed: it began with a bracket; else it is an id on its own.
        in_code: it stands in code.
        closed: its bracket is complete.
        claimed: how many of its characters say `[SourceId:`, which is no text even if its bracket never closes.
    """

    def __init__(self, char: str, folded: str, *, leads: frozenset[str], in_code: bool) -> None:
        self.raw = [char]
        self.folded = folded
        self.bracketed = folded == "["
        self.closed = False
        self.in_code = in_code
        self.claimed = 0
        self._leads = leads
        self._led = False
        self._named = False

    @property
    def overlong(self) -> bool:
        """No marker is longer."""
        return len(self.raw) >= LONGEST_MARKER

    def take(self, char: str, folded: str) -> bool:
        """Adds the next character if this can be a marker with it."""
        if self.overlong or char in _NEVER_WITHIN:
            return False
        if folded == " " and self.folded[-1] == " ":
            folded = ""
        reads = self.folded + folded
        if not (self._goes_on(folded) if self.bracketed else _BARE_PREFIX.fullmatch(reads)):
            return False
        self.raw.append(char)
        self.folded = reads
        if self.bracketed:
            self.closed = folded == "]"
            self._look_for_prefix(folded)
        return True

    def _goes_on(self, folded: str) -> bool:
        if folded == "[":
            return False
        if self._named:
            return True
        if not self._led and (visible := folded.strip(_PADDING)):
            self._led = True
            if visible[0] not in self._leads:
                return False
        return _LIST_CHARS.issuperset(folded)

    def _look_for_prefix(self, folded: str) -> None:
        """Behind `[Source:` anything may follow."""
        if folded not in _PREFIX_ENDS:
            return
        prefix = _PREFIX.fullmatch(self.folded.replace(" ", "").replace("\\", ""))
        if prefix:
            self._named = True
            if prefix["id"] and not self.claimed:
                self.claimed = len(self.raw)


# -------------------------------------------------------------------------------------------------------------- code


class _MarkdownCode:
    """Where Markdown's code is: spans, which end with their line at the latest, and fences."""

    def __init__(self) -> None:
        self._run = ""
        self._length = 0
        self._run_leads = False
        self._leads = True  # only white space and quote marks on the line so far
        self._span = 0
        self._opening: tuple[str, int] | None = None  # a fence, if its line ends without another backtick
        self._fence: tuple[str, int] | None = None
        self._closing = False

    def holds(self, char: str) -> bool:
        """Whether the next character stands in code."""
        if self._length and char != self._run:
            self._end_run()
        return self._span > 0 or self._fence is not None

    def step(self, char: str) -> None:
        """Takes in the next character; blanks need not be told."""
        if self._length and char != self._run:
            self._end_run()
        if char == "\n":
            if self._opening:
                self._fence = self._opening
            elif self._closing:
                self._fence = None
            self._span, self._opening, self._closing, self._leads = 0, None, False, True
        elif char == "`" or (char == "~" and (self._leads or self._length)):
            if not self._length:
                self._run, self._run_leads = char, self._leads
            self._length += 1
            self._leads = self._closing = False
        else:
            self._closing = False
            self._leads = self._leads and char == ">"

    def _end_run(self) -> None:
        length, self._length = self._length, 0
        if self._fence:
            fence, least = self._fence
            self._closing = self._run_leads and self._run == fence and length >= least
        elif self._span:
            self._opening = None
            if length == self._span:
                self._span = 0
        elif self._run == "~":
            if length >= 3:
                self._fence = (self._run, length)
        else:
            self._span = length
            self._opening = (self._run, length) if self._run_leads and length >= 3 else None


# ------------------------------------------------------------------------------------------------------------- stream

_MARKER = ""  # Stands for the last visible character where that is a marker's end.
_WORD_REST = re.compile(r"[A-Za-z0-9_]+")
_PLAIN = re.compile(
    r"(?: ?(?:[g-rt-zG-RT-Z_][A-Za-z0-9_]*"
    r"|[0-9a-fA-F]{1,35}(?=[ !-,./;-@G-`g-~\n])[A-Za-z0-9_]*"
    r"|[sS](?=[ -NP-np-~\n])[A-Za-z0-9_]*"
    r"|[!-/:;<=?@\\^{|}]))+"  # Not possessive: before Python 3.11.5 such a repeat skips what looks ahead within it.
)
"""Words and signs in which no marker begins: each word is followed, where that matters, by what ends a beginning."""
_ID_CHARS = frozenset(" 0123456789abcdef:-")
_OPENS_LINK = frozenset("([:")
_BRACKETS = frozenset("[]")
_TIGHT = frozenset(".,;!?)…。，")  # No space is left before these where a marker was removed.
_SUBSCRIPTED = frozenset(")]}")


class MarkerStream:
    """`resolve` for a text that comes in pieces: what leaves is the same, however it was cut.

    Only what may still become a marker is held back (`LONGEST_MARKER`), and the white space before it.
    """

    def __init__(self, issued: Issued) -> None:
        self._issued = issued
        self._code = _MarkdownCode()
        self._held: _Candidate | None = None
        self._dropping = ""  # what was dropped last of an endless id; empty where none is being dropped
        self._previous = "\n"  # the last visible character that left
        self._space = ""  # blanks behind it, which leave with what follows
        self._gap = False  # a marker was removed behind it
        self._bracket: int | None = None  # where a bracket that is text opened, by what had left
        self._leaving: list[str] = []
        self._left_chars = 0
        self._spans: list[Span] = []
        self._cited: dict[str, None] = {}
        self._told = 0
        self._refused = 0

    @property
    def source_ids(self) -> tuple[str, ...]:
        """What was cited so far, each once, by first appearance."""
        return tuple(self._cited)

    @property
    def spans(self) -> tuple[Span, ...]:
        """The markers that have left, by their places in all that has left."""
        return tuple(self._spans)

    @property
    def refused(self) -> int:
        """How many markers were removed so far."""
        return self._refused

    def new_citations(self) -> tuple[str, ...]:
        """The sources cited for the first time since the last call, in order."""
        new = self.source_ids[self._told :]
        self._told += len(new)
        return new

    def feed(self, piece: str) -> str:
        """Takes in the next piece of the answer and returns what may leave now."""
        position = 0
        while position < len(piece):
            if self._is_settled() and (plain := _PLAIN.match(piece, position)):
                self._let_pass(plain.group())
                position = plain.end()
                continue
            char = piece[position]
            self._push(char, fold(char))
            position += 1
            if self._is_within_word(char) and (rest := _WORD_REST.match(piece, position)):
                self._emit(rest.group())
                self._previous = piece[rest.end() - 1]
                position = rest.end()
        return self._leave()

    def finish(self) -> str:
        """What was held back, now that nothing follows."""
        while self._held:
            self._give_up(self._held)
        if not self._gap:
            self._emit(self._space)
        self._space = ""
        return self._leave()

    def _push(self, char: str, folded: str) -> None:
        while self._held:
            if self._held.take(char, folded):
                if self._held.closed:
                    self._close(self._held)
                return
            self._give_up(self._held)
        if self._dropping:
            ends = not _ID_CHARS.issuperset(folded) or (folded == " " and self._dropping != " ")
            self._dropping = "" if ends else folded or self._dropping
            if not ends or folded == "]":
                return
        in_code = self._in_code(char)
        if folded == "[":
            leads = _KEY_LEADS if in_code or self._is_value() else _ID_LEADS
            self._held = _Candidate(char, folded, leads=leads, in_code=in_code)
        elif not in_code and folded in _ID_LEADS and (self._is_apart() or not _is_word(self._previous)):
            self._held = _Candidate(char, folded, leads=_ID_LEADS, in_code=False)
        else:
            self._text(char)

    def _is_settled(self) -> bool:
        """What was read decides nothing about what comes: a stretch without markers may leave as it is."""
        return not (self._held or self._dropping or self._gap) and self._previous != _MARKER

    def _let_pass(self, plain: str) -> None:
        """`_text` for a stretch at once."""
        self._emit(self._space)
        self._emit(plain)
        self._previous, self._space = plain[-1], ""
        self._code.step(plain[-1])

    def _is_within_word(self, char: str) -> bool:
        """The character has just left as part of a word: nothing begins before that ends, so it can leave at once."""
        return not (self._held or self._dropping or self._is_apart()) and self._previous == char and _is_word(char)

    def _in_code(self, char: str) -> bool:
        return self._code.holds(char)

    def _is_apart(self) -> bool:
        """Something lies between the last visible character and the next one."""
        return bool(self._space) or self._gap

    def _is_value(self) -> bool:
        """A bracket that comes next would be a subscript or an assigned list."""
        if self._previous == "=":
            return True
        return not self._is_apart() and (self._previous in _SUBSCRIPTED or _is_word(self._previous))

    # What becomes of a candidate. Each of these lets go of it first.

    def _close(self, candidate: _Candidate) -> None:
        """Its bracket is complete."""
        reading = _read(candidate.folded, self._issued, claimed=candidate.claimed > 0)
        if reading is None:
            self._give_up_bracket(candidate.raw)
        elif candidate.in_code and not (reading.names_source_id and reading.refused):
            self._held = None
            self._texts(candidate.raw)
        else:
            self._held = None
            self._found(candidate.raw, reading)

    def _give_up(self, candidate: _Candidate) -> None:
        """It cannot become a longer marker."""
        if not candidate.bracketed:
            self._give_up_bare(candidate)
        elif candidate.claimed:
            self._give_up_claimed(candidate.raw[: candidate.claimed], candidate.raw[candidate.claimed :])
        else:
            self._give_up_bracket(candidate.raw)

    def _give_up_bare(self, candidate: _Candidate) -> None:
        self._held = None
        bare = _BARE.fullmatch(candidate.folded)
        if bare is None:
            self._texts(candidate.raw)
            return
        known = (bare["id"],) if bare["id"] in self._issued else ()
        self._found(candidate.raw, _Reading(known, 1 - len(known), names_source_id=True))
        self._dropping = "0" if candidate.overlong else ""

    def _give_up_claimed(self, prefix: Sequence[str], rest: Sequence[str]) -> None:
        """`[SourceId:` without an end: the prefix goes, and the rest if it is nothing but an id."""
        self._held = None
        self._refuse(1)
        reads = "".join(map(fold, rest))
        if _ID_CHARS.issuperset(reads):
            self._dropping = reads[-1:] or " "
        else:
            self._push_all(rest)

    def _give_up_bracket(self, raw: Sequence[str]) -> None:
        """None of ours: text, but there may be a marker within."""
        self._held = None
        self._text(raw[0])
        self._push_all(raw[1:])

    def _push_all(self, chars: Iterable[str]) -> None:
        for char in chars:
            self._push(char, fold(char))

    # What leaves.

    def _found(self, raw: Sequence[str], reading: _Reading) -> None:
        if reading.source_ids:
            self._cite(reading.source_ids)
        if reading.refused:
            self._refuse(reading.refused)

    def _cite(self, source_ids: Iterable[str]) -> None:
        if self._gap and self._previous not in ("\n", _MARKER):
            self._space = self._space or " "
        self._emit(self._space)
        for source_id in source_ids:
            marker = canonical(source_id)
            self._spans.append(Span(self._left_chars, self._left_chars + len(marker), source_id))
            self._cited.setdefault(source_id)
            self._emit(marker)
        self._code.step("]")
        self._previous, self._space, self._gap = _MARKER, "", False

    def _refuse(self, count: int) -> None:
        self._refused += count
        self._gap = True

    def _texts(self, chars: Iterable[str]) -> None:
        for char in chars:
            self._text(char)

    def _text(self, char: str) -> None:
        """Lets a character leave that belongs to no marker.

        Where a marker was removed, one of the spaces around it stays, and nothing grows together: what is left of
        `[7 [9]]` must not read as `[7]`. And what follows a canonical marker does not make a Markdown link of it.
        """
        if char != "\n" and char.isspace():
            self._blank(char)
            return
        if self._gap:
            if self._is_bracketed():
                self._space += _RESIDUE
            elif char == "\n" or char in _TIGHT:
                self._space = ""
            elif self._previous != "\n":
                self._space = self._space or " "
        elif self._previous == _MARKER and not self._space and self._opens_link(char):
            self._space = " "
        if fold(char):
            self._previous = char
        elif self._space:
            self._previous = " "
        self._emit(self._space)
        if fold(char) in _BRACKETS:
            self._bracket = self._left_chars if fold(char) == "[" else None
        self._emit(char)
        self._code.step(char)
        self._space, self._gap = "", False

    def _is_bracketed(self) -> bool:
        return self._bracket is not None and self._left_chars - self._bracket < LONGEST_MARKER

    def _opens_link(self, char: str) -> bool:
        return char in _OPENS_LINK

    def _blank(self, char: str) -> None:
        if not self._gap:
            self._space += char
            if len(self._space) > LONGEST_MARKER:
                self._emit(self._space)
                self._previous, self._space = " ", ""
        elif not self._space and self._previous != "\n":
            self._space = " "

    def _emit(self, text: str) -> None:
        self._leaving.append(text)
        self._left_chars += len(text)

    def _leave(self) -> str:
        leaving = "".join(self._leaving)
        self._leaving.clear()
        return leaving


class _Defuser(MarkerStream):
    """Lets everything leave, a marker in parentheses."""

    def _in_code(self, char: str) -> bool:
        return False  # A model may quote any part of a text, so what is code in it does not matter.

    def _opens_link(self, char: str) -> bool:
        return False

    def _found(self, raw: Sequence[str], reading: _Reading) -> None:
        self._parenthesise(raw, joined=True)
        if fold(raw[0]) == "[":
            self._previous = _MARKER

    def _give_up_claimed(self, prefix: Sequence[str], rest: Sequence[str]) -> None:
        self._held = None
        self._parenthesise(prefix, joined=False)
        self._push_all(rest)

    def _parenthesise(self, raw: Sequence[str], *, joined: bool) -> None:
        for char, following in zip(raw, [*raw[1:], " "], strict=True):
            match fold(char):
                case "[":
                    self._text("(")
                case "]":
                    self._text(")")
                case ":" if joined and not following.isspace():
                    self._text("_")
                case _:
                    self._text(char)


_NOTHING = Issued(())


def _is_word(char: str) -> bool:
    """Part of an identifier. Letters without case are not: no space stands between their words and a marker."""
    return char == "_" or (char.isalnum() and (char.isdigit() or char.lower() != char.upper()))
