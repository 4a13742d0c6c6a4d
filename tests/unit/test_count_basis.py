"""Telling from a model's own count that its prompt was cut."""

from __future__ import annotations

import pytest

from dats_common.domain.tokens import EXACT_MARGIN, CountBasis


@pytest.mark.parametrize(
    ("margin", "evaluated", "cut"),
    [
        (EXACT_MARGIN, 964, False),
        (EXACT_MARGIN, 963, True),
        (EXACT_MARGIN, 1100, False),
        (0.3, 684, False),
        (0.3, 683, True),
    ],
)
def test_a_cut_is_more_than_the_margin_and_what_a_template_may_add(margin: float, evaluated: int, cut: bool) -> None:
    assert CountBasis("its own", margin).was_cut(counted=1000, evaluated=evaluated) is cut


def test_a_short_prompt_is_not_taken_for_cut_over_its_templates_marks() -> None:
    assert not CountBasis("its own", EXACT_MARGIN).was_cut(counted=10, evaluated=0)


def test_a_budget_reckons_with_the_most_that_a_count_may_be() -> None:
    assert CountBasis("an estimate", 0.25).at_most(1000) == 1250
