"""The model that writes answers as their judge: yes or no, one statement at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

from dats_common.adapters.support.verdicts import VERDICT_SCHEMA, read_verdict, verdict_messages
from dats_common.domain.grounding import Pair
from dats_common.domain.tokens import CountBasis
from dats_common.errors import ContextTruncatedError, RAGServiceError, ResponseCutError
from dats_common.ports import Generator, TokenCounter
from dats_common.records import Assignment, Drafted, Scored

MOST_CALLS = 16
MOST_PROMPT_TOKENS = 32_768
"""All prompts of one call together: sixteen statements, each with three or four chunks of 512 tokens."""

_VERDICT_MAX_TOKENS = 32
"""The object is some seven tokens, and some models space it out."""


class ModelJudge:
    """Implements `ports.SupportScorer` for one answer: a yes is 1, a no is 0, and anything else is no verdict.

    Statements are judged one after the other: all at once, one answer would take every place of the model server. The
    model is the answer's own, with the same window: any other would have to be loaded.
    """

    name = "judge"

    def __init__(
        self,
        generator: Generator,
        *,
        counter: TokenCounter,
        model: str,
        window_tokens: int,
        timeout_s: float,
        most_calls: int = MOST_CALLS,
        most_prompt_tokens: int = MOST_PROMPT_TOKENS,
    ) -> None:
        self._generator = generator
        self._counter = counter
        self._model = model
        self._window_tokens = window_tokens
        self._timeout_s = timeout_s
        self._most_calls = most_calls
        self._most_prompt_tokens = most_prompt_tokens

    async def score(self, pairs: Sequence[Pair]) -> Scored:
        """See `ports.SupportScorer`. The first sign that the model server is away or late ends it."""
        if not pairs:
            return Scored(())
        scores: list[float | None] = []
        trouble = ""
        try:
            # The time is the judge's own: it begins when others' drafts have made room.
            async with self._generator.second_calls() as generator, asyncio.timeout(self._timeout_s):
                left_tokens = self._most_prompt_tokens
                for pair in pairs[: self._most_calls]:
                    assignment = self._assignment(pair)
                    basis = self._counter.basis(self._model)  # once: a better one may be known by the end
                    counted = basis.prompt_tokens + self._count(assignment)
                    left_tokens -= counted
                    if left_tokens < 0:
                        trouble = f"more than {self._most_prompt_tokens} tokens to read"
                        break
                    verdict = await self._verdict(generator, assignment, counted=counted, basis=basis)
                    scores.append(None if verdict is None else float(verdict))
        except TimeoutError:
            trouble = f"the judge was not done within {self._timeout_s} s"
        except RAGServiceError as error:
            trouble = str(error)
        if not trouble and None in scores:
            trouble = "the judge gave no verdict that can be read"
        if not trouble and len(pairs) > len(scores):
            trouble = f"more than {self._most_calls} statements"
        return Scored((*scores, *[None] * (len(pairs) - len(scores))), trouble)

    async def ping(self) -> None:
        """See `ports.SupportScorer`."""
        await self._generator.ping()

    async def _verdict(
        self, generator: Generator, assignment: Assignment, *, counted: int, basis: CountBasis
    ) -> bool | None:
        """None: none that can be read, or to a prompt that was cut.

        Raises: RAGServiceError: no other statement would fare better.
        """
        written: list[str] = []
        evaluated: int | None = None
        try:
            async with aclosing(generator.generate(assignment)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Drafted):
                        evaluated = piece.prompt_tokens
                    else:
                        written.append(piece)
        except (ContextTruncatedError, ResponseCutError):  # of this statement alone
            return None
        if evaluated is not None and basis.was_cut(counted=counted, evaluated=evaluated):
            return None
        return read_verdict("".join(written))

    def _assignment(self, pair: Pair) -> Assignment:
        return Assignment(
            question="",
            messages=verdict_messages(pair),
            sources=(),
            model=self._model,
            window_tokens=self._window_tokens,
            max_response_tokens=_VERDICT_MAX_TOKENS,
            temperature=0.0,
            response_schema=VERDICT_SCHEMA,
        )

    def _count(self, assignment: Assignment) -> int:
        return sum(self._counter.count(message.content, model=self._model) for message in assignment.messages)
