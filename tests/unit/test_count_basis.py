"""Telling from a model's own count that its prompt was cut."""

from __future__ import annotations

import pytest

from dats_common.domain.tokens import EXACT_MARGIN, CountBasis, TemplateTokens


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


@pytest.mark.parametrize(("evaluated", "cut"), [(976, False), (975, True), (1100, False)])
def test_where_the_template_is_known_little_more_than_the_margin_is_a_cut(evaluated: int, cut: bool) -> None:
    basis = CountBasis("its own", EXACT_MARGIN, TemplateTokens(prompt=13, turn=9))
    assert basis.was_cut(counted=1000, evaluated=evaluated) is cut


def test_a_template_that_is_not_known_is_not_counted() -> None:
    unknown, known = CountBasis("estimate", 0.5), CountBasis("its own", 0.02, TemplateTokens(prompt=13, turn=9))
    assert (unknown.prompt_tokens, unknown.conversation_tokens(4)) == (0, 0)
    assert (known.prompt_tokens, known.conversation_tokens(4)) == (13, 18)
    assert [known.conversation_tokens(messages) for messages in (0, 1, 3)] == [0, 5, 14]


def test_a_basis_states_its_margin_and_whether_the_models_own_tokenizer_counts() -> None:
    assert CountBasis("estimate", 0.5).stated == "estimate, within 50%"
    assert not CountBasis("estimate", 0.5).is_exact
    assert CountBasis("tokenizer.json", EXACT_MARGIN).is_exact
