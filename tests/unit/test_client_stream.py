"""An answer as both clients hear it: events in order, taken up where a connection broke, and never begun twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import httpx
import pytest

from dats_common.clients.exchange import answer_call
from dats_common.clients.rag import (
    AnswerEvent,
    RAGClient,
    RAGClientSync,
    RAGInvalid,
    RAGTimeout,
    RAGUnavailable,
    RAGUnexpected,
)
from dats_common.clients.stream import EventReader, Listening

DONE = ("done", {"id": "ans-1", "answer": "so"})
TOKEN = ("token", {"text": "so"})
FOUND = ("retrieval", {"id": "ans-1", "model": "m", "sources": []})

Handle = Callable[[httpx.Request], httpx.Response]
Heard = list[tuple[str, Any]]
Ask = Callable[..., Awaitable[Heard]]


def lines(*events: tuple[str, Any], first: int = 1) -> str:
    return "".join(
        f"id: ans-1:{number}\nevent: {name}\ndata: {json.dumps(data)}\n\n"
        for number, (name, data) in enumerate(events, start=first)
    )


class Broken(httpx.AsyncByteStream, httpx.SyncByteStream):
    """A body that ends in a lost connection."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __iter__(self) -> Iterator[bytes]:
        yield self._text.encode()
        raise httpx.ReadError("connection lost")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self:
            yield part


class Silent(httpx.AsyncByteStream):
    """A body that goes on for ever without a word."""

    def __init__(self, text: str) -> None:
        self._text = text

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._text.encode()
        await asyncio.Event().wait()


class Endless(httpx.SyncByteStream):
    """A body that says for ever that there is more to come; `closed` once nobody reads it."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        yield self._text.encode()
        while True:
            yield b": still writing\n\n"

    def close(self) -> None:
        self.closed = True


def client(handle: Handle) -> RAGClient:
    return RAGClient("http://rag/api/v1", transport=httpx.MockTransport(handle))


def client_sync(handle: Handle) -> RAGClientSync:
    return RAGClientSync("http://rag/api/v1", transport=httpx.MockTransport(handle))


async def _heard(handle: Handle, **asked: Any) -> Heard:
    async with client(handle) as rag:
        return [(event.event, event.data) async for event in rag.stream_answer("why?", **asked)]


async def _heard_sync(handle: Handle, **asked: Any) -> Heard:
    with client_sync(handle) as rag:
        return [(event.event, event.data) for event in rag.stream_answer("why?", **asked)]


@pytest.fixture(params=[_heard, _heard_sync], ids=["async", "sync"])
def heard(request: pytest.FixtureRequest) -> Ask:
    """Asks with one of the clients."""
    ask: Ask = request.param
    return ask


async def test_events_come_in_order_and_end_with_the_answer(heard: Ask) -> None:
    asked: list[Any] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append((request.url.path, json.loads(request.content), request.headers.get("last-event-id")))
        return httpx.Response(200, text=": still writing\n\n" + lines(FOUND, TOKEN, DONE))

    assert await heard(handle, model="m", strict=True) == [FOUND, TOKEN, DONE]
    assert asked == [("/api/v1/answer/stream", {"query": "why?", "model": "m", "strict": True}, None)]


async def test_a_lost_connection_is_taken_up_behind_the_last_event(heard: Ask) -> None:
    since: list[str | None] = []

    def handle(request: httpx.Request) -> httpx.Response:
        since.append(request.headers.get("last-event-id"))
        if len(since) == 1:
            return httpx.Response(200, stream=Broken(lines(FOUND, TOKEN)))
        return httpx.Response(200, text=lines(DONE, first=3))

    assert await heard(handle) == [FOUND, TOKEN, DONE]
    assert since == [None, "ans-1:2"]


async def test_an_answer_of_which_nothing_was_heard_is_not_begun_again(heard: Ask) -> None:
    calls: list[int] = []

    def handle(request: httpx.Request) -> httpx.Response:
        calls.append(1)
        raise httpx.ReadError("connection lost")

    with pytest.raises(RAGUnavailable):
        await heard(handle)
    assert len(calls) == 1


@pytest.mark.parametrize("is_there", [False, True], ids=["away", "busy"])
async def test_an_answer_that_was_not_begun_is_asked_for_again(heard: Ask, is_there: bool) -> None:
    since: list[str | None] = []

    def handle(request: httpx.Request) -> httpx.Response:
        since.append(request.headers.get("last-event-id"))
        if len(since) > 1:
            return httpx.Response(200, text=lines(FOUND, DONE))
        if is_there:
            return httpx.Response(503, headers={"retry-after": "0"})
        raise httpx.ConnectError("nobody listens")

    assert await heard(handle) == [FOUND, DONE]
    assert since == [None, None]


def test_a_service_that_always_breaks_off_is_asked_a_bounded_number_of_times() -> None:
    listening = Listening(answer_call("why?"), 60.0, clock=lambda: 0.0, jitter=lambda: 1.0)
    listening.heard(AnswerEvent("retrieval", {}, "ans-1:1"))
    assert [listening.pause_s(httpx.ReadError("lost")) for _ in range(4)] == [0.2, 0.4, 0.8, 1.6]
    with pytest.raises(RAGUnavailable):
        listening.pause_s(httpx.ReadError("lost"))


def test_a_pause_that_outlasts_the_timeout_is_not_begun() -> None:
    listening = Listening(answer_call("why?"), 0.1, clock=lambda: 0.0, jitter=lambda: 1.0)
    listening.heard(AnswerEvent("retrieval", {}, "ans-1:1"))
    with pytest.raises(RAGUnavailable, match="broke off"):
        listening.pause_s(None)


async def test_a_stream_that_ends_without_an_end_is_an_error(heard: Ask) -> None:
    with pytest.raises(RAGUnavailable, match="broke off"):
        await heard(lambda _: httpx.Response(200, text=""))


async def test_a_refusal_is_raised_as_for_every_call(heard: Ask) -> None:
    with pytest.raises(RAGInvalid, match="no such model"):
        await heard(lambda _: httpx.Response(400, json={"title": "no such model", "status": 400}))


async def test_the_time_is_bounded_in_all() -> None:
    async with client(lambda _: httpx.Response(200, stream=Silent(lines(FOUND)))) as rag:
        events = rag.stream_answer("why?", timeout=0.05)
        assert (await anext(events)).event == "retrieval"
        with pytest.raises(RAGTimeout):
            await anext(events)


def test_the_time_is_bounded_in_all_also_without_a_loop() -> None:
    endless = Endless(lines(FOUND))
    with client_sync(lambda _: httpx.Response(200, stream=endless)) as rag:
        events = rag.stream_answer("why?", timeout=0.05)
        assert next(events).event == "retrieval"
        with pytest.raises(RAGTimeout):
            next(events)
    assert endless.closed


def test_who_stops_listening_closes_the_connection() -> None:
    endless = Endless(lines(FOUND, TOKEN))
    with client_sync(lambda _: httpx.Response(200, stream=endless)) as rag:
        with closing(rag.stream_answer("why?")) as events:
            assert next(events).event == "retrieval"
            assert not endless.closed
        assert endless.closed


def test_an_error_in_the_callers_loop_closes_the_connection() -> None:
    endless = Endless(lines(FOUND, TOKEN))
    with client_sync(lambda _: httpx.Response(200, stream=endless)) as rag:

        def listen() -> None:
            for _ in rag.stream_answer("why?"):
                raise LookupError

        with pytest.raises(LookupError):
            listen()
        assert endless.closed


async def test_a_misspelt_option_is_refused_before_anything_is_sent(heard: Ask) -> None:
    with pytest.raises(TypeError, match="modle"):
        await heard(lambda _: httpx.Response(200, text=lines(DONE)), modle="m")


@pytest.mark.parametrize("base_url", ["ftp://rag", "rag-service", "http://[::1", "http://x:port"])
async def test_a_base_url_that_leads_nowhere_is_invalid(base_url: str) -> None:
    async with RAGClient(base_url) as rag:
        with pytest.raises(RAGInvalid):
            await anext(rag.stream_answer("why?"))
    with RAGClientSync(base_url) as rag_sync, pytest.raises(RAGInvalid):
        next(rag_sync.stream_answer("why?"))


@pytest.mark.parametrize("data", ["", "not JSON", "[1]"])
async def test_data_that_cannot_be_read_is_unexpected(heard: Ask, data: str) -> None:
    with pytest.raises(RAGUnexpected):
        await heard(lambda _: httpx.Response(200, text=f"event: token\ndata: {data}\n\n"))


def test_events_of_a_newer_service_are_passed_over() -> None:
    reader = EventReader()
    read: Sequence[AnswerEvent | None] = [
        reader.read(line) for line in (lines(("novelty", {})) + lines(TOKEN)).split("\n")
    ]
    assert [event.event for event in read if event] == ["token"]


async def test_whether_an_answer_stands_is_asked_by_its_id() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        assert request.url.raw_path == b"/api/v1/answers/ans-1?tenant_id=t%2F1"
        stored = {"id": "ans-1", "status": "withdrawn", "created_at": "2026-01-01T00:00:00Z", "question": "why?"}
        return httpx.Response(200, json={**stored, "answer": None, "fallen": ["a"]})

    async with client(handle) as rag:
        assert (await rag.get_answer("ans-1", tenant_id="t/1")).fallen == ["a"]
        assert not await rag.is_standing("ans-1", tenant_id="t/1")
