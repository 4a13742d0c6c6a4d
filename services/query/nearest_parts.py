"""How near a passage comes to a question somewhere: the cosine of its nearest part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dats_common.domain.parts import parts
from dats_common.ports import Encoder
from dats_common.records import Passage

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class NearestParts:
    """For one question. A passage's own vector is the mean of all that it says; this looks at each of its parts."""

    def __init__(self, encoder: Encoder, query: npt.NDArray[np.float32]) -> None:
        """Look from a question's vector, shape (dimension,), L2-normalised."""
        self._encoder = encoder
        self._query = query

    async def of(self, passages: Sequence[Passage]) -> list[float]:
        """The highest cosine of each passage's parts, in [-1, 1]. Raises: EncoderUnavailable."""
        cut = [
            parts(passage.text, self._encoder.token_spans(passage.text), title=passage.metadata.title)
            for passage in passages
        ]
        # As documents: whoever asks meanwhile has his question encoded first.
        vectors = await self._encoder.encode([part for each in cut for part in each], kind="document")
        cosines = (vectors @ self._query).tolist()
        nearest, first = [], 0
        for each in cut:
            nearest.append(max(cosines[first : first + len(each)]))
            first += len(each)
        return nearest
