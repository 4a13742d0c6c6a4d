"""What of a conversation and of its sources fits a model's window. Pure: tokens are counted before.

Source: spec 2, "Token Budget Management".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dats_common.errors import TokenBudgetExceededError


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """One model of the allowlist.

    Attributes:
        context_window: tokens that it reads and writes together.
        max_response: tokens that it may write.
    """

    context_window: int
    max_response: int


@dataclass(frozen=True, slots=True)
class BudgetRules:
    """What may be spent on what, in tokens; each model's own limits hold besides.

    Attributes:
        system_reserve: kept for the rules, even where they need less.
    """

    max_context: int = 3000
    max_history: int = 1000
    max_response: int = 1024
    system_reserve: int = 500

    def response_tokens(self, limits: ModelLimits) -> int:
        """The longest response: the smaller of the model's and the service's bound."""
        return min(self.max_response, limits.max_response)


@dataclass(frozen=True, slots=True)
class Allocation:
    """What goes into the prompt.

    Attributes:
        history: how many messages, the newest ones.
        sources: positions of the sources that fit, in their order.
        response_tokens: the longest response.
    """

    history: int
    sources: tuple[int, ...]
    response_tokens: int


def allocate(
    *,
    fixed_tokens: int,
    history_tokens: Sequence[int],
    source_tokens: Sequence[int],
    limits: ModelLimits,
    rules: BudgetRules,
) -> Allocation:
    """Rules and question come first, then the newest history, then the best sources.

    Args:
        fixed_tokens: of everything that is never cut: rules, question, and what frames them.
        history_tokens: of each message, the oldest first.
        source_tokens: of each source as the prompt shows it, the best first.

    Raises:
        TokenBudgetExceededError: what is never cut and the reserve for the response exceed the window.
    """
    response_tokens = rules.response_tokens(limits)
    fixed_tokens = max(fixed_tokens, rules.system_reserve)
    available = limits.context_window - fixed_tokens - response_tokens
    if available < 0:
        raise TokenBudgetExceededError(
            f"rules and question ({fixed_tokens} tokens) and the reserve for the response ({response_tokens}) "
            f"exceed the model's window ({limits.context_window})"
        )
    kept = _newest(history_tokens, budget_tokens=min(rules.max_history, available // 3))
    available -= sum(history_tokens[len(history_tokens) - kept :])
    return Allocation(
        history=kept,
        sources=_fitting(source_tokens, budget_tokens=min(rules.max_context, available)),
        response_tokens=response_tokens,
    )


def _newest(tokens: Sequence[int], *, budget_tokens: int) -> int:
    """How many of the last ones fit without a gap."""
    spent = 0
    for count, size in enumerate(reversed(tokens)):
        spent += size
        if spent > budget_tokens:
            return count
    return len(tokens)


def _fitting(tokens: Sequence[int], *, budget_tokens: int) -> tuple[int, ...]:
    """Positions of those that fit; a large one is passed over for smaller ones behind it."""
    fitting = []
    left = budget_tokens
    for position, size in enumerate(tokens):
        if size <= left:
            fitting.append(position)
            left -= size
    return tuple(fitting)
