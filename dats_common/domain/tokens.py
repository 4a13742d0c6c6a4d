"""Counting tokens ahead of a model, and telling from its own count that it read all of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

EXACT_MARGIN = 0.02  # Source: the bound for a model's own tokenizer: chat templates are not part of it.
_TEMPLATE_TOKENS = 16
"""What may differ whatever the prompt's size: begin and end marks that a template adds or leaves out."""


@dataclass(frozen=True, slots=True)
class CountBasis:
    """What counts of a model's tokens rest on.

    Attributes:
        source: names the tokenizer, for people and for the evidence.
        margin: by which share a count may be wrong, in both directions.
    """

    source: str
    margin: float

    def at_most(self, counted: int) -> int:
        """The most that `counted` tokens may really be."""
        return round(counted * (1.0 + self.margin))

    def was_cut(self, *, counted: int, evaluated: int) -> bool:
        """Whether a model that evaluated so few tokens cannot have read the whole prompt."""
        return evaluated < counted * (1.0 - self.margin) - _TEMPLATE_TOKENS
