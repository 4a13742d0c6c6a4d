"""Figures of the evaluation and its pictures, against what can be reckoned by hand."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli import evaluating_search
from services.cli.evaluating_search import Found
from services.evaluate.figures import (
    Bin,
    auroc,
    brier,
    calibration_error,
    ndcg_at,
    percentile,
    recall_at,
    reciprocal_rank,
    reliability,
)
from services.evaluate.picture import ranking_svg, reliability_svg
from services.evaluate.sets import Sought, sample
from services.query.reranking import CERTAIN

scores = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=1, max_size=12)


@given(scores, scores)
def test_auroc_is_the_share_of_pairs_in_the_right_order(positive: list[float], negative: list[float]) -> None:
    pairs = [1.0 if p > n else 0.5 if p == n else 0.0 for p in positive for n in negative]
    assert auroc(positive, negative) == pytest.approx(sum(pairs) / len(pairs))


def test_without_either_kind_there_is_no_auroc() -> None:
    assert math.isnan(auroc([], [1.0]))
    assert math.isnan(auroc([1.0], []))


def test_brier_is_zero_for_a_prophet_and_one_for_a_liar() -> None:
    assert brier([1.0, 0.0], [True, False]) == 0.0
    assert brier([0.0, 1.0], [True, False]) == 1.0
    assert brier([0.5, 0.5], [True, False]) == 0.25


def test_bins_hold_every_answer_once_and_the_error_weighs_them_by_size() -> None:
    bins = reliability([1.0, 0.95, 0.15, 0.1], [True, False, False, False])
    assert bins == [Bin(0.125, 0.0, 2), Bin(0.975, 0.5, 2)]
    assert calibration_error(bins) == pytest.approx((0.125 + 0.475) / 2)


def test_the_picture_is_xml_with_a_circle_for_each_bin() -> None:
    root = ET.fromstring(reliability_svg([Bin(0.2, 0.1, 3), Bin(0.8, 0.9, 7)], title="a & b"))
    assert len(root.findall("{http://www.w3.org/2000/svg}circle")) == 2


def test_a_sample_is_spread_evenly_and_always_the_same() -> None:
    assert sample(range(10), 5) == [0, 2, 4, 6, 8]
    assert sample([1, 2], 5) == [1, 2]


LOG2_3 = math.log2(3)
RANKED = ["a", "b", "c", "d", "e", "f"]


def test_recall_is_the_share_of_what_is_relevant_that_came_in_time() -> None:
    assert recall_at(RANKED, {"a": 1, "f": 1, "absent": 2, "b": 0}, depth=5) == pytest.approx(1 / 3)
    assert recall_at(RANKED, {"f": 1}, depth=6) == 1.0
    assert recall_at([], {"f": 1}, depth=5) == 0.0
    assert math.isnan(recall_at(RANKED, {"a": 0}, depth=5))


def test_ndcg_of_one_relevant_document_is_its_discount() -> None:
    assert ndcg_at(RANKED, {"a": 1}, depth=10) == 1.0
    assert ndcg_at(RANKED, {"b": 1}, depth=10) == pytest.approx(1 / LOG2_3)
    assert ndcg_at(RANKED, {"c": 1}, depth=10) == pytest.approx(0.5)
    assert ndcg_at(RANKED, {"c": 1}, depth=2) == 0.0
    assert ndcg_at([], {"a": 1}, depth=10) == 0.0


def test_ndcg_weighs_grades_and_counts_what_was_never_found() -> None:
    found = ndcg_at(["little", "much"], {"much": 3, "little": 1}, depth=10)
    assert found == pytest.approx((1 + 3 / LOG2_3) / (3 + 1 / LOG2_3))
    assert ndcg_at(["a"], {"a": 1, "absent": 1}, depth=10) == pytest.approx(1 / (1 + 1 / LOG2_3))
    assert ndcg_at(["a", "b"], {"a": 1, "b": 1, "c": 1}, depth=2) == 1.0, "the ideal has no more places"
    assert math.isnan(ndcg_at(RANKED, {}, depth=10))


@given(st.permutations(RANKED), st.dictionaries(st.sampled_from(RANKED), st.integers(0, 3), min_size=1))
def test_no_order_is_better_than_the_ideal_one(ranked: list[str], relevant: dict[str, float]) -> None:
    if not any(relevant.values()):
        return
    assert 0.0 < ndcg_at(ranked, relevant, depth=10) <= 1.0 + 1e-12
    ideal = sorted(ranked, key=lambda document: -relevant.get(document, 0))
    assert ndcg_at(ideal, relevant, depth=10) == pytest.approx(1.0)


def test_the_reciprocal_rank_is_of_the_first_relevant_document() -> None:
    assert reciprocal_rank(RANKED, {"c": 1, "b": 2, "a": 0}, depth=10) == 0.5
    assert reciprocal_rank(RANKED, {"f": 1}, depth=5) == 0.0
    assert reciprocal_rank([], {"a": 1}, depth=5) == 0.0


def test_a_percentile_is_a_value_that_was_measured() -> None:
    assert [percentile([4, 1, 3, 2], share) for share in (0.0, 0.25, 0.5, 0.51, 0.95, 1.0)] == [1, 1, 2, 3, 4, 4]
    assert percentile([7.0], 0.95) == 7.0
    assert math.isnan(percentile([], 0.5))


def test_the_bars_are_as_high_as_the_figures_whatever_modes_a_set_has() -> None:
    picture = ranking_svg({"one & two": {"hybrid": 0.8, "keyword": 0.4}, "three": {"keyword": 0.2}}, title="<nDCG>")
    bars = [each for each in ET.fromstring(picture) if each.get("class") == "bar"]
    heights = [float(each.get("height", "")) for each in bars]
    assert [height / heights[0] for height in heights] == [1.0, 0.5, 0.25]
    assert len({bars[1].get("fill"), bars[2].get("fill")}) == 1, "a mode has one colour"
    modes = dict.fromkeys((*evaluating_search.MODES, evaluating_search.RERANKED), 0.5)
    all_modes = ET.fromstring(ranking_svg({"one": modes}, title="all"))
    fills = [each.get("fill") for each in all_modes if each.get("class") == "bar"]
    assert len(set(fills)) == len(fills) == len(modes), "of its own"


def test_what_a_reranker_gained_is_told_of_the_questions_that_it_read() -> None:
    def found(first: str, *, reranked: bool = False, reason: str | None = None) -> Found:
        documents = tuple(sorted("ab", key=lambda each: each != first)) if first else ()
        return Found(Sought("q", {"a": 1.0}), documents, 1.0, reranked, reason)

    fused = [found("b"), found("a"), found("b"), found("a"), found("b")]
    after = [
        found("a", reranked=True),
        found("a", reranked=True),
        found("b", reason=CERTAIN),
        found("a", reason="the reranker was not done within 500 ms"),
    ]
    gained = (1 - 1 / math.log2(3)) / 2
    figures = evaluating_search.reranking_figures(after, fused)
    assert figures == {"reranked": 0.5, "in_time": 0.75, "ndcg_gain_where_reranked": pytest.approx(gained, abs=1e-4)}
    rest = dict.fromkeys(
        ("recall_at_5", "ndcg_at_10", "mrr_at_10", "refused_judged", "refused_offcorpus", "latency_p50_ms"), 0.5
    )
    row = {"complete": True, "latency_p95_ms": 1.0, **rest, **figures}
    ((_, mode, *_),) = evaluating_search.rows({"made": {"modes": {"reranked": row}}})
    assert mode == "reranked (50.0%, there +0.184 nDCG@10, 75.0% in time)"
