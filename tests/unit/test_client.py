"""The clients over httpx's transport seam: what they send, what they make of answers, and when they try again."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dats_common.clients import exchange
from dats_common.clients.rag import (
    RAGClient,
    RAGClientSync,
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

ROOT = Path(__file__).parents[2]
ANSWER = {
    "id": "query-550e8400-e29b-41d4",
    "query": "q",
    "context": "## Previous Implementation",
    "sources": [],
    "tokens_used": 1500,
    "search_mode": "hybrid",
    "metadata": {"vector_results": 3},
}
EMBEDDED = {"id": "e", "artifact_id": "a", "status": "indexed", "chunks": 3, "tokens": 450, "latency_ms": 1200}
HEALTH = {
    "status": "unhealthy",
    "version": "1.0.0",
    "lightrag": {"status": "unavailable", "index_size": 0, "embedding_model": "m"},
    "embedding_queue": {"pending": 5, "processing": 1},
    "rag_ok": False,
}
PROBLEM = {"type": "about:blank", "title": "Refused", "status": 422, "detail": "query: must not be blank"}

Respond = Callable[[httpx.Request], httpx.Response]


class Service:
    """Answers in turn, the last one for ever, and remembers the requests."""

    def __init__(self, *answers: httpx.Response | httpx.TransportError) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, httpx.TransportError):
            raise answer
        return answer

    @property
    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self)

    def sent(self) -> dict[str, Any]:
        sent: dict[str, Any] = json.loads(self.requests[-1].content)
        return sent


def ok(document: Any, status: int = 200) -> httpx.Response:
    return httpx.Response(status, json=document)


def problem(status: int, **headers: str) -> httpx.Response:
    return httpx.Response(
        status,
        json={**PROBLEM, "status": status},
        headers={"content-type": "application/problem+json", **headers},
    )


# ------------------------------------------------------------------------------------------------ what is sent


async def test_the_usage_example_of_spec_1_works() -> None:
    service = Service(ok(ANSWER))
    task_data = {"description": "How to implement fibonacci?", "project_id": "proj-123"}
    client = RAGClient(transport=service.transport)
    result = await client.query(
        query=task_data["description"],
        project_id=task_data.get("project_id"),
        domain=task_data.get("domain"),
    )
    context = result["context"]
    await client.close()
    assert context == "## Previous Implementation"
    assert str(service.requests[0].url) == "http://rag-service:8000/api/v1/query"
    assert service.sent() == {
        "query": "How to implement fibonacci?",
        "project_id": "proj-123",
        "max_tokens": 2000,
        "search_mode": "hybrid",
    }


def test_the_constructor_has_the_defaults_of_spec_1() -> None:
    for kind in (RAGClient, RAGClientSync):
        client = kind()
        assert client.base_url == "http://rag-service:8000/api/v1"
        assert client.timeout == 30.0


async def test_every_call_reaches_its_endpoint_from_both_clients() -> None:
    answers = {
        "POST /api/v1/query": ANSWER,
        "POST /api/v1/embed": EMBEDDED,
        "DELETE /api/v1/embeddings/art-789": {"artifact_id": "art-789", "removed_chunks": 3, "status": "invalidated"},
        "POST /api/v1/embeddings/batch-invalidate": {"invalidated": 2, "chunks_removed": 9, "cascade_id": "c"},
        "GET /api/v1/health": HEALTH,
    }
    seen: list[tuple[str, bytes]] = []

    def respond(request: httpx.Request) -> httpx.Response:
        call = f"{request.method} {request.url.path}"
        seen.append((call, request.content))
        return ok(answers[call])

    transport = httpx.MockTransport(respond)
    async with RAGClient(transport=transport) as client:
        found = [
            await client.query("q", filters={"tags": ["a"]}, top_k=3, rerank=True),
            await client.embed("def fibonacci(n): ...", {"artifact_id": "a", "project_id": "p"}),
            await client.invalidate("art-789"),
            await client.batch_invalidate(["a", "b"], cascade_id="c", reason="r"),
            await client.health(),
        ]
    seen_by_async, seen = seen, []
    with RAGClientSync(transport=transport) as sync_client:
        found_sync = [
            sync_client.query("q", filters={"tags": ["a"]}, top_k=3, rerank=True),
            sync_client.embed("def fibonacci(n): ...", {"artifact_id": "a", "project_id": "p"}),
            sync_client.invalidate("art-789"),
            sync_client.batch_invalidate(["a", "b"], cascade_id="c", reason="r"),
            sync_client.health(),
        ]
    assert [call for call, _ in seen_by_async] == list(answers)
    assert seen == seen_by_async
    assert found_sync == found
    assert json.loads(seen[0][1]) == {
        "query": "q",
        "filters": {"tags": ["a"]},
        "top_k": 3,
        "rerank": True,
        "max_tokens": 2000,
        "search_mode": "hybrid",
    }
    assert found[1]["chunks"] == 3
    assert found[2]["removed_chunks"] == 3
    assert found[3]["chunks_removed"] == 9
    assert json.loads(seen[3][1]) == {"artifact_ids": ["a", "b"], "cascade_id": "c", "reason": "r"}


@pytest.mark.parametrize(
    ("artifact_id", "segment"),
    [
        ("a/b", b"a%2Fb"),
        ("with space", b"with%20space"),
        ("a?b#c", b"a%3Fb%23c"),
        ("100%", b"100%25"),
        ("ü", b"%C3%BC"),
        ("..", b"%2E%2E"),
        ("a..b", b"a..b"),
    ],
)
async def test_an_id_stays_one_step_of_the_path(artifact_id: str, segment: bytes) -> None:
    service = Service(ok({"artifact_id": artifact_id, "removed_chunks": 0, "status": "invalidated"}))
    async with RAGClient(transport=service.transport) as client:
        await client.invalidate(artifact_id)
    assert service.requests[0].url.raw_path == b"/api/v1/embeddings/" + segment


async def test_credentials_are_sent_as_the_contract_has_them() -> None:
    service = Service(ok(ANSWER))
    async with RAGClient(api_key="key", transport=service.transport) as client:
        await client.query("q")
    assert service.requests[-1].headers["x-api-key"] == "key"
    async with RAGClient(token="jwt", transport=service.transport) as client:
        await client.query("q")
    assert service.requests[-1].headers["authorization"] == "Bearer jwt"
    with pytest.raises(ValueError, match="not both"):
        RAGClient(api_key="key", token="jwt")


@pytest.mark.parametrize(
    "metadata",
    [{"x": float("nan")}, {"x": "\ud800"}, {"x": {1, 2}}, {"x": b"bytes"}],
    ids=["nan", "surrogate", "set", "bytes"],
)
async def test_what_is_not_json_is_refused_before_it_is_sent(metadata: dict[str, Any]) -> None:
    service = Service(ok(EMBEDDED))
    async with RAGClient(transport=service.transport) as client:
        with pytest.raises(RAGInvalid):
            await client.embed("def fibonacci(n): ...", metadata)
    assert service.requests == []


@pytest.mark.parametrize("artifact_id", ["", "\ud800"])
async def test_an_id_without_a_path_is_refused_before_it_is_sent(artifact_id: str) -> None:
    async with RAGClient(transport=Service(ok({})).transport) as client:
        with pytest.raises(RAGInvalid):
            await client.invalidate(artifact_id)
        with pytest.raises(RAGInvalid):
            await client.batch_invalidate("one-string")


# --------------------------------------------------------------------------------------- what answers mean


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, RAGInvalid),
        (401, RAGUnauthenticated),
        (403, RAGForbidden),
        (404, RAGNotFound),
        (413, RAGInvalid),
        (422, RAGInvalid),
        (504, RAGTimeout),
        (500, RAGUnexpected),
        (302, RAGUnexpected),
    ],
)
async def test_a_refusal_is_a_typed_error_with_the_services_words(status: int, kind: type[RAGError]) -> None:
    service = Service(problem(status))
    async with RAGClient(transport=service.transport) as client:
        with pytest.raises(kind, match="query: must not be blank") as caught:
            await client.query("q")
    assert caught.value.status == status
    assert caught.value.problem is not None
    assert caught.value.problem.detail == "query: must not be blank"
    assert len(service.requests) == 1


async def test_an_answer_that_cannot_be_decoded_is_unexpected() -> None:
    def respond(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-encoding": "gzip"}, stream=httpx.ByteStream(b"no gzip"))

    async with RAGClient(transport=httpx.MockTransport(respond)) as client:
        with pytest.raises(RAGUnexpected, match="cannot be read"):
            await client.query("q")


@pytest.mark.parametrize("content", [b"<html>", b"[]", b"{}", b"\xff"])
async def test_an_answer_that_breaks_the_contract_is_unexpected(content: bytes) -> None:
    async with RAGClient(transport=Service(httpx.Response(200, content=content)).transport) as client:
        with pytest.raises(RAGUnexpected, match="not a QueryResponse"):
            await client.query("q")


async def test_a_refusal_without_a_problem_document_is_typed_all_the_same() -> None:
    async with RAGClient(transport=Service(httpx.Response(404, text="gone")).transport) as client:
        with pytest.raises(RAGNotFound) as caught:
            await client.query("q")
    assert caught.value.problem is None


async def test_a_queued_embed_is_a_result() -> None:
    service = Service(ok({**EMBEDDED, "status": "queued", "chunks": 0, "tokens": 0}, status=202))
    async with RAGClient(transport=service.transport) as client:
        assert (await client.embed("def fibonacci(n): ...", {}))["status"] == "queued"


async def test_an_unhealthy_service_is_an_answer_and_not_an_error() -> None:
    async with RAGClient(transport=Service(ok(HEALTH, status=503)).transport) as client:
        assert (await client.health())["status"] == "unhealthy"


# ----------------------------------------------------------------------------------------------------- retries


class Clock:
    """Time that passes only by pausing."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def converse(
    call: exchange.Call[Any], outcomes: list[exchange.Outcome], *, timeout_s: float = 30.0
) -> tuple[list[float], Any]:
    """The pauses that a conversation asked for, and its result or error."""
    clock = Clock()
    steps: Generator[Any, Any, Any] = exchange.exchange(call, timeout_s=timeout_s, clock=clock, jitter=lambda: 1.0)
    pauses: list[float] = []
    outcome: exchange.Outcome = None
    try:
        while True:
            step = steps.send(outcome)
            if isinstance(step, exchange.Pause):
                pauses.append(step.delay_s)
                clock.now_s += step.delay_s
                outcome = None
            else:
                outcome = outcomes.pop(0)
    except StopIteration as end:
        return pauses, end.value
    except RAGError as error:
        return pauses, error


QUERY = exchange.query_call("q")
EMBED = exchange.embed_call("def fibonacci(n): ...", {})
INVALIDATE = exchange.invalidate_call("a", tenant_id=None)
BATCH = exchange.batch_invalidate_call(["a"], reason=None, cascade_id=None, tenant_id=None)
INVALIDATED = {"artifact_id": "a", "removed_chunks": 0, "status": "invalidated"}


@pytest.mark.parametrize(
    "failure", [problem(503), problem(502), problem(429), httpx.ReadError("broken"), httpx.ConnectError("no")]
)
@pytest.mark.parametrize(
    ("call", "answer"), [(QUERY, ANSWER), (INVALIDATE, INVALIDATED), (BATCH, {"invalidated": 1, "chunks_removed": 0})]
)
def test_what_may_be_done_twice_is_tried_again(call: Any, answer: Any, failure: Any) -> None:
    pauses, result = converse(call, [failure, failure, ok(answer)])
    assert not isinstance(result, RAGError)
    assert pauses == [0.2, 0.4]


@pytest.mark.parametrize(
    "failure", [problem(503), problem(502), problem(429), httpx.ReadError("broken"), httpx.RemoteProtocolError("cut")]
)
def test_an_embed_that_may_have_begun_is_not_sent_again(failure: Any) -> None:
    pauses, error = converse(EMBED, [failure, ok(EMBEDDED)])
    assert isinstance(error, RAGError)
    assert pauses == []


@pytest.mark.parametrize(
    "failure", [httpx.ConnectError("no"), problem(503, **{"retry-after": "0"}), problem(429, **{"retry-after": "0"})]
)
def test_an_embed_that_was_not_begun_is_sent_again(failure: Any) -> None:
    pauses, result = converse(EMBED, [failure, ok(EMBEDDED)])
    assert result["chunks"] == 3
    assert pauses == [0.2]


@pytest.mark.parametrize(
    "failure", [problem(422), problem(403), problem(404), problem(500), problem(504), httpx.ReadTimeout("slow")]
)
def test_what_will_fail_again_is_not_tried_again(failure: Any) -> None:
    pauses, error = converse(QUERY, [failure, ok(ANSWER)])
    assert isinstance(error, RAGError)
    assert pauses == []


def test_retry_after_is_the_least_pause() -> None:
    pauses, _ = converse(QUERY, [problem(503, **{"retry-after": "7"}), ok(ANSWER)])
    assert pauses == [7.2]


def test_a_pause_that_outlasts_the_timeout_is_not_begun() -> None:
    pauses, error = converse(QUERY, [problem(429, **{"retry-after": "31"}), ok(ANSWER)])
    assert isinstance(error, RAGTooMany)
    assert error.retry_after_s == 31.0
    assert pauses == []


@pytest.mark.parametrize("value", ["soon", "-5", "Wed, 21 Oct 2015 07:28:00 -0000", ""])
def test_a_retry_after_that_cannot_be_read_is_none(value: str) -> None:
    _, error = converse(EMBED, [problem(503, **{"retry-after": value})])
    assert isinstance(error, RAGUnavailable)
    assert error.retry_after_s is None


def test_a_retry_after_in_the_past_is_now() -> None:
    _, error = converse(EMBED, [problem(503, **{"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"})] * 9)
    assert isinstance(error, RAGUnavailable)
    assert error.retry_after_s == 0.0


def test_the_service_is_asked_a_bounded_number_of_times() -> None:
    pauses, error = converse(QUERY, [problem(503)] * 99)
    assert isinstance(error, RAGUnavailable)
    assert pauses == [0.2, 0.4, 0.8, 1.6]


def test_jitter_takes_away_at_most_half_of_a_pause() -> None:
    error = RAGUnavailable("away")
    pauses = [exchange.pause_before_retry(QUERY, None, error, attempt=1, jitter=jitter) for jitter in (0.0, 0.5)]
    assert pauses == [0.1, pytest.approx(0.15)]


async def test_a_service_that_never_answers_is_a_timeout_in_time() -> None:
    async def hang(request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    started_s = asyncio.get_running_loop().time()
    async with RAGClient(timeout=0.2, transport=httpx.MockTransport(hang)) as client:
        with pytest.raises(RAGTimeout, match=r"no answer in 0\.2 s"):
            await client.query("q")
    assert asyncio.get_running_loop().time() - started_s < 5


async def test_no_service_at_all_is_unavailable() -> None:
    async with RAGClient("http://127.0.0.1:9/api/v1", timeout=0.3) as client:
        with pytest.raises(RAGUnavailable) as caught:
            await client.query("q")
    assert isinstance(caught.value.__cause__, httpx.ConnectError)
    with RAGClientSync("http://127.0.0.1:9/api/v1", timeout=0.3) as sync_client, pytest.raises(RAGUnavailable):
        sync_client.query("q")


@pytest.mark.parametrize("base_url", ["ftp://rag", "rag-service", "http://[::1", "http://x:port"])
async def test_a_base_url_that_leads_nowhere_is_invalid(base_url: str) -> None:
    async with RAGClient(base_url) as client:
        with pytest.raises(RAGInvalid):
            await client.query("q")
    with RAGClientSync(base_url) as sync_client, pytest.raises(RAGInvalid):
        sync_client.query("q")


async def test_both_clients_try_again() -> None:
    async with RAGClient(transport=Service(problem(503), ok(ANSWER)).transport) as client:
        assert (await client.query("q"))["tokens_used"] == 1500
    with RAGClientSync(transport=Service(problem(503), ok(ANSWER)).transport) as sync_client:
        assert sync_client.query("q")["tokens_used"] == 1500


# ------------------------------------------------------------------------------------------------------ import


def test_importing_the_client_loads_httpx_and_pydantic_only_and_is_quick() -> None:
    # httpx loads its command line's packages where they are installed; the base install has none of them.
    code = """
import sys, time
sys.modules.update(dict.fromkeys(("click", "rich", "pygments")))
started_s = time.process_time()
from dats_common.clients.rag import RAGClient
print(time.process_time() - started_s)
loaded = {name.partition(".")[0] for name, module in sys.modules.items() if module}
print(*(loaded - sys.stdlib_module_names))
print(*(name for name in sys.modules if name.startswith("dats_common.")))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    cpu_s, packages, own = done.stdout.splitlines()
    forbidden = {"torch", "fastapi", "lightrag", "numpy", "yaml", "sqlalchemy", "aio_pika", "qdrant_client", "uvicorn"}
    assert not forbidden & set(packages.split())
    assert {"httpx", "pydantic"} <= set(packages.split())
    assert not [
        name
        for name in own.split()
        if name.split(".")[1] not in {"clients", "contracts", "domain", "errors", "trace_context"}
    ]
    assert float(cpu_s) < 0.5
