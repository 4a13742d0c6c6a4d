"""Counting tokens ahead of a model, and telling from its own count that it read all of them. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

EXACT_MARGIN = 0.02  # Source: the bound for a model's own tokenizer.
_TEMPLATE_TOKENS = 16
"""What may differ whatever the prompt's size where its template is not known: marks that it adds or leaves out."""
_EDGE_TOKENS = 4
"""The same where it is known: white space that it trims, and tokens that reach across the edge of a part."""


@dataclass(frozen=True, slots=True)
class TemplateTokens:
    """What a model's chat template adds to the texts of a prompt, in tokens.

    Attributes:
        prompt: to the rules and the question, the mark behind which the model writes included.
        turn: to a question and its answer in the conversation before it, together.
    """

    prompt: int
    turn: int


@dataclass(frozen=True, slots=True)
class CountBasis:
    """What counts of a model's tokens rest on.

    Attributes:
        source: names the tokenizer, for people and for the evidence.
        margin: by which share a count may be wrong, in both directions.
        template: what to count besides the texts; None: it is not known.
    """

    source: str
    margin: float
    template: TemplateTokens | None = None

    @property
    def is_exact(self) -> bool:
        """Whether it is the model's own tokenizer that counts."""
        return self.margin <= EXACT_MARGIN

    @property
    def stated(self) -> str:
        """Source and margin, as the evidence keeps them."""
        return f"{self.source}, within {self.margin:.0%}"

    @property
    def prompt_tokens(self) -> int:
        """What a prompt has besides its texts, without the conversation."""
        return self.template.prompt if self.template else 0

    def conversation_tokens(self, messages: int) -> int:
        """What so many messages of the conversation have besides their texts; half a turn each, rounded up."""
        return math.ceil(self.template.turn * messages / 2) if self.template else 0

    def at_most(self, counted: int) -> int:
        """The most that `counted` tokens may really be."""
        return round(counted * (1.0 + self.margin))

    def was_cut(self, *, counted: int, evaluated: int) -> bool:
        """Whether a model that evaluated so few tokens cannot have read the whole prompt."""
        unknown_tokens = _TEMPLATE_TOKENS if self.template is None else _EDGE_TOKENS
        return evaluated < counted * (1.0 - self.margin) - unknown_tokens
