"""How far an answer can be relied on. Names of spec 2's tests are kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dats_common.domain.confidence import NO_CONFIDENCE, action_for, confidence, coverage

SOURCE_ID = "550e8400-e29b-41d4-a716-446655440000:3"


def test_calculate_coverage() -> None:
    assert coverage("The refund takes fourteen days", "A refund is paid within fourteen working days") == 0.75


def test_calculate_coverage_empty_answer() -> None:
    assert coverage("", "some context") == 0.0
    assert coverage("is it so?", "some context") == 0.0, "without a key term there is nothing to cover"


def test_citation_markers_are_not_part_of_what_an_answer_says() -> None:
    said = "The refund takes fourteen days"
    assert coverage(f"{said} [SourceId: {SOURCE_ID}].", "refund takes fourteen days") == 1.0
    assert coverage(f"{said} [1].", "refund takes fourteen days") == 1.0


def test_calculate_confidence_zero_results() -> None:
    assert confidence([], answer="An answer", context="An answer", rating=100) == NO_CONFIDENCE


def test_calculate_confidence_hybrid() -> None:
    score = confidence([0.9, 0.5], answer="refund fourteen", context="a refund", rating=80)
    assert (score.retrieval_score, score.coverage_score, score.llm_score) == (pytest.approx(0.7), 0.5, 80)
    assert score.overall == int(0.7 * 30 + 0.5 * 40 + 0.8 * 30) == 65


def test_a_missing_rating_counts_as_zero_and_is_flagged() -> None:
    score = confidence([1.0], answer="refund", context="refund", rating=None)
    assert (score.overall, score.llm_score, score.llm_rated) == (70, 0, False)
    assert confidence([1.0], answer="refund", context="refund", rating=0).llm_rated


@given(st.lists(st.floats(0, 1), max_size=5), st.text(), st.text(), st.none() | st.integers(-1000, 1000))
def test_confidence_is_a_percentage_whatever_comes_in(
    similarities: list[float], answer: str, context: str, rating: int | None
) -> None:
    score = confidence(similarities, answer=answer, context=context, rating=rating)
    assert 0 <= score.overall <= 100
    assert 0 <= score.llm_score <= 100


@pytest.mark.parametrize(("rating", "action"), [(100, "CITE"), (66, "ROUTE")])
def test_from_the_threshold_on_an_answer_is_cited(rating: int, action: str) -> None:
    score = confidence([1.0], answer="refund", context="", rating=rating)
    assert action_for(score, threshold=score.overall) == "CITE"
    assert action_for(score, threshold=60 if action == "CITE" else score.overall + 1) == action
