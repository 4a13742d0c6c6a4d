"""What may still become a marker."""

from __future__ import annotations

from dats_common.domain.citations.reading import BARE_PREFIX, PREFIX

LONGEST_MARKER = 120
"""Characters. A SourceId has about 55, so that a pair of them fits; what is longer is no marker and is let go."""

ID_LEADS = frozenset("s0123456789abcdef")  # How a SourceId or an id begins.
KEY_LEADS = frozenset("s")
_PADDING = " ],^#-\\"
_LIST_CHARS = frozenset("0123456789abcdef" + "sourceilant" + " ],;&:#=^_|-\\")
_PREFIX_ENDS = frozenset(":#=")
RESIDUE = "…"  # What a marker leaves behind that was removed within brackets.
_NEVER_WITHIN = frozenset("`" + RESIDUE)


class Candidate:
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
        if not (self._goes_on(folded) if self.bracketed else BARE_PREFIX.fullmatch(reads)):
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
        prefix = PREFIX.fullmatch(self.folded.replace(" ", "").replace("\\", ""))
        if prefix:
            self._named = True
            if prefix["id"] and not self.claimed:
                self.claimed = len(self.raw)
