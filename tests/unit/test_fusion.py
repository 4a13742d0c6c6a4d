"""Fusion and relevance: pure rules over ranks, similarities and terms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dats_common.domain.fusion import RRF_K, LegWeights, holds_the_terms, rrf

RANK = st.one_of(st.none(), st.integers(min_value=1, max_value=1000))
EVEN = LegWeights()


def test_the_score_is_the_weighted_sum_of_reciprocal_ranks() -> None:
    assert rrf(dense_rank=1, sparse_rank=3, weights=LegWeights(2.0, 0.5)) == pytest.approx(
        2 / (RRF_K + 1) + 0.5 / (RRF_K + 3)
    )


def test_a_leg_that_missed_the_chunk_adds_nothing() -> None:
    assert rrf(dense_rank=None, sparse_rank=None, weights=EVEN) == 0.0
    assert rrf(dense_rank=2, sparse_rank=None, weights=EVEN) == 1 / (RRF_K + 2)


@given(dense=RANK, sparse=RANK, better=st.integers(min_value=1, max_value=500))
def test_a_better_rank_never_scores_less(dense: int | None, sparse: int | None, better: int) -> None:
    worse = better + 1
    assert rrf(dense_rank=better, sparse_rank=sparse, weights=EVEN) > rrf(
        dense_rank=worse, sparse_rank=sparse, weights=EVEN
    )
    assert rrf(dense_rank=dense, sparse_rank=better, weights=EVEN) > rrf(
        dense_rank=dense, sparse_rank=worse, weights=EVEN
    )


def test_a_chunk_found_by_both_legs_beats_one_found_by_either_at_that_rank() -> None:
    both = rrf(dense_rank=5, sparse_rank=5, weights=EVEN)
    assert both > rrf(dense_rank=5, sparse_rank=None, weights=EVEN)
    assert both > rrf(dense_rank=None, sparse_rank=5, weights=EVEN)


@pytest.mark.parametrize(
    ("query", "chunk", "held"),
    [
        ([1, 2], [2, 9], True),  # half is enough
        ([1, 2, 3], [3], False),
        ([1], [1, 1, 1], True),
        ([1, 1, 2, 2, 3], [1], False),  # distinct terms count
        ([], [1], False),  # a query without terms is held by nothing
        ([], [], False),
    ],
)
def test_a_chunk_is_relevant_by_terms_from_half_of_them(query: list[int], chunk: list[int], held: bool) -> None:
    assert holds_the_terms(query_terms=query, chunk_terms=chunk) is held
