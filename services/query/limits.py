"""Around every route: bodies that are too large are refused, declared or not; every answer is counted and has an id."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Collection
from dataclasses import dataclass

import structlog
from prometheus_client import Counter
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.query.problems import problem_response

_NO_ROUTE = "none"


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What one request may weigh and take to arrive, and how many may be in hand."""

    body_bytes: int
    body_timeout_s: float
    concurrent_requests: int


class BodyLimit:
    """Refuses a body over `limit_bytes` with 413, however it is framed, and one that trickles in with 408."""

    def __init__(self, app: ASGIApp, *, limit_bytes: int, timeout_s: float) -> None:
        self._app = app
        self._limit_bytes = limit_bytes
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > self._limit_bytes:
            await self._refuse(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                body = await self._read(receive)
        except TimeoutError:
            detail = f"the body did not arrive within {self._timeout_s} s"
            await problem_response(408, "Too slow", detail=detail, instance=scope["path"])(scope, receive, send)
            return
        if body is None:
            await self._refuse(scope, receive, send)
            return
        await self._app(scope, _replay(body, receive), send)

    async def _read(self, receive: Receive) -> bytes | None:
        """The whole body, which is bounded and small; None if it grows over the limit (a chunked one may)."""
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return b"".join(parts)
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._limit_bytes:
                return None
            if not message.get("more_body", False):
                return b"".join(parts)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = problem_response(
            413, "Too large", detail=f"a body may have {self._limit_bytes} bytes", instance=scope["path"]
        )
        await response(scope, receive, send)


def _replay(body: bytes, receive: Receive) -> Receive:
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()  # only a disconnect can follow
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


class RequestCount:
    """Counts answers by route template and status; paths that match no route share one label.

    Args:
        routes: the templates. What is refused before a route is looked up (too many in hand, no ledger to ask about a
            key) counts for the one that is called so: an error budget would miss it.
    """

    def __init__(self, app: ASGIApp, *, requests: Counter, routes: Collection[str]) -> None:
        self._app = app
        self._requests = requests
        self._routes = frozenset(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                called = scope["path"] if scope["path"] in self._routes else _NO_ROUTE
                route = getattr(scope.get("route"), "path", called)
                self._requests.labels(route=route, status=str(message["status"])).inc()
            await send(message)

        await self._app(scope, receive, counted)


class RequestId:
    """Gives every request an id, the caller's where it is one, for the log's lines and the answer's header."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (_ID_HEADER, request_id.encode())]
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            await self._app(scope, receive, named)


_ID_HEADER = b"x-request-id"
_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == _ID_HEADER and _ID.fullmatch(value):
            return str(value.decode())
    return uuid.uuid4().hex
