"""From sources and a conversation to what the model is sent: what fits its window, counted in its own tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from dats_common.domain.budget import BudgetRules, ModelLimits, allocate
from dats_common.domain.citations import Issued
from dats_common.domain.location import section_of
from dats_common.domain.prompt import PromptSource, build_messages, show_source
from dats_common.domain.tokens import CountBasis
from dats_common.ports import TokenCounter
from dats_common.records import Assignment
from services.query.engine import Hit
from services.query.happenings import Ask


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model is sent, and what its aliases stand for."""

    assignment: Assignment
    issued: Issued
    hits: tuple[Hit, ...]
    counted_tokens: int
    basis: CountBasis
    context_tokens: int

    @property
    def context(self) -> str:
        """The texts of its sources."""
        return "\n".join(hit.passage.text for hit in self.hits)

    def hit_of(self, source_id: str) -> Hit:
        """The source with this id, which is one of its own."""
        return next(hit for hit in self.hits if hit.passage.ref.source_id == source_id)


class PromptBuilder:
    """Fits prompts into windows."""

    def __init__(self, *, counter: TokenCounter, budget: BudgetRules, temperature: float) -> None:
        self._counter = counter
        self._budget = budget
        self._temperature = temperature
        # Rules and sources come again; a better basis counts anew.
        self._counted = lru_cache(maxsize=1024)(lambda text, model, basis: counter.count(text, model=model))

    def build(self, ask: Ask, hits: Sequence[Hit], *, model: str, limits: ModelLimits) -> Prompt:
        """The sources that fit `limits`, the best first, and as much of the conversation as leaves them room.

        Raises: TokenBudgetExceededError.
        """
        basis = self._counter.basis(model)
        sources = [_prompt_source(alias, hit) for alias, hit in enumerate(hits, start=1)]
        # Each part once: counting is what costs here, and tokens do not reach across the lines between the parts.
        source_tokens = [self._counted(f"{show_source(source)}\n\n", model, basis) for source in sources]
        ours, *history, asked = build_messages(ask.text, sources=(), history=ask.history)
        history_tokens = [self._counter.count(each.content, model=model) for each in history]
        asked_tokens = self._counter.count(asked.content, model=model)
        fixed_tokens = self._counted(ours.content, model, basis) + asked_tokens + basis.prompt_tokens
        allocation = allocate(
            fixed_tokens=basis.at_most(fixed_tokens),
            history_tokens=[basis.at_most(tokens + basis.conversation_tokens(1)) for tokens in history_tokens],
            source_tokens=[basis.at_most(tokens) for tokens in source_tokens],
            limits=limits,
            rules=self._budget,
        )
        used = [hits[position] for position in allocation.sources]
        shown = tuple(_prompt_source(alias, hit) for alias, hit in enumerate(used, start=1))
        first_kept = len(ask.history) - allocation.history
        messages = build_messages(ask.text, sources=shown, history=ask.history[first_kept:])
        context_tokens = sum(source_tokens[position] for position in allocation.sources)
        return Prompt(
            assignment=Assignment(
                question=ask.text,
                messages=messages,
                sources=shown,
                model=model,
                window_tokens=limits.context_window,
                max_response_tokens=allocation.response_tokens,
                temperature=self._temperature,
            ),
            issued=Issued.of(source.source_id for source in shown),
            hits=tuple(used),
            counted_tokens=fixed_tokens
            + sum(history_tokens[first_kept:])
            + basis.conversation_tokens(allocation.history)
            + context_tokens,
            basis=basis,
            context_tokens=context_tokens,
        )


def _prompt_source(alias: int, hit: Hit) -> PromptSource:
    metadata = hit.passage.metadata
    return PromptSource(
        alias=alias,
        source_id=hit.passage.ref.source_id,
        document_name=metadata.title or hit.passage.ref.key.artifact_id,
        text=hit.passage.text,
        similarity=hit.similarity,
        page_number=hit.passage.location.page,
        section=section_of(hit.passage.location),
    )
