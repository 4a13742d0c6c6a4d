"""Clients of the RAG service: `RAGClient` (async) and `RAGClientSync`. Importing this loads httpx and pydantic only.

    async with RAGClient() as rag:
        result = await rag.query("How to implement fibonacci in Python?", project_id="proj-123")
        context = result["context"]          # or result.context

The tree of errors is drawn in `dats_common.clients.errors`. A call is repeated only where that is safe: a search, a
health check or an invalidation may be done twice; an embed is repeated only when the service had not begun with it.
Everything ends within `timeout` seconds.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Generator, Mapping, Sequence
from contextlib import aclosing, closing
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, Unpack, cast

import httpx

from dats_common.clients import exchange as wire
from dats_common.clients.errors import (
    RAGError,
    RAGForbidden,
    RAGInvalid,
    RAGNotFound,
    RAGTimeout,
    RAGTooMany,
    RAGUnauthenticated,
    RAGUnavailable,
    RAGUnexpected,
)
from dats_common.clients.stream import AnswerEvent, EventReader, Failure, Listening
from dats_common.contracts.answers import AnswerResponse, StoredAnswer
from dats_common.contracts.api import (
    DEFAULT_MAX_TOKENS,
    BatchInvalidateResponse,
    EmbedResponse,
    HealthResponse,
    InvalidateResponse,
    QueryResponse,
    Result,
)

__all__ = [
    "AnswerEvent",
    "AnswerOptions",
    "RAGClient",
    "RAGClientSync",
    "RAGError",
    "RAGForbidden",
    "RAGInvalid",
    "RAGNotFound",
    "RAGTimeout",
    "RAGTooMany",
    "RAGUnauthenticated",
    "RAGUnavailable",
    "RAGUnexpected",
]

# Source: spec 1, "Phase 2: Add HTTP Client".
DEFAULT_BASE_URL = "http://rag-service:8000/api/v1"
DEFAULT_TIMEOUT_S = 30.0
ANSWER_TIMEOUT_S = 75.0
"""More than the service gives itself for an answer by its own defaults."""


class AnswerOptions(TypedDict, total=False):
    """What an answer may be asked for besides the question; what is left out is left to the service.

    Attributes:
        chat_history: messages with `role` (user or assistant) and `content`, the oldest first.
        strict: leave out every sentence that its sources do not support.
    """

    chat_history: Sequence[Mapping[str, Any]] | None
    model: str | None
    max_context_chunks: int | None
    strict: bool | None
    tenant_id: str | None
    user_id: str | None
    user_tags: Sequence[str] | None


T = TypeVar("T", bound=Result)
Waited = TypeVar("Waited")


def _headers(*, api_key: str | None, token: str | None) -> dict[str, str]:
    if api_key and token:
        raise ValueError("give api_key or token, not both")
    headers = {"Accept": "application/json, application/problem+json"}
    if api_key:
        headers["X-API-Key"] = api_key
    if token:
        headers["Authorization"] = f"Bearer {token}"
    return headers


def _begin(call: wire.Call[T], *, timeout_s: float) -> wire.Conversation[T]:
    return wire.exchange(call, timeout_s=timeout_s, clock=time.monotonic, jitter=random.random)


def _listen(call: wire.Call[AnswerResponse], *, timeout_s: float) -> Listening:
    return Listening(call, timeout_s, clock=time.monotonic, jitter=random.random)


async def _within(wait: Awaitable[Waited], timeout_s: float) -> Waited:
    async with asyncio.timeout(timeout_s):
        return await wait


class RAGClient:
    """Client for RAG Service.

    Args:
        base_url: with the API's prefix.
        timeout: seconds for one call in all, retries included.
        api_key: sent as X-API-Key.
        token: sent as a bearer token.
        transport: another way to send, such as `httpx.ASGITransport` or `httpx.MockTransport`.
    """

    def __init__(
        self,
        base_url: str = DEFAULT_BASE_URL,
        timeout: float = DEFAULT_TIMEOUT_S,
        *,
        api_key: str | None = None,
        token: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.timeout = timeout
        self.client = httpx.AsyncClient(
            headers=_headers(api_key=api_key, token=token), timeout=timeout, transport=transport
        )

    async def query(
        self,
        query: str,
        project_id: str | None = None,
        domain: str | None = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        search_mode: str = "hybrid",
        *,
        filters: Mapping[str, Any] | None = None,
        tenant_id: str | None = None,
        user_id: str | None = None,
        user_tags: Sequence[str] | None = None,
        top_k: int | None = None,
        rerank: bool | None = None,
    ) -> QueryResponse:
        """Query for relevant context. Raises: RAGError."""
        return await self._run(
            wire.query_call(
                query,
                project_id=project_id,
                domain=domain,
                max_tokens=max_tokens,
                search_mode=search_mode,
                filters=filters,
                tenant_id=tenant_id,
                user_id=user_id,
                user_tags=user_tags,
                top_k=top_k,
                rerank=rerank,
            )
        )

    async def embed(self, content: str, metadata: Mapping[str, Any]) -> EmbedResponse:
        """Index content for retrieval; status `queued` means accepted and durable. Raises: RAGError."""
        return await self._run(wire.embed_call(content, metadata))

    async def invalidate(self, artifact_id: str, *, tenant_id: str | None = None) -> InvalidateResponse:
        """Invalidate embeddings for an artifact: no query that starts after the return finds it. Raises: RAGError."""
        return await self._run(wire.invalidate_call(artifact_id, tenant_id=tenant_id))

    async def batch_invalidate(
        self,
        artifact_ids: Sequence[str],
        cascade_id: str | None = None,
        reason: str | None = None,
        *,
        tenant_id: str | None = None,
    ) -> BatchInvalidateResponse:
        """Invalidate several artifacts in one step, at most 10,000. Raises: RAGError."""
        return await self._run(
            wire.batch_invalidate_call(artifact_ids, reason=reason, cascade_id=cascade_id, tenant_id=tenant_id)
        )

    async def answer(
        self, query: str, *, timeout: float = ANSWER_TIMEOUT_S, **options: Unpack[AnswerOptions]
    ) -> AnswerResponse:
        """A grounded answer with citations, or whom to ask (`action` is ROUTE). Raises: RAGError.

        Args:
            timeout: seconds for this call in all: a model takes longer than a search.
        """
        return await self._run(wire.answer_call(query, **options), timeout_s=timeout)

    async def stream_answer(
        self, query: str, *, timeout: float = ANSWER_TIMEOUT_S, **options: Unpack[AnswerOptions]
    ) -> AsyncGenerator[AnswerEvent]:
        """The answer as it is written; the last event is `done`, `error` or `withdrawn`. Raises: RAGError.

        A connection that breaks is taken up again where it broke off. Closing the generator stops the model.
        """
        listening = _listen(wire.answer_call(query, **options), timeout_s=timeout)
        while True:
            failure: Failure | None = None
            try:
                async with aclosing(self._events(listening)) as events:
                    # Each wait by itself: between two events the caller's own code runs, which is not to be cancelled.
                    while (event := await _within(anext(events, None), listening.left_s())) is not None:
                        listening.heard(event)
                        yield event
                        if event.is_end:
                            return
            except (RAGError, httpx.RequestError, httpx.InvalidURL, TimeoutError) as error:
                failure = error
            await asyncio.sleep(listening.pause_s(failure))

    async def _events(self, listening: Listening) -> AsyncGenerator[AnswerEvent]:
        """What one connection brings."""
        reader = EventReader()
        async with self.client.stream(**listening.arguments(self.base_url)) as response:
            if response.status_code != 200:
                await response.aread()
                raise wire.refused(response)
            async for line in response.aiter_lines():
                if (event := reader.read(line)) is not None:
                    yield event

    async def get_answer(
        self, answer_id: str, *, tenant_id: str | None = None, user_id: str | None = None
    ) -> StoredAnswer:
        """An answer that was given, its sources judged now. Raises: RAGNotFound; RAGError."""
        return await self._run(wire.find_answer_call(answer_id, tenant_id=tenant_id, user_id=user_id))

    async def is_standing(self, answer_id: str, *, tenant_id: str | None = None, user_id: str | None = None) -> bool:
        """Whether nothing that the answer stood on was withdrawn. Raises: RAGNotFound; RAGError."""
        found = await self.get_answer(answer_id, tenant_id=tenant_id, user_id=user_id)
        return found.status == "standing"

    async def health(self) -> HealthResponse:
        """The state of the service; an unhealthy one is an answer too. Raises: RAGError."""
        return await self._run(wire.health_call())

    async def close(self) -> None:
        """Close the connections."""
        await self.client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, call: wire.Call[T], *, timeout_s: float | None = None) -> T:
        conversation = _begin(call, timeout_s=self.timeout if timeout_s is None else timeout_s)
        outcome: wire.Outcome = None
        while True:
            try:
                step = conversation.send(outcome)
            except StopIteration as end:
                return cast(T, end.value)
            outcome = await self._take(step)

    async def _take(self, step: wire.Send | wire.Pause) -> wire.Outcome:
        if isinstance(step, wire.Send):
            return await self._send(step)
        await asyncio.sleep(step.delay_s)
        return None

    async def _send(self, step: wire.Send) -> wire.Outcome:
        try:
            # httpx bounds each phase; this bounds them together.
            async with asyncio.timeout(step.timeout_s):
                return await self.client.request(**step.arguments(self.base_url))
        except (httpx.RequestError, httpx.InvalidURL, TimeoutError) as error:
            return error


class RAGClientSync:
    """`RAGClient` for code without an event loop. Its timeout bounds each wait for bytes, retries included."""

    def __init__(
        self,
        base_url: str = DEFAULT_BASE_URL,
        timeout: float = DEFAULT_TIMEOUT_S,
        *,
        api_key: str | None = None,
        token: str | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.timeout = timeout
        self.client = httpx.Client(headers=_headers(api_key=api_key, token=token), timeout=timeout, transport=transport)

    def query(
        self,
        query: str,
        project_id: str | None = None,
        domain: str | None = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        search_mode: str = "hybrid",
        *,
        filters: Mapping[str, Any] | None = None,
        tenant_id: str | None = None,
        user_id: str | None = None,
        user_tags: Sequence[str] | None = None,
        top_k: int | None = None,
        rerank: bool | None = None,
    ) -> QueryResponse:
        """Query for relevant context. Raises: RAGError."""
        return self._run(
            wire.query_call(
                query,
                project_id=project_id,
                domain=domain,
                max_tokens=max_tokens,
                search_mode=search_mode,
                filters=filters,
                tenant_id=tenant_id,
                user_id=user_id,
                user_tags=user_tags,
                top_k=top_k,
                rerank=rerank,
            )
        )

    def embed(self, content: str, metadata: Mapping[str, Any]) -> EmbedResponse:
        """Index content for retrieval; status `queued` means accepted and durable. Raises: RAGError."""
        return self._run(wire.embed_call(content, metadata))

    def invalidate(self, artifact_id: str, *, tenant_id: str | None = None) -> InvalidateResponse:
        """Invalidate embeddings for an artifact: no query that starts after the return finds it. Raises: RAGError."""
        return self._run(wire.invalidate_call(artifact_id, tenant_id=tenant_id))

    def batch_invalidate(
        self,
        artifact_ids: Sequence[str],
        cascade_id: str | None = None,
        reason: str | None = None,
        *,
        tenant_id: str | None = None,
    ) -> BatchInvalidateResponse:
        """Invalidate several artifacts in one step, at most 10,000. Raises: RAGError."""
        return self._run(
            wire.batch_invalidate_call(artifact_ids, reason=reason, cascade_id=cascade_id, tenant_id=tenant_id)
        )

    def answer(
        self, query: str, *, timeout: float = ANSWER_TIMEOUT_S, **options: Unpack[AnswerOptions]
    ) -> AnswerResponse:
        """A grounded answer with citations, or whom to ask (`action` is ROUTE). Raises: RAGError.

        Args:
            timeout: seconds for this call in all: a model takes longer than a search.
        """
        return self._run(wire.answer_call(query, **options), timeout_s=timeout)

    def stream_answer(
        self, query: str, *, timeout: float = ANSWER_TIMEOUT_S, **options: Unpack[AnswerOptions]
    ) -> Generator[AnswerEvent]:
        """The answer as it is written; the last event is `done`, `error` or `withdrawn`. Raises: RAGError.

        A connection that breaks is taken up again where it broke off. Closing the generator closes the connection, and
        that stops the model. A loop that is left does so too once nothing refers to the generator: `contextlib.closing`
        around it does not depend on that.

        Args:
            timeout: seconds for this call in all, looked at with each line; the service sends one at least every ten
                seconds. A service that fell silent is given up after `timeout` seconds of silence at most.
        """
        listening = _listen(wire.answer_call(query, **options), timeout_s=timeout)
        while True:
            failure: Failure | None = None
            try:
                with closing(self._events(listening)) as events:
                    for event in events:
                        listening.heard(event)
                        yield event
                        if event.is_end:
                            return
            except (RAGError, httpx.RequestError, httpx.InvalidURL, TimeoutError) as error:
                failure = error
            time.sleep(listening.pause_s(failure))

    def _events(self, listening: Listening) -> Generator[AnswerEvent]:
        """What one connection brings. Raises: TimeoutError."""
        reader = EventReader()
        with self.client.stream(**listening.arguments(self.base_url)) as response:
            if response.status_code != 200:
                response.read()
                raise wire.refused(response)
            for line in response.iter_lines():
                if listening.left_s() <= 0:
                    raise TimeoutError
                if (event := reader.read(line)) is not None:
                    yield event

    def get_answer(self, answer_id: str, *, tenant_id: str | None = None, user_id: str | None = None) -> StoredAnswer:
        """An answer that was given, its sources judged now. Raises: RAGNotFound; RAGError."""
        return self._run(wire.find_answer_call(answer_id, tenant_id=tenant_id, user_id=user_id))

    def is_standing(self, answer_id: str, *, tenant_id: str | None = None, user_id: str | None = None) -> bool:
        """Whether nothing that the answer stood on was withdrawn. Raises: RAGNotFound; RAGError."""
        found = self.get_answer(answer_id, tenant_id=tenant_id, user_id=user_id)
        return found.status == "standing"

    def health(self) -> HealthResponse:
        """The state of the service; an unhealthy one is an answer too. Raises: RAGError."""
        return self._run(wire.health_call())

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, call: wire.Call[T], *, timeout_s: float | None = None) -> T:
        conversation = _begin(call, timeout_s=self.timeout if timeout_s is None else timeout_s)
        outcome: wire.Outcome = None
        while True:
            try:
                step = conversation.send(outcome)
            except StopIteration as end:
                return cast(T, end.value)
            outcome = self._take(step)

    def _take(self, step: wire.Send | wire.Pause) -> wire.Outcome:
        if isinstance(step, wire.Send):
            return self._send(step)
        time.sleep(step.delay_s)
        return None

    def _send(self, step: wire.Send) -> wire.Outcome:
        try:
            return self.client.request(**step.arguments(self.base_url))
        except (httpx.RequestError, httpx.InvalidURL) as error:
            return error
