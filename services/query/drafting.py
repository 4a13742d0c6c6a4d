"""A draft while a model writes it: what may be shown, and whether its sources stand still."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from dats_common.domain.citations import MarkerStream
from dats_common.ports import Generator
from dats_common.records import Drafted
from services.query.happenings import Cited
from services.query.prompting import Prompt


class Draft:
    """What the model has written so far, and how much of it may be shown."""

    def __init__(
        self,
        prompt: Prompt,
        generator: Generator,
        *,
        stands: Callable[[], Awaitable[bool]],
        look_every_s: float,
        shown: bool,
    ) -> None:
        self.prompt = prompt
        self.generator = generator
        self._stands = stands
        self._look_every_s = look_every_s
        self._is_shown = shown
        self._markers = MarkerStream(prompt.issued)
        self._raw: list[str] = []
        self._looked_s = time.monotonic()
        self.end: Drafted | None = None
        self.fell = False

    @property
    def text(self) -> str:
        """As the model wrote it, markers and all."""
        return "".join(self._raw)

    async def take(self, piece: str | Drafted) -> list[str | Cited]:
        """What may be shown now; nothing once a source has fallen."""
        if isinstance(piece, Drafted):
            self.end = piece
            return []
        self._raw.append(piece)
        await self.look()
        return self._shown(self._markers.feed(piece)) if self._is_shown and not self.fell else []

    async def look(self) -> None:
        """Whether all sources stand still; not more often than is needed."""
        if not self.fell and time.monotonic() - self._looked_s >= self._look_every_s:
            self.fell = not await self._stands()
            self._looked_s = time.monotonic()

    def rest(self) -> list[str | Cited]:
        """What was held back as a possible marker."""
        return self._shown(self._markers.finish()) if self._is_shown and not self.fell else []

    def _shown(self, text: str) -> list[str | Cited]:
        new = [Cited(self.prompt.hit_of(source_id)) for source_id in self._markers.new_citations()]
        return [*([text] if text else []), *new]
