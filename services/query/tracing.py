"""A replica's requests, engines and ports with spans around them. Imported only where a collector is set."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from opentelemetry.trace import SpanKind
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dats_common.ports import Generator
from dats_common.settings import Settings
from dats_common.telemetry.tracing.attributes import Attributes
from dats_common.telemetry.tracing.messages import Messages, TracedBus
from dats_common.telemetry.tracing.models import TracedEncoder, TracedGenerator, TracedReranker
from dats_common.telemetry.tracing.spans import OpenSpan, Tracing
from dats_common.telemetry.tracing.stores import TracedEvidence, TracedIndex, TracedLedger
from dats_common.trace_context import TRACEPARENT_HEADER, TraceContext, parse_traceparent, within_trace
from services.backends import broker_system, ledger_system
from services.query.answering import Answering
from services.query.engine import Question, Retrieval, Retrieved
from services.query.gate import OPEN_PATHS
from services.query.happenings import Answer, Ask, Happening, Withdrawn
from services.query.ports import QueryPorts

_METHODS = frozenset({"GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS"})


class TracedRequests:
    """A span for each request that was let in; its parent is the caller's, if the caller says so.

    Inside the gate: a stranger can neither fill the collector nor put spans into somebody's trace. Probes and scrapes
    have no span.
    """

    def __init__(self, app: ASGIApp, tracing: Tracing) -> None:
        self._app = app
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
        span = self._tracing.begin(
            method, kind=SpanKind.SERVER, parent=_callers(scope), attributes={"http.request.method": method}
        )

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                _tell_response(span, scope, method, int(message["status"]))
            await send(message)

        try:
            with within_trace(span.context):
                await self._app(scope, receive, told)
        except Exception as error:
            span.failed(type(error).__name__)
            raise
        finally:
            span.end()


def _callers(scope: Scope) -> TraceContext | None:
    found = [value for name, value in scope["headers"] if name == TRACEPARENT_HEADER.encode()]
    return parse_traceparent(found[0]) if len(found) == 1 else None  # W3C: more than one is none


def _tell_response(span: OpenSpan, scope: Scope, method: str, status: int) -> None:
    route = getattr(scope.get("route"), "path", None)
    if route is not None:
        span.rename(f"{method} {route}")
    span.tell({"http.route": route, "http.response.status_code": status})
    if status >= 500:
        span.failed(str(status))


class TracedRetrieval:
    """`engine.Retrieval` around another one, with the attributes of spec 1."""

    def __init__(self, retrieval: Retrieval, tracing: Tracing) -> None:
        self._retrieval = retrieval
        self._tracing = tracing
        self.reranker = retrieval.reranker
        self.min_similarity = retrieval.min_similarity

    async def retrieve(self, question: Question) -> Retrieved:
        """See `engine.Retrieval`."""
        asked: Attributes = {"rag.query.mode": question.mode, "rag.query.max_tokens": question.budget_tokens}
        with self._tracing.step("rag.query", asked) as span:
            found = await self._retrieval.retrieve(question)
            span.tell(
                {
                    "rag.query.results_count": len(found.hits),
                    "rag.query.tokens_used": found.context.tokens,
                    "rag.query.dropped": found.dropped,
                }
            )
            return found


class TracedAnswers:
    """`answering.Answering` around another one."""

    def __init__(self, answers: Answering, tracing: Tracing) -> None:
        self._answers = answers
        self._tracing = tracing
        self.scorer = answers.scorer

    async def answer(self, ask: Ask) -> Answer:
        """See `answering.Answering`."""
        with self._tracing.step("rag.answer", {}) as span:
            made = await self._answers.answer(ask)
            _tell_answer(span, made)
            return made

    async def happenings(self, ask: Ask, *, answer_id: str, shown: bool = True) -> AsyncGenerator[Happening]:
        """See `answering.Answering`."""
        inner = self._answers.happenings(ask, answer_id=answer_id, shown=shown)
        async with aclosing(self._tracing.steps("rag.answer", {}, inner, kind=SpanKind.INTERNAL)) as steps:
            async for span, happening in steps:
                if isinstance(happening, Answer | Withdrawn):
                    _tell_answer(span, happening)
                yield happening


def _tell_answer(span: OpenSpan, made: Answer | Withdrawn) -> None:
    if isinstance(made, Withdrawn):
        span.tell({"rag.answer.action": "WITHDRAWN"})
        return
    span.tell(
        {
            "rag.answer.action": made.action,
            "rag.answer.confidence": made.confidence.overall,
            "rag.answer.citations": len(made.citations),
        }
    )


class QueryTracing:
    """What to put around the parts of a replica."""

    def __init__(self, tracing: Tracing, settings: Settings) -> None:
        self._tracing = tracing
        self._settings = settings

    def ports(self, ports: QueryPorts) -> QueryPorts:
        """The same ports; each call for a request is a step of its trace."""
        tracing, settings = self._tracing, self._settings
        system = ledger_system(settings)
        return replace(
            ports,
            ledger=TracedLedger(ports.ledger, tracing, system=system),
            evidence=TracedEvidence(ports.evidence, tracing, system=system),
            encoder=TracedEncoder(ports.encoder, tracing),
            index=TracedIndex(ports.index, tracing, collection=settings.qdrant.collection),
            bus=TracedBus(ports.bus, Messages(tracing, system=broker_system(settings))),
            generator=self._generator(ports.generator, provider=settings.answers.generator),
            fallback=ports.fallback and self._generator(ports.fallback, provider="extractive"),
            reranker=ports.reranker and TracedReranker(ports.reranker, tracing),
        )

    def _generator(self, generator: Generator, *, provider: str) -> Generator:
        return TracedGenerator(generator, self._tracing, provider=provider)

    def retrieval(self, retrieval: Retrieval) -> Retrieval:
        """With spec 1's span around it."""
        return TracedRetrieval(retrieval, self._tracing)

    def answers(self, answers: Answering) -> Answering:
        """With a span around each answer."""
        return TracedAnswers(answers, self._tracing)

    def requests(self, app: ASGIApp) -> ASGIApp:
        """With a span around each request."""
        return TracedRequests(app, self._tracing)
