"""The encoder's twin for tests: a hashed bag of words. Fast; texts are near when they share words."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_TOKEN = re.compile(r"\w{1,8}|[^\w\s]")
_SPECIAL_TOKENS = 2


class MemoryEncoder:
    """Implements `ports.Encoder` without a model."""

    model = "hashed-words"
    backend = "memory"

    def __init__(self, *, dimension: int = 64, max_tokens: int = 256) -> None:
        self.dimension = dimension
        self.max_tokens = max_tokens

    async def encode(self, texts: Sequence[str], *, kind: Literal["query", "document"]) -> npt.NDArray[np.float32]:
        """See `ports.Encoder`. The kind makes no difference; a text without words gets the first axis."""
        import numpy as np

        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            tokens = _TOKEN.findall(text)[: self.max_tokens - _SPECIAL_TOKENS]
            for token in tokens:
                vector[zlib.crc32(token.casefold().encode(errors="replace")) % self.dimension] += 1
            if not tokens:
                vector[0] = 1
            vector /= np.linalg.norm(vector)
        return vectors

    def token_spans(self, text: str) -> list[tuple[int, int]]:
        """See `ports.Encoder`: pieces of words and single punctuation marks."""
        return [match.span() for match in _TOKEN.finditer(text)]
