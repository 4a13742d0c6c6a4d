"""Fusion and relevance: pure rules over ranks, similarities and terms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dats_common.domain.fusion import RRF_K, FusionRules, LegWeights, blend, by_score, fuse, holds_the_terms, rrf
from dats_common.domain.model import ArtifactKey, ChunkRef
from dats_common.records import Candidate

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


def candidate(
    similarity: float, *, dense: int | None = None, sparse: int | None = None, score: float | None = None
) -> Candidate:
    return Candidate(ChunkRef(ArtifactKey("t", "a"), 1, 0), similarity, dense, sparse, score)


BOTH = [
    candidate(0.9, dense=1),
    candidate(0.7, dense=2, sparse=2, score=6.0),
    candidate(0.5, dense=3),
    candidate(0.6, sparse=1, score=12.0),
    candidate(0.1, sparse=3, score=4.0),
]


def test_scores_are_scaled_from_the_last_to_the_first_of_their_leg_and_weighed() -> None:
    assert by_score(BOTH, weights=LegWeights(0.6, 0.4)) == pytest.approx(
        [0.6, 0.6 * 0.5 + 0.4 * 0.25, 0.0, 0.6 * 0.25 + 0.4, 0.0]
    )


def test_one_leg_alone_keeps_its_order() -> None:
    dense = [candidate(0.9, dense=1), candidate(0.4, dense=2)]
    assert by_score(dense, weights=LegWeights(0.6, 0.4)) == pytest.approx([0.6, 0.0])
    keyword = [candidate(0.1, sparse=1, score=3.0), candidate(0.9, sparse=2, score=2.0)]
    assert by_score(keyword, weights=LegWeights(0.6, 0.4)) == pytest.approx([0.4, 0.0])
    assert by_score([candidate(0.3, dense=1)], weights=LegWeights(0.6, 0.4)) == pytest.approx([0.6])
    assert by_score([], weights=EVEN) == []


SCORES = st.lists(
    st.tuples(st.floats(0, 1), st.booleans(), st.none() | st.floats(0.01, 50)).filter(lambda it: it[1] or it[2]),
    min_size=1,
    max_size=20,
)


@given(SCORES)
def test_more_in_both_legs_never_scores_less(found: list[tuple[float, bool, float | None]]) -> None:
    candidates = [
        candidate(similarity, dense=1 if in_dense else None, sparse=None if score is None else 1, score=score)
        for similarity, in_dense, score in found
    ]
    scores = by_score(candidates, weights=LegWeights(0.6, 0.4))
    assert all(0.0 <= score <= 1.0 + 1e-9 for score in scores)
    for one, its in zip(candidates, scores, strict=True):
        for other, others in zip(candidates, scores, strict=True):
            if one.similarity >= other.similarity and (one.sparse_score or 0) >= (other.sparse_score or 0):
                assert its >= others


def test_weights_are_those_of_the_longest_beginning_of_the_domain() -> None:
    rules = FusionRules(
        weights=LegWeights(0.5, 0.5), by_domain=(("code", LegWeights(0.9, 0.1)), ("code-sql", LegWeights(0.2, 0.8)))
    )
    for domain, dense in ((None, 0.5), ("docs", 0.5), ("code", 0.9), ("code-python", 0.9), ("code-sql", 0.2)):
        assert rules.weights_for(domain).dense == dense
    assert fuse(BOTH, rules=rules, domain="code") == by_score(BOTH, weights=LegWeights(0.9, 0.1))


def test_ranks_are_fused_where_the_rules_say_so() -> None:
    rules = FusionRules(method="rrf", weights=LegWeights(1.0, 0.5))
    assert fuse(BOTH, rules=rules, domain=None)[:2] == [1 / (RRF_K + 1), 1 / (RRF_K + 2) + 0.5 / (RRF_K + 2)]


def test_the_nearest_part_has_its_share_beside_the_reranker_s_and_fusion_s() -> None:
    relevance, fused, nearest = [0.1, 0.5, 0.9], [3.0, 2.0, 1.0], [0.2, 0.8, 0.5]
    scores = blend(relevance, fused, weight=0.75, nearest=nearest, nearest_weight=0.2)
    assert scores == pytest.approx([0.2, 0.4 + 0.2, 0.6 + 0.2 * 0.5])
    assert blend(relevance, fused, weight=0.75, nearest=nearest, nearest_weight=1.0) == pytest.approx([0.0, 1.0, 0.5])


def test_the_reranker_s_share_decides_how_far_it_moves_what_the_legs_found() -> None:
    relevance, fused = [0.001, 0.5, 0.999], [0.9, 0.6, 0.3]
    assert blend(relevance, fused, weight=1.0) == pytest.approx([0.0, 0.5, 1.0]), "log-odds, not probabilities"
    assert blend(relevance, fused, weight=0.0) == pytest.approx([1.0, 0.5, 0.0])
    assert blend(relevance, fused, weight=0.7) == pytest.approx([0.3, 0.5, 0.7])
    assert blend([0.99, 0.999999, 0.0], [1.0, 1.0, 1.0], weight=1.0)[0] < 0.9, "what is all but certain has an order"


def test_a_reranker_that_is_certain_or_cannot_tell_is_no_error() -> None:
    assert blend([0.0, 1.0], [0.2, 0.1], weight=1.0) == [0.0, 1.0]
    assert blend([0.3, 0.3], [0.2, 0.1], weight=0.5) == [1.0, 0.5], "then fusion decides"
    assert blend([0.4], [0.2], weight=0.7) == pytest.approx([1.0])
    assert blend([], [], weight=0.7) == []


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
    assert holds_the_terms(query_terms=query, text_terms=chunk) is held


@pytest.mark.parametrize(
    ("query", "text", "title", "held"),
    [
        ([1, 2], [], [1, 2], True),
        ([1, 2, 3], [3], [1, 2], True),  # all of them, together
        ([1, 2], [], [1], False),  # half is not enough where it is the title's
        ([1, 2, 3], [3], [1], False),
        ([], [], [1], False),
    ],
)
def test_with_its_title_a_chunk_must_hold_every_term(
    query: list[int], text: list[int], title: list[int], held: bool
) -> None:
    assert holds_the_terms(query_terms=query, text_terms=text, title_terms=title) is held
