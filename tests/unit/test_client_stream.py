"""An answer as a client hears it: events in order, taken up where a connection broke, and never begun twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx
import pytest

from dats_common.clients.rag import AnswerEvent, RAGClient, RAGInvalid, RAGTimeout, RAGUnavailable, RAGUnexpected
from dats_common.clients.stream import EventReader

DONE = ("done", {"id": "ans-1", "answer": "so"})
TOKEN = ("token", {"text": "so"})
FOUND = ("retrieval", {"id": "ans-1", "model": "m", "sources": []})


def lines(*events: tuple[str, Any], first: int = 1) -> str:
    return "".join(
        f"id: ans-1:{number}\nevent: {name}\ndata: {json.dumps(data)}\n\n"
        for number, (name, data) in enumerate(events, start=first)
    )


class Broken(httpx.AsyncByteStream):
    """A body that ends in a lost connection."""

    def __init__(self, text: str) -> None:
        self._text = text

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._text.encode()
        raise httpx.ReadError("connection lost")


class Silent(Broken):
    """A body that goes on for ever without a word."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._text.encode()
        await asyncio.Event().wait()


def client(handle: Callable[[httpx.Request], httpx.Response]) -> RAGClient:
    return RAGClient("http://rag/api/v1", transport=httpx.MockTransport(handle))


async def heard(rag: RAGClient, **asked: Any) -> list[tuple[str, Any]]:
    return [(event.event, event.data) async for event in rag.stream_answer("why?", **asked)]


async def test_events_come_in_order_and_end_with_the_answer() -> None:
    asked: list[Any] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append((request.url.path, json.loads(request.content), request.headers.get("last-event-id")))
        return httpx.Response(200, text=": still writing\n\n" + lines(FOUND, TOKEN, DONE))

    async with client(handle) as rag:
        assert await heard(rag, model="m", strict=True) == [FOUND, TOKEN, DONE]
    assert asked == [("/api/v1/answer/stream", {"query": "why?", "model": "m", "strict": True}, None)]


async def test_a_lost_connection_is_taken_up_behind_the_last_event() -> None:
    since: list[str | None] = []

    def handle(request: httpx.Request) -> httpx.Response:
        since.append(request.headers.get("last-event-id"))
        if len(since) == 1:
            return httpx.Response(200, stream=Broken(lines(FOUND, TOKEN)))
        return httpx.Response(200, text=lines(DONE, first=3))

    async with client(handle) as rag:
        assert await heard(rag) == [FOUND, TOKEN, DONE]
    assert since == [None, "ans-1:2"]


async def test_an_answer_of_which_nothing_was_heard_is_not_begun_again() -> None:
    calls: list[int] = []

    def handle(request: httpx.Request) -> httpx.Response:
        calls.append(1)
        raise httpx.ReadError("connection lost")

    async with client(handle) as rag:
        with pytest.raises(RAGUnavailable):
            await heard(rag)
    assert len(calls) == 1


async def test_a_stream_that_ends_without_an_end_is_an_error() -> None:
    async with client(lambda _: httpx.Response(200, text="")) as rag:
        with pytest.raises(RAGUnavailable, match="broke off"):
            await heard(rag)


async def test_a_refusal_is_raised_as_for_every_call() -> None:
    async with client(lambda _: httpx.Response(400, json={"title": "no such model", "status": 400})) as rag:
        with pytest.raises(RAGInvalid, match="no such model"):
            await heard(rag)


async def test_the_time_is_bounded_in_all() -> None:
    async with client(lambda _: httpx.Response(200, stream=Silent(lines(FOUND)))) as rag:
        events = rag.stream_answer("why?", timeout=0.05)
        assert (await anext(events)).event == "retrieval"
        with pytest.raises(RAGTimeout):
            await anext(events)


@pytest.mark.parametrize("data", ["", "not JSON", "[1]"])
async def test_data_that_cannot_be_read_is_unexpected(data: str) -> None:
    async with client(lambda _: httpx.Response(200, text=f"event: token\ndata: {data}\n\n")) as rag:
        with pytest.raises(RAGUnexpected):
            await heard(rag)


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
