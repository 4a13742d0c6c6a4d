"""What every route shares: how a body is read, who asks, what the route stands on, and its deadline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Annotated, Any
from urllib.parse import unquote_to_bytes

from fastapi import Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from dats_common.contracts.strict_json import parse_object
from dats_common.domain.access import Caller
from dats_common.errors import DeadlineExceeded, InvalidInput, Unauthenticated
from services.query.services import QueryServices


class StrictJsonRequest(Request):
    """Bodies are read as events are: no NaN, no duplicate keys, bounded depth."""

    async def json(self) -> Any:
        """The body as an object."""
        try:
            return parse_object(await self.body())
        except InvalidInput as error:
            raise HTTPException(422, str(error)) from None


class StrictJsonRoute(APIRoute):
    """A route whose request is a `StrictJsonRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, given our request class."""
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            _require_utf8(request.scope.get("raw_path", b""))
            if request.method == "POST":
                _require_json(request.headers.get("content-type", ""))
            return await handler(StrictJsonRequest(request.scope, request.receive))

        return strict


def _require_utf8(raw_path: bytes) -> None:
    """Servers put U+FFFD for what is not UTF-8: a request would then name another artifact than it was sent for."""
    try:
        unquote_to_bytes(raw_path).decode()
    except UnicodeDecodeError:
        raise InvalidInput("path: not valid UTF-8") from None


def _require_json(content_type: str) -> None:
    """The framework reads another body as one text, of which it says that it should be an object."""
    kind, _, subtype = content_type.partition(";")[0].strip().lower().partition("/")
    if kind != "application" or not (subtype == "json" or subtype.endswith("+json")):
        raise RequestValidationError(
            [{"type": "media_type", "loc": ("Content-Type",), "msg": "the header must say application/json"}]
        )


PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": text,
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    for status, text in (
        (401, "No credentials, or none that are good"),
        (403, "Not allowed"),
        (408, "The body did not arrive in time"),
        (413, "Body too large"),
        (422, "The request breaks the contract"),
        (429, "The caller's own limit, or a full embedding queue; Retry-After says when to come back"),
        (500, "The service failed; it has been logged"),
        (503, "Ledger, index or broker away, or too much in hand; Retry-After says when to come back"),
        (504, "Not done before the deadline"),
    )
}


# Coroutines, because the framework calls plain functions in a thread.
async def _services(request: Request) -> QueryServices:
    services: QueryServices = request.app.state.services
    return services


async def _caller(request: Request) -> Caller:
    caller: Caller | None = request.state.caller  # the gate put it there
    if caller is None:
        raise Unauthenticated("credentials are needed")
    return caller


async def _may_know_details(request: Request) -> bool:
    """Addresses and reasons are for those who showed credentials, or where none are asked for."""
    return request.state.caller is not None


Services = Annotated[QueryServices, Depends(_services)]
Asking = Annotated[Caller, Depends(_caller)]
WithDetails = Annotated[bool, Depends(_may_know_details)]


@asynccontextmanager
async def within(deadline_s: float) -> AsyncIterator[None]:
    """Bounds a block. Raises: DeadlineExceeded."""
    try:
        async with asyncio.timeout(deadline_s):
            yield
    except TimeoutError as error:
        raise DeadlineExceeded(f"not done within {deadline_s} s") from error
