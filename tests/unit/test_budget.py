"""What fits a model's window. Names of spec 2's tests are kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dats_common.domain.budget import BudgetRules, ModelLimits, allocate
from dats_common.errors import TokenBudgetExceededError

LIMITS = ModelLimits(context_window=8192, max_response=1024)


def test_truncate_history_overflow() -> None:
    kept = allocate(
        fixed_tokens=100, history_tokens=[400, 400, 400, 400], source_tokens=[], limits=LIMITS, rules=BudgetRules()
    )
    assert kept.history == 2, "the oldest two are dropped: 1,000 tokens are the conversation's"


def test_truncate_history_keeps_recent() -> None:
    kept = allocate(
        fixed_tokens=100, history_tokens=[1, 5000, 10], source_tokens=[], limits=LIMITS, rules=BudgetRules()
    )
    assert kept.history == 1, "nothing is kept from before a gap"


def test_history_never_takes_more_than_a_third_of_what_is_left() -> None:
    small = ModelLimits(context_window=1800, max_response=1000)
    kept = allocate(
        fixed_tokens=100, history_tokens=[60, 60], source_tokens=[150, 150], limits=small, rules=BudgetRules()
    )
    assert (kept.history, kept.sources) == (1, (0,)), "300 are left: 100 for the conversation, then 240 for sources"


def test_token_budget_exceeded() -> None:
    tight = ModelLimits(context_window=1523, max_response=1024)
    with pytest.raises(TokenBudgetExceededError, match=r"500 tokens.*1024.*1523"):
        allocate(fixed_tokens=10, history_tokens=[], source_tokens=[], limits=tight, rules=BudgetRules())
    fits = ModelLimits(context_window=1524, max_response=1024)
    assert (
        allocate(fixed_tokens=10, history_tokens=[], source_tokens=[], limits=fits, rules=BudgetRules()).sources == ()
    )


def test_a_large_source_is_passed_over_for_smaller_ones_behind_it() -> None:
    kept = allocate(
        fixed_tokens=0, history_tokens=[], source_tokens=[2000, 1500, 900, 100], limits=LIMITS, rules=BudgetRules()
    )
    assert kept.sources == (0, 2, 3)


@pytest.mark.parametrize(("service", "model", "expected"), [(1024, 4096, 1024), (4096, 2048, 2048)])
def test_the_smaller_bound_on_the_response_holds(service: int, model: int, expected: int) -> None:
    limits = ModelLimits(context_window=65_536, max_response=model)
    kept = allocate(
        fixed_tokens=0,
        history_tokens=[],
        source_tokens=[],
        limits=limits,
        rules=BudgetRules(max_response=service),
    )
    assert kept.response_tokens == expected


@given(
    st.integers(0, 4000),
    st.lists(st.integers(0, 3000), max_size=8),
    st.lists(st.integers(0, 3000), max_size=8),
    st.integers(2000, 40_000),
)
def test_everything_together_never_exceeds_the_window(
    fixed: int, history: list[int], sources: list[int], window: int
) -> None:
    limits = ModelLimits(context_window=window, max_response=1024)
    try:
        kept = allocate(
            fixed_tokens=fixed, history_tokens=history, source_tokens=sources, limits=limits, rules=BudgetRules()
        )
    except TokenBudgetExceededError:
        assert max(fixed, 500) + 1024 > window
        return
    newest = history[len(history) - kept.history :]
    shown = [sources[position] for position in kept.sources]
    assert max(fixed, 500) + sum(newest) + sum(shown) + kept.response_tokens <= window
    assert sum(newest) <= 1000
    assert sum(shown) <= 3000
