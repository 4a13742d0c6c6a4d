"""HTTP to the answer engine and the evidence, and back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from datetime import UTC, datetime
from time import perf_counter
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Header, Path, Query, Request
from starlette.responses import StreamingResponse

from dats_common.contracts.answers import AnswerRequest, AnswerResponse, StoredAnswer
from dats_common.contracts.fields import Identifier, TenantId
from dats_common.domain.access import Caller
from dats_common.domain.citations import SOURCE_ID_PATTERN
from dats_common.domain.prompt import Message
from dats_common.errors import (
    ContextTruncatedError,
    DatsError,
    DeadlineExceeded,
    InvalidInput,
    RAGServiceError,
    Refused,
)
from dats_common.records import KeptAnswer
from dats_common.telemetry.logs import log
from services.query.answer_bodies import response_of
from services.query.event_stream import HEADERS, MEDIA_TYPE, MOST_EVENTS, as_events, event, position
from services.query.happenings import Answer, Ask, Withdrawn
from services.query.requests import PROBLEMS, Asking, Services, StrictJsonRoute, within
from services.query.services import QueryServices

T = TypeVar("T")

router = APIRouter(
    prefix="/api/v1",
    route_class=StrictJsonRoute,
    responses={
        **PROBLEMS,
        400: {**PROBLEMS[403], "description": "The model is not in the allowlist"},
        404: {**PROBLEMS[403], "description": "There is no such answer, or it is another's"},
    },
)


@router.post("/answer", summary="A grounded answer with citations, or whom to ask")
async def answer(request: AnswerRequest, services: Services, caller: Asking, http: Request) -> AnswerResponse:
    """Answers from what the caller may see; every citation is a chunk that was read for this answer and is live.

    Below the confidence threshold, or where nothing is cited, `action` is ROUTE and `route_to` says whom to ask.
    """
    ask = ask_of(request, services, caller)
    with services.metrics.timed(services.metrics.answer_latency):
        try:
            async with within(services.limits.answer_deadline_s):
                made = await _unless_gone(http, services.answers.answer(ask))
        except DatsError as error:
            observe(services, error)
            raise
    observe(services, made)
    return response_of(made)


async def _unless_gone(http: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result; a client that leaves stops the work. Raises: DeadlineExceeded: to nobody."""
    working = asyncio.create_task(work, name="answer")
    leaving = asyncio.create_task(_left(http), name="client")
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise DeadlineExceeded("the client has left")
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


@router.post(
    "/answer/stream",
    summary="The same, as it is written",
    response_class=StreamingResponse,
    responses={200: {"content": {MEDIA_TYPE: {}}, "description": "docs/answers.md names the events"}},
)
async def stream_answer(
    request: AnswerRequest,
    services: Services,
    caller: Asking,
    last_event_id: Annotated[str | None, Header(description="where an earlier connection broke off")] = None,
) -> StreamingResponse:
    """Server-sent events: `retrieval`, `token` and `citation`, then `done`, `error` or `withdrawn`.

    With `Last-Event-ID` it goes on behind that event while this replica is still writing, else the whole answer comes
    as it was kept; the question must be the same. Nobody listening for two seconds stops the model.
    """
    ask = ask_of(request, services, caller)
    if last_event_id is None:
        stream, after = services.streams.begin(ask), 0
    else:
        answer_id, after = position(last_event_id)
        running = services.streams.running(answer_id, ask)
        if running is None:
            async with within(services.limits.deadline_s):
                kept = await services.evidence.find(answer_id, ask.principal, actor=ask.actor)
            _require_same(ask, question=kept.record.question)
            return StreamingResponse(_as_kept(kept, after=after), media_type=MEDIA_TYPE, headers=HEADERS)
        _require_same(ask, question=running.ask.text)
        stream = running

    def ended(made: Answer | Withdrawn | DatsError) -> None:
        services.metrics.answer_latency.observe(perf_counter() - stream.begun_s)
        observe(services, made)

    happenings = services.streams.listen(stream, after=after)
    first = await anext(happenings)
    if isinstance(first[1], DatsError):  # nothing has left yet: it can have a status of its own
        await happenings.aclose()
        ended(first[1])
        raise first[1]
    events = as_events(happenings, first=first, answer_id=stream.answer_id, ended=ended)
    return StreamingResponse(events, media_type=MEDIA_TYPE, headers=HEADERS)


def _require_same(ask: Ask, *, question: str) -> None:
    """Raises: InvalidInput: an answer to another question would pass for one to this."""
    if ask.text != question:
        raise InvalidInput("Last-Event-ID: belongs to the answer to another question; leave it out to ask a new one")


async def _as_kept(kept: KeptAnswer, *, after: int) -> AsyncIterator[str]:
    """The end of a stream that is over, as it is now."""
    event_id = f"{kept.record.answer_id}:{min(after + 1, MOST_EVENTS)}"  # whoever comes back with it is understood
    if kept.fallen:
        fallen = {"id": kept.record.answer_id, "fallen": [key.artifact_id for key in kept.fallen]}
        yield event("withdrawn", fallen, event_id=event_id)
    else:
        yield event("done", dict(kept.record.body), event_id=event_id)


@router.get("/answers/{answer_id}", summary="An answer that was given, and whether it still stands")
async def find_answer(
    answer_id: Annotated[str, Path(max_length=64, pattern="^[A-Za-z0-9-]+$")],
    services: Services,
    caller: Asking,
    tenant_id: Annotated[TenantId | None, Query(description="for credentials that have several")] = None,
    user_id: Annotated[Identifier | None, Query(description="for whom it was asked, if for another user")] = None,
) -> StoredAnswer:
    """Its sources are judged now: once one of them is withdrawn, so is the answer, and its text is not shown."""
    principal = caller.on_behalf_of(tenant_id=tenant_id, user_id=user_id)
    principal.require("reader", "service")
    async with within(services.limits.deadline_s):
        kept = await services.evidence.find(answer_id, principal, actor=caller.actor)
    return _stored(kept)


def ask_of(request: AnswerRequest, services: QueryServices, caller: Caller) -> Ask:
    """The request as the engine takes it, within the caller's identity. Raises: Forbidden."""
    principal = caller.on_behalf_of(
        tenant_id=request.tenant_id,
        user_id=request.user_id,
        user_tags=None if request.user_tags is None else frozenset(request.user_tags),
    )
    principal.require("reader", "service")
    return Ask(
        text=request.query,
        principal=principal,
        actor=caller.actor,
        history=tuple(Message(each.role, each.content) for each in request.chat_history or ()),
        model=request.model,
        wanted_chunks=services.defaults.context_chunks(request),
        strict=request.strict,
    )


def observe(services: QueryServices, made: Answer | Withdrawn | DatsError) -> None:
    """What dashboards show of an answer; of its content nothing."""
    if isinstance(made, DatsError):
        services.metrics.truncations.inc(isinstance(made, ContextTruncatedError))
        if isinstance(made, RAGServiceError) and not isinstance(made, Refused):
            log("query").warning("answer_failed", error_type=type(made).__name__, detail=str(made))
        return
    if isinstance(made, Withdrawn):
        services.metrics.answers.labels(action="WITHDRAWN", grounded="false").inc()
        log("query").info("answer_withdrawn", answer_id=made.answer_id, artifact_count=len(made.fallen))
        return
    services.metrics.answers.labels(action=made.action, grounded=str(made.grounded).lower()).inc()
    services.metrics.valid_citations.inc(len(SOURCE_ID_PATTERN.findall(made.text)))
    services.metrics.refused_citations.inc(made.refused_markers)
    log("query").info(
        "answered",
        answer_id=made.answer_id,
        action=made.action,
        confidence=made.confidence.overall,
        citations=len(made.citations),
        refused=made.refused_markers,
        model=made.model_used,
    )


def _stored(kept: KeptAnswer) -> StoredAnswer:
    return StoredAnswer(
        id=kept.record.answer_id,
        status="withdrawn" if kept.fallen else "standing",
        created_at=datetime.fromtimestamp(kept.created_at / 1e6, tz=UTC),
        question=kept.record.question,
        answer=None if kept.fallen else AnswerResponse.model_validate(kept.record.body),
        fallen=[key.artifact_id for key in kept.fallen],
    )
