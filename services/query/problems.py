"""Errors as RFC 9457 problem documents: one table, no stack trace ever."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from dats_common.contracts.api import FieldProblem, Problem, field_problems
from dats_common.errors import (
    DatsError,
    DeadlineExceeded,
    Forbidden,
    InvalidInput,
    LLMConnectionError,
    LLMTimeoutError,
    ModelNotAllowedError,
    NotFound,
    QueueFull,
    TooManyRequests,
    Unauthenticated,
    Unavailable,
)
from dats_common.telemetry.logs import log

MEDIA_TYPE = "application/problem+json"

# The first row whose class fits.
STATUSES: Sequence[tuple[type[DatsError], int, str]] = (
    (ModelNotAllowedError, 400, "Requested model not available."),  # Source of these three: spec 3, "Error Responses"
    (LLMConnectionError, 503, "AI service temporarily unavailable."),
    (LLMTimeoutError, 504, "Response generation timed out. Please try again."),
    (InvalidInput, 422, "The request breaks the contract"),
    (Unauthenticated, 401, "Not authenticated"),
    (Forbidden, 403, "Not allowed"),
    (NotFound, 404, "Not found"),
    (QueueFull, 429, "Too many requests"),
    (TooManyRequests, 429, "Too many requests"),
    (Unavailable, 503, "Temporarily unavailable"),
    (DeadlineExceeded, 504, "Not done in time"),
)
_TITLES = {
    400: "Bad request",
    404: "Not found",
    405: "Method not allowed",
    408: "Too slow",
    413: "Too large",
    415: "Unsupported media type",
    422: "The request breaks the contract",
}


def problem_response(
    status: int,
    title: str,
    *,
    detail: str = "",
    instance: str | None = None,
    errors: Sequence[FieldProblem] = (),
    retry_after_s: float | None = None,
) -> JSONResponse:
    """A problem document with its media type."""
    problem = Problem(title=title, status=status, detail=detail, instance=instance, errors=list(errors))
    headers = {"Retry-After": str(max(1, math.ceil(retry_after_s)))} if retry_after_s is not None else None
    return JSONResponse(
        problem.model_dump(exclude_none=True), status_code=status, media_type=MEDIA_TYPE, headers=headers
    )


def response_for(error: DatsError, *, instance: str) -> JSONResponse:
    """The problem document of one of our errors; 500 for one that has no row."""
    for kind, status, title in STATUSES:
        if isinstance(error, kind):
            retry_after_s = error.retry_after_s if isinstance(error, Unavailable) else None
            response = problem_response(
                status, title, detail=str(error), instance=instance, retry_after_s=retry_after_s
            )
            if status == 401:
                response.headers["WWW-Authenticate"] = 'Bearer realm="dats-rag"'  # RFC 9110 section 11.6.1
            return response
    return _failure(error, instance=instance)


async def _known(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, DatsError):
        raise TypeError(f"{type(error).__name__} is none of our errors")
    return response_for(error, instance=request.url.path)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    errors = field_problems(error.errors()) if isinstance(error, RequestValidationError) else []
    return problem_response(
        422,
        _TITLES[422],
        detail="; ".join(f"{item.field}: {item.message}" for item in errors[:3]),
        instance=request.url.path,
        errors=errors,
    )


async def _http(request: Request, error: Exception) -> JSONResponse:
    status = error.status_code if isinstance(error, HTTPException) else 500
    detail = str(error.detail) if isinstance(error, HTTPException) else ""
    response = problem_response(status, _TITLES.get(status, "Refused"), detail=detail, instance=request.url.path)
    if isinstance(error, HTTPException):
        response.headers.update(error.headers or {})  # a 405 names the methods that are allowed
    return response


def _failure(error: Exception, *, instance: str) -> JSONResponse:
    log("query").error("request_failed", route=instance, error_type=type(error).__name__)
    return problem_response(500, "Internal error", detail="the service failed; it has been logged", instance=instance)


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    return _failure(error, instance=request.url.path)


def install_problems(app: FastAPI) -> None:
    """Every error of the app becomes a problem document."""
    app.add_exception_handler(DatsError, _known)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)
