"""Spans around what runs a model: encoder, reranker, generator. Source: semantic conventions for generative AI."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Literal

from opentelemetry.trace import SpanKind

from dats_common.ports import Encoder, Generator, Reranker
from dats_common.records import Assignment, Drafted
from dats_common.telemetry.tracing.attributes import Attributes
from dats_common.telemetry.tracing.spans import OpenSpan, Tracing

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class TracedEncoder:
    """`ports.Encoder` around another one."""

    def __init__(self, encoder: Encoder, tracing: Tracing) -> None:
        self._encoder = encoder
        self._tracing = tracing
        self.model = encoder.model
        self.backend = encoder.backend
        self.dimension = encoder.dimension
        self.max_tokens = encoder.max_tokens
        self.token_spans = encoder.token_spans
        self._attributes: Attributes = {
            "gen_ai.operation.name": "embeddings",
            "gen_ai.provider.name": encoder.backend.partition(":")[0],
            "gen_ai.request.model": encoder.model,
            "gen_ai.embeddings.dimension.count": encoder.dimension,
        }

    async def encode(self, texts: Sequence[str], *, kind: Literal["query", "document"]) -> npt.NDArray[np.float32]:
        """See `ports.Encoder`."""
        attributes = {**self._attributes, "rag.items": len(texts)}
        with self._tracing.step(f"embeddings {self.model}", attributes, kind=SpanKind.CLIENT):
            return await self._encoder.encode(texts, kind=kind)


class TracedReranker:
    """`ports.Reranker` around another one."""

    def __init__(self, reranker: Reranker, tracing: Tracing) -> None:
        self._reranker = reranker
        self._tracing = tracing
        self.model = reranker.model
        self.ping = reranker.ping

    async def rerank(self, query: str, passages: Sequence[str]) -> list[float]:
        """See `ports.Reranker`."""
        attributes: Attributes = {
            "gen_ai.operation.name": "rerank",
            "gen_ai.request.model": self.model,
            "rag.items": len(passages),
        }
        with self._tracing.step("rerank", attributes):
            return await self._reranker.rerank(query, passages)


class TracedGenerator:
    """`ports.Generator` around another one."""

    def __init__(self, generator: Generator, tracing: Tracing, *, provider: str) -> None:
        self._generator = generator
        self._tracing = tracing
        self._provider = provider
        self.require = generator.require
        self.warm_up = generator.warm_up
        self.ping = generator.ping

    def _asked(self, assignment: Assignment, purpose: str) -> Attributes:
        return {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": self._provider,
            "gen_ai.request.model": assignment.model,
            "gen_ai.request.max_tokens": assignment.max_response_tokens,
            "gen_ai.request.temperature": assignment.temperature,
            "gen_ai.output.type": "json" if assignment.response_schema else "text",
            "rag.purpose": purpose,
            "rag.items": len(assignment.sources),
        }

    async def generate(self, assignment: Assignment) -> AsyncGenerator[str | Drafted]:
        """See `ports.Generator`."""
        started: float | None = perf_counter()
        pieces = self._tracing.steps(
            f"chat {assignment.model}",
            self._asked(assignment, "answer"),
            self._generator.generate(assignment),
            kind=SpanKind.CLIENT,
        )
        async with aclosing(pieces):
            async for span, piece in pieces:
                if started is not None:
                    span.tell({"gen_ai.response.time_to_first_chunk": perf_counter() - started})
                    started = None
                if isinstance(piece, Drafted):
                    _tell_usage(span, piece)
                yield piece

    async def rate(self, assignment: Assignment, answer: str) -> int | None:
        """See `ports.Generator`."""
        name = f"chat {assignment.model}"
        with self._tracing.step(name, self._asked(assignment, "rating"), kind=SpanKind.CLIENT):
            return await self._generator.rate(assignment, answer)

    def second_calls(self) -> AbstractAsyncContextManager[Generator]:
        """See `ports.Generator`."""
        return self._second_calls()

    @asynccontextmanager
    async def _second_calls(self) -> AsyncIterator[Generator]:
        async with self._generator.second_calls() as turn:
            yield TracedGenerator(turn, self._tracing, provider=self._provider)


def _tell_usage(span: OpenSpan, drafted: Drafted) -> None:
    span.tell(
        {
            "gen_ai.response.model": drafted.model,
            "gen_ai.usage.input_tokens": drafted.prompt_tokens,
            "gen_ai.usage.output_tokens": drafted.response_tokens,
        }
    )
