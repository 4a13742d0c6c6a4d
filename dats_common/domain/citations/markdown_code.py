"""Where an answer's code is, read a character at a time."""

from __future__ import annotations


class MarkdownCode:
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
