"""What a model thinks aloud before it answers, taken out piece by piece. Pure."""

from __future__ import annotations

OPENS, CLOSES = "<think>", "</think>"


class WithoutThoughts:
    """Drops the `<think>` blocks that an answer begins with; give it the pieces in order, and `end` it.

    Only there: further on the tag is text, since an answer may speak of it, and a block that never closes would take
    the rest of the answer with it. Nothing is held back but what may still become the opening tag.
    """

    def __init__(self) -> None:
        self._held = ""
        self._thinking = self._thought = self._answering = False

    def feed(self, piece: str) -> str:
        """What may be shown now."""
        if self._answering:
            return piece
        self._held += piece
        while True:
            if self._thinking:
                before, closed, after = self._held.partition(CLOSES)
                if not closed:
                    self._held = before[-len(CLOSES) :]  # may end in half a closing tag
                    return ""
                self._held, self._thinking = after, False
            text = self._held.lstrip()
            if OPENS.startswith(text):
                return ""
            if not text.startswith(OPENS):
                self._answering = True
                return text if self._thought else self._held
            self._held, self._thinking, self._thought = text.removeprefix(OPENS), True, True

    def end(self) -> str:
        """What was held back for a tag that never came. A block that was never closed stays hidden."""
        return "" if self._answering or self._thinking else self._held
