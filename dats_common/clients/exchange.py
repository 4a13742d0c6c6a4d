"""What the RAG clients say and how they take the answers, without a socket: requests, answers, errors, retries.

`exchange` is a conversation: it asks its driver to send or to pause, and ends with a result or an error. The async and
the sync client drive the same one.
"""

from __future__ import annotations

import email.utils
import itertools
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import httpx
from pydantic import ValidationError

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
from dats_common.contracts.answers import AnswerResponse, StoredAnswer
from dats_common.contracts.api import (
    BatchInvalidateResponse,
    EmbedResponse,
    HealthResponse,
    InvalidateResponse,
    Problem,
    QueryResponse,
    Result,
)
from dats_common.trace_context import TRACEPARENT_HEADER, callers_trace

MAX_ATTEMPTS = 5
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0

_ERRORS: Mapping[int, type[RAGError]] = {
    400: RAGInvalid,
    401: RAGUnauthenticated,
    403: RAGForbidden,
    404: RAGNotFound,
    408: RAGInvalid,
    413: RAGInvalid,
    422: RAGInvalid,
    429: RAGTooMany,
    502: RAGUnavailable,
    503: RAGUnavailable,
    504: RAGTimeout,
}

T = TypeVar("T", bound=Result)


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request and what its answer is.

    Attributes:
        body: JSON bytes, or None.
        repeatable: a broken connection may be answered by sending it again, though it may have been done already.
        answers: status codes whose body is a result.
    """

    method: str
    path: str
    result: type[T]
    body: bytes | None = None
    repeatable: bool = True
    answers: frozenset[int] = frozenset({200, 202})


@dataclass(frozen=True, slots=True)
class Send:
    """Ask the driver to send the call and to hand back the response or the transport's error."""

    call: Call[Any]
    timeout_s: float

    def arguments(self, base_url: str) -> dict[str, Any]:
        """Arguments of httpx's `request`."""
        content_type = {"Content-Type": "application/json"} if self.call.body is not None else {}
        return {
            "method": self.call.method,
            "url": base_url + self.call.path,
            "content": self.call.body,
            "headers": {**content_type, **callers_headers()},
            "timeout": self.timeout_s,
        }


def callers_headers() -> dict[str, str]:
    """The caller's trace, where its program uses OpenTelemetry."""
    trace = callers_trace()
    return {} if trace is None else {TRACEPARENT_HEADER: trace.traceparent}


@dataclass(frozen=True, slots=True)
class Pause:
    """Ask the driver to wait."""

    delay_s: float


Outcome = httpx.Response | httpx.RequestError | httpx.InvalidURL | TimeoutError | None
Conversation = Generator[Send | Pause, Outcome, T]


# ---------------------------------------------------------------------------------------------------------- calls


def query_call(query: str, **narrowing: Any) -> Call[QueryResponse]:
    """POST /query; what is None is left to the service."""
    return Call("POST", "/query", QueryResponse, body=_encode({"query": query, **narrowing}))


def embed_call(content: str, metadata: Mapping[str, Any]) -> Call[EmbedResponse]:
    """POST /embed. Repeated only where it surely was not begun: a repeat would take a second place in history."""
    body = _encode({"content": content, "metadata": dict(metadata)})
    return Call("POST", "/embed", EmbedResponse, body=body, repeatable=False)


def invalidate_call(artifact_id: str, *, tenant_id: str | None) -> Call[InvalidateResponse]:
    """DELETE /embeddings/{artifact_id}."""
    where = f"/embeddings/{_path_segment(artifact_id)}"
    return Call("DELETE", where + (f"?tenant_id={_path_segment(tenant_id)}" if tenant_id else ""), InvalidateResponse)


def batch_invalidate_call(
    artifact_ids: Sequence[str], *, reason: str | None, cascade_id: str | None, tenant_id: str | None
) -> Call[BatchInvalidateResponse]:
    """POST /embeddings/batch-invalidate."""
    if isinstance(artifact_ids, str):
        raise RAGInvalid("artifact_ids: a list of ids is needed, not one string")
    request = {
        "artifact_ids": list(artifact_ids),
        "reason": reason,
        "cascade_id": cascade_id,
        "tenant_id": tenant_id,
    }
    return Call("POST", "/embeddings/batch-invalidate", BatchInvalidateResponse, body=_encode(request))


def answer_call(
    query: str,
    *,
    chat_history: Sequence[Mapping[str, Any]] | None = None,
    model: str | None = None,
    max_context_chunks: int | None = None,
    strict: bool | None = None,
    tenant_id: str | None = None,
    user_id: str | None = None,
    user_tags: Sequence[str] | None = None,
) -> Call[AnswerResponse]:
    """POST /answer; what is None is left to the service. Repeated only where it surely was not begun: it is a model's
    time."""
    asked = {
        "query": query,
        "chat_history": chat_history,
        "model": model,
        "max_context_chunks": max_context_chunks,
        "strict": strict,
        "tenant_id": tenant_id,
        "user_id": user_id,
        "user_tags": user_tags,
    }
    return Call("POST", "/answer", AnswerResponse, body=_encode(asked), repeatable=False)


def find_answer_call(answer_id: str, *, tenant_id: str | None, user_id: str | None) -> Call[StoredAnswer]:
    """GET /answers/{answer_id}."""
    asker = {"tenant_id": tenant_id, "user_id": user_id}
    named = "&".join(f"{name}={_path_segment(value)}" for name, value in asker.items() if value)
    return Call("GET", f"/answers/{_path_segment(answer_id)}" + (f"?{named}" if named else ""), StoredAnswer)


def health_call() -> Call[HealthResponse]:
    """GET /health; an unhealthy service answers 503 with the same document."""
    return Call("GET", "/health", HealthResponse, answers=frozenset({200, 503}))


def _encode(request: Mapping[str, Any]) -> bytes:
    given = {name: value for name, value in request.items() if value is not None}
    try:
        return json.dumps(given, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (ValueError, TypeError, RecursionError) as error:
        # The encoder's own message may quote the value.
        raise RAGInvalid("the request is not JSON: NaN, a lone surrogate or an unknown type") from error


def _path_segment(text: str) -> str:
    if not text:
        raise RAGInvalid("artifact_id: must not be empty")
    try:
        segment = quote(text, safe="")
    except UnicodeEncodeError as error:
        raise RAGInvalid("artifact_id: a lone surrogate is not text") from error
    # "." and ".." are steps in a path and would be resolved on the way.
    return segment.replace(".", "%2E") if set(text) == {"."} else segment


# --------------------------------------------------------------------------------------------------- conversation


def exchange(
    call: Call[T], *, timeout_s: float, clock: Callable[[], float], jitter: Callable[[], float]
) -> Conversation[T]:
    """Send `call`, again where that is safe and useful, within `timeout_s` seconds in all.

    Args:
        clock: seconds, monotonic.
        jitter: a random number in [0, 1): clients that failed together must not return together.

    Raises: RAGError.
    """
    deadline_s = clock() + timeout_s
    for attempt in itertools.count(1):
        outcome = yield Send(call, timeout_s=max(deadline_s - clock(), 0.001))
        if isinstance(outcome, httpx.Response) and _is_answer(call, outcome):
            return _result(call, outcome)
        error = error_of(outcome, timeout_s=timeout_s)
        delay_s = pause_before_retry(call, outcome, error, attempt=attempt, jitter=jitter())
        if delay_s is None or clock() + delay_s >= deadline_s:
            raise error
        yield Pause(delay_s)
    raise AssertionError("attempts are counted without end")


def pause_before_retry(
    call: Call[Any], outcome: Outcome, error: RAGError, *, attempt: int, jitter: float
) -> float | None:
    """Seconds to wait before trying again, or None: give up.

    Not begun (no connection, 429, 503 with Retry-After): any call is repeated. Perhaps done (connection broken, 502,
    503): only what may be done twice. The pause doubles, half of it random; Retry-After is its least.
    """
    not_begun = isinstance(outcome, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout) or (
        isinstance(error, RAGTooMany | RAGUnavailable) and error.retry_after_s is not None
    )
    perhaps_done = isinstance(error, RAGTooMany | RAGUnavailable)
    if attempt >= MAX_ATTEMPTS or not (not_begun or (perhaps_done and call.repeatable)):
        return None
    return (error.retry_after_s or 0.0) + pause_s(attempt=attempt, jitter=jitter)


def pause_s(*, attempt: int, jitter: float) -> float:
    """Seconds before trying again after `attempt` tries; half of it random."""
    return float(min(FIRST_PAUSE_S * 2.0 ** (attempt - 1), LONGEST_PAUSE_S) * (0.5 + jitter / 2))


def _is_answer(call: Call[Any], response: httpx.Response) -> bool:
    is_problem = response.headers.get("content-type", "").startswith("application/problem+json")
    return response.status_code in call.answers and not is_problem


def _result(call: Call[T], response: httpx.Response) -> T:
    try:
        return call.result.model_validate_json(response.content)
    except ValidationError as error:
        if response.status_code >= 400:
            raise refused(response) from None
        fields = ", ".join(".".join(map(str, each["loc"])) for each in error.errors(include_input=False)[:3])
        raise RAGUnexpected(
            f"the answer is not a {call.result.__name__} ({fields or 'not JSON'})", status=response.status_code
        ) from error


def error_of(outcome: Outcome, *, timeout_s: float) -> RAGError:
    """The error that an outcome means which is no answer; `timeout_s` is what it was given."""
    match outcome:
        case httpx.Response():
            return refused(outcome)
        case httpx.ConnectTimeout():
            error: RAGError = RAGUnavailable("no connection in time")
        case httpx.TimeoutException() | TimeoutError():
            error = RAGTimeout(f"no answer in {timeout_s} s")
        case httpx.InvalidURL() | httpx.UnsupportedProtocol() | httpx.LocalProtocolError():
            error = RAGInvalid(f"the request cannot be sent: {outcome}")
        case httpx.TransportError():
            error = RAGUnavailable(f"no connection: {type(outcome).__name__}")
        case _:
            error = RAGUnexpected(f"the answer cannot be read: {type(outcome).__name__}")
    error.__cause__ = outcome
    return error


def refused(response: httpx.Response) -> RAGError:
    """The error that a status means."""
    problem = _problem(response)
    kind = _ERRORS.get(response.status_code, RAGUnexpected)
    said = ": ".join(part for part in (problem.title, problem.detail) if part) if problem else ""
    return kind(
        f"{response.status_code} {said}".strip(),
        status=response.status_code,
        problem=problem,
        retry_after_s=_retry_after_s(response.headers.get("retry-after")),
    )


def _problem(response: httpx.Response) -> Problem | None:
    try:
        return Problem.model_validate_json(response.content)
    except ValidationError:
        return None


def _retry_after_s(value: str | None) -> float | None:
    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        moment = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    return max((moment - datetime.now(moment.tzinfo or UTC)).total_seconds(), 0.0) if moment.tzinfo else None
