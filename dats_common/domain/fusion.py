"""From two ranked legs to one order, and what of it is relevant at all. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

RRF_K = 60  # Source: Cormack, Clarke, Buettcher, SIGIR 2009: fixed in their pilot, not critical.

LEAST_TERM_COVERAGE = 0.5
"""A chunk below the similarity cut stays if it holds at least this share of the query's distinct terms: an exact
identifier is relevant whatever its embedding says, one common word of six is not."""


@dataclass(frozen=True, slots=True)
class LegWeights:
    """How much a leg's rank counts."""

    dense: float = 1.0
    sparse: float = 1.0


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


def is_relevant(
    *, similarity: float, query_terms: Iterable[int], chunk_terms: Iterable[int], min_similarity: float
) -> bool:
    """Whether a chunk may be shown as context.

    Args:
        similarity: cosine to the query, clamped to [0, 1].
        query_terms: sparse term ids of the query; empty when the keyword leg was not asked.
        min_similarity: the cut on cosine. Source: spec 2, RAG_MIN_SIMILARITY_SCORE.
    """
    if similarity >= min_similarity:
        return True
    wanted = frozenset(query_terms)
    return bool(wanted) and len(wanted & frozenset(chunk_terms)) >= LEAST_TERM_COVERAGE * len(wanted)
