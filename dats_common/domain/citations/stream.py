"""An answer's markers, resolved while it is written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from dats_common.domain.citations.candidate import ID_LEADS, KEY_LEADS, LONGEST_MARKER, RESIDUE, Candidate
from dats_common.domain.citations.issued import Issued, Span, canonical
from dats_common.domain.citations.lookalikes import fold
from dats_common.domain.citations.markdown_code import MarkdownCode
from dats_common.domain.citations.reading import BARE, Reading, read_marker

MARKER = ""  # Stands for the last visible character where that is a marker's end.
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
        self._code = MarkdownCode()
        self._held: Candidate | None = None
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
            leads = KEY_LEADS if in_code or self._is_value() else ID_LEADS
            self._held = Candidate(char, folded, leads=leads, in_code=in_code)
        elif not in_code and folded in ID_LEADS and (self._is_apart() or not _is_word(self._previous)):
            self._held = Candidate(char, folded, leads=ID_LEADS, in_code=False)
        else:
            self._text(char)

    def _is_settled(self) -> bool:
        """What was read decides nothing about what comes: a stretch without markers may leave as it is."""
        return not (self._held or self._dropping or self._gap) and self._previous != MARKER

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

    def _close(self, candidate: Candidate) -> None:
        """Its bracket is complete."""
        reading = read_marker(candidate.folded, self._issued, claimed=candidate.claimed > 0)
        if reading is None:
            self._give_up_bracket(candidate.raw)
        elif candidate.in_code and not (reading.names_source_id and reading.refused):
            self._held = None
            self._texts(candidate.raw)
        else:
            self._held = None
            self._found(candidate.raw, reading)

    def _give_up(self, candidate: Candidate) -> None:
        """It cannot become a longer marker."""
        if not candidate.bracketed:
            self._give_up_bare(candidate)
        elif candidate.claimed:
            self._give_up_claimed(candidate.raw[: candidate.claimed], candidate.raw[candidate.claimed :])
        else:
            self._give_up_bracket(candidate.raw)

    def _give_up_bare(self, candidate: Candidate) -> None:
        self._held = None
        bare = BARE.fullmatch(candidate.folded)
        if bare is None:
            self._texts(candidate.raw)
            return
        known = (bare["id"],) if bare["id"] in self._issued else ()
        self._found(candidate.raw, Reading(known, 1 - len(known), names_source_id=True))
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

    def _found(self, raw: Sequence[str], reading: Reading) -> None:
        if reading.source_ids:
            self._cite(reading.source_ids)
        if reading.refused:
            self._refuse(reading.refused)

    def _cite(self, source_ids: Iterable[str]) -> None:
        if self._gap and self._previous not in ("\n", MARKER):
            self._space = self._space or " "
        self._emit(self._space)
        for source_id in source_ids:
            marker = canonical(source_id)
            self._spans.append(Span(self._left_chars, self._left_chars + len(marker), source_id))
            self._cited.setdefault(source_id)
            self._emit(marker)
        self._code.step("]")
        self._previous, self._space, self._gap = MARKER, "", False

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
                self._space += RESIDUE
            elif char == "\n" or char in _TIGHT:
                self._space = ""
            elif self._previous != "\n":
                self._space = self._space or " "
        elif self._previous == MARKER and not self._space and self._opens_link(char):
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


def _is_word(char: str) -> bool:
    """Part of an identifier. Letters without case are not: no space stands between their words and a marker."""
    return char == "_" or (char.isalnum() and (char.isdigit() or char.lower() != char.upper()))
