"""Vectors of questions that were asked before: to encode one is a third of what a search costs."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import TYPE_CHECKING

from dats_common.ports import Encoder

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MOST = 4096
"""Vectors kept: 6 MB of 384 dimensions."""


class QueryVectors:
    """The vectors of one model, those asked for last.

    Kept for each tenant apart: how fast an answer comes must not tell what another one has asked.
    """

    def __init__(self, encoder: Encoder, *, most: int = MOST) -> None:
        self._encoder = encoder
        self._most = most
        self._kept: OrderedDict[bytes, npt.NDArray[np.float32]] = OrderedDict()

    async def of(self, text: str, *, tenant_id: str) -> npt.NDArray[np.float32]:
        """The vector of a question, shape (dimension,), read-only. Raises: EncoderUnavailable: it is not known yet."""
        # Not the text itself: the longest ones would be most of what is kept.
        key = hashlib.sha256(f"{tenant_id}\0{text}".encode(errors="surrogatepass")).digest()
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        vector: npt.NDArray[np.float32] = (await self._encoder.encode([text], kind="query"))[0].copy()
        vector.flags.writeable = False
        self._kept[key] = vector
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return vector
