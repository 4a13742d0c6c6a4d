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


def holds_the_terms(*, query_terms: Iterable[int], chunk_terms: Iterable[int]) -> bool:
    """Whether a chunk is relevant by its terms alone (see `LEAST_TERM_COVERAGE`).

    Args:
        query_terms: sparse term ids of the query; a query without terms is held by nothing.
    """
    wanted = frozenset(query_terms)
    return bool(wanted) and len(wanted & frozenset(chunk_terms)) >= LEAST_TERM_COVERAGE * len(wanted)
