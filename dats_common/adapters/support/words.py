"""The scorers' twin: shared words, no model."""

from __future__ import annotations

from collections.abc import Sequence

from dats_common.domain.grounding import Pair, shared_words
from dats_common.records import Scored


class WordScorer:
    """`ports.SupportScorer` over the rule in `domain.grounding`: deterministic. Blended in, it changes nothing."""

    name = "words"

    def __init__(self, *, most_pairs: int = 1000) -> None:
        self._most_pairs = most_pairs

    async def score(self, pairs: Sequence[Pair]) -> Scored:
        """See `ports.SupportScorer`."""
        beyond = max(0, len(pairs) - self._most_pairs)
        scores = [shared_words(pair) for pair in pairs[: self._most_pairs]]
        return Scored((*scores, *[None] * beyond), f"{beyond} more than are scored at once" if beyond else "")

    async def ping(self) -> None:
        """See `ports.SupportScorer`."""
