"""Answers without a model: the best sentences of the sources, each with its citation."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, nullcontext

from dats_common.domain.extractive import MODEL, Extract, ExtractSource, extract
from dats_common.domain.prompt import INSUFFICIENT
from dats_common.records import Assignment, Drafted


class ExtractiveGenerator:
    """`ports.Generator` over the rule in `domain.extractive`: deterministic, and never silent about what it is."""

    async def require(self, model: str) -> None:
        return

    async def generate(self, assignment: Assignment) -> AsyncGenerator[str | Drafted]:
        yield _extract(assignment).text or INSUFFICIENT
        yield Drafted(MODEL)

    async def rate(self, assignment: Assignment, answer: str) -> int | None:
        return _extract(assignment).rating

    def second_calls(self) -> AbstractAsyncContextManager[ExtractiveGenerator]:
        return nullcontext(self)

    async def warm_up(self, model: str, *, window_tokens: int) -> None:
        return

    async def ping(self) -> None:
        return


def _extract(assignment: Assignment) -> Extract:
    sources = [ExtractSource(each.alias, each.text, each.similarity) for each in assignment.sources]
    return extract(assignment.question, sources)
