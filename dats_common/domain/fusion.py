"""From two ranked legs to one order, and what of it is relevant at all. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

RRF_K = 60  # Source: Cormack, Clarke, Buettcher, SIGIR 2009: fixed in their pilot, not critical.

LEAST_TERM_COVERAGE = 0.5
"""A chunk below the similarity cut stays if it holds at least this share of the query's distinct terms: an exact
identifier is relevant whatever its embedding says, one common word of six is not."""

_CERTAIN = 1e-12  # a logit of 28: beyond what rerankers give

Method = Literal["score", "rrf"]


class Found(Protocol):
    """What the legs say of a chunk; ranks are 1-based, None where a leg missed it."""

    @property
    def similarity(self) -> float:
        """Cosine to the query, in [0, 1]; known whichever leg found the chunk."""

    @property
    def dense_rank(self) -> int | None:
        """In the dense leg."""

    @property
    def sparse_rank(self) -> int | None:
        """In the keyword leg."""

    @property
    def sparse_score(self) -> float | None:
        """The keyword leg's own; None where that missed the chunk."""


@dataclass(frozen=True, slots=True)
class LegWeights:
    """How much a leg counts."""

    dense: float = 1.0
    sparse: float = 1.0


@dataclass(frozen=True, slots=True)
class FusionRules:
    """How legs become one order.

    Attributes:
        by_domain: weights for requests whose domain begins so; the longest beginning counts, `weights` if none fits.
    """

    method: Method = "score"
    weights: LegWeights = field(default_factory=LegWeights)
    by_domain: Sequence[tuple[str, LegWeights]] = ()

    def weights_for(self, domain: str | None) -> LegWeights:
        """Of a request for this domain."""
        fitting = [each for each in self.by_domain if (domain or "").startswith(each[0])]
        return max(fitting, key=lambda each: len(each[0]))[1] if fitting else self.weights


def fuse(candidates: Sequence[Found], *, rules: FusionRules, domain: str | None) -> list[float]:
    """A score for each candidate, in their order: what the two legs say together."""
    weights = rules.weights_for(domain)
    if rules.method == "rrf":
        return [rrf(dense_rank=each.dense_rank, sparse_rank=each.sparse_rank, weights=weights) for each in candidates]
    return by_score(candidates, weights=weights)


def rrf(*, dense_rank: int | None, sparse_rank: int | None, weights: LegWeights) -> float:
    """Weighted reciprocal rank fusion: the sum of weight / (k + rank) over the legs that found the chunk.

    Args:
        dense_rank: 1-based, None where the leg missed the chunk.
    """
    score = 0.0
    if dense_rank is not None:
        score += weights.dense / (RRF_K + dense_rank)
    if sparse_rank is not None:
        score += weights.sparse / (RRF_K + sparse_rank)
    return score


def by_score(candidates: Sequence[Found], *, weights: LegWeights) -> list[float]:
    """The weighted sum of both legs' scores, each scaled from its leg's last (0) to its first (1).

    A chunk that the dense leg missed counts by its cosine all the same; one that the keyword leg missed has 0 there.
    Unlike ranks, scores say how far apart two hits are: of a leg that cannot tell, nearly nothing counts.
    """
    dense = _Scale.of(each.similarity for each in candidates if each.dense_rank is not None)
    sparse = _Scale.of(each.sparse_score for each in candidates if each.sparse_score is not None)
    return [
        weights.dense * dense.place(each.similarity)
        + (0.0 if each.sparse_score is None else weights.sparse * sparse.place(each.sparse_score))
        for each in candidates
    ]


def blend(
    relevance: Sequence[float],
    fused: Sequence[float],
    *,
    weight: float,
    nearest: Sequence[float] = (),
    nearest_weight: float = 0.0,
) -> list[float]:
    """A score for each reranked chunk: what the reranker says, what the legs said before it, and its nearest part.

    All are scaled from their least (0) to their greatest (1). A reranker's probabilities crowd at 0 and at 1; their
    log-odds keep the distances by which it was trained.

    Args:
        relevance: the reranker's, in [0, 1].
        fused: the scores of `fuse` for the same chunks.
        weight: share of the relevance against the fused score, from 0 to 1.
        nearest: cosines of the same chunks' nearest parts; needed where they have a weight.
        nearest_weight: their share, from 0 to 1; relevance and fused score divide the rest.
    """
    odds = [_log_odds(each) for each in relevance]
    views = (
        ((1 - nearest_weight) * weight, odds),
        ((1 - nearest_weight) * (1 - weight), fused),
        (nearest_weight, nearest),
    )
    scores = [0.0] * len(odds)
    for share, values in views:
        if share:
            scale = _Scale.of(values)
            scores = [score + share * scale.place(value) for score, value in zip(scores, values, strict=True)]
    return scores


def _log_odds(probability: float) -> float:
    """The logit; bounded where a probability is all but certain."""
    bounded = min(1 - _CERTAIN, max(_CERTAIN, probability))
    return math.log(bounded / (1 - bounded))


@dataclass(frozen=True, slots=True)
class _Scale:
    last: float
    first: float

    @classmethod
    def of(cls, scores: Iterable[float]) -> _Scale:
        """Of a leg that was not asked, or found nothing, one on which everything is last."""
        known = list(scores)
        return cls(min(known), max(known)) if known else cls(math.inf, math.inf)

    def place(self, score: float) -> float:
        if self.first == self.last:
            return float(score >= self.first)
        return min(1.0, max(0.0, (score - self.last) / (self.first - self.last)))


def holds_the_terms(*, query_terms: Iterable[int], text_terms: Iterable[int], title_terms: Iterable[int] = ()) -> bool:
    """Whether a chunk is relevant by its terms alone (see `LEAST_TERM_COVERAGE`): its text holds enough of the query's,
    or text and title together hold them all. Every chunk has its document's title: one word of that says little.

    Args:
        query_terms: sparse term ids of the query; a query without terms is held by nothing.
    """
    wanted, text = frozenset(query_terms), frozenset(text_terms)
    if not wanted:
        return False
    return len(wanted & text) >= LEAST_TERM_COVERAGE * len(wanted) or wanted <= text.union(title_terms)
