"""`RAGClientSync.stream_answer` in threads, over real sockets: what it hears, and that leaving it stops the model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import closing

import httpx
import pytest
from rig import Rig, eventually
from test_answers import ASK, stored, text
from test_openapi_fuzz import served

from dats_common.clients.rag import AnswerEvent, RAGClientSync, RAGInvalid, RAGTimeout
from dats_common.contracts.answers import AnswerResponse

QUESTION = ASK["query"]


@pytest.fixture
async def replica(rig: Rig) -> AsyncIterator[httpx.AsyncClient]:
    rig.validated("invoices", text("invoices"))
    async with rig.writer():
        await rig.all_live("invoices")
    async with rig.replica() as client:
        yield client


@pytest.fixture
async def base_url(replica: httpx.AsyncClient) -> AsyncIterator[str]:
    async with served(replica._transport.app) as url:  # type: ignore[attr-defined]
        yield f"{url}/api/v1"


def listen(rag: RAGClientSync, **asked: float | str) -> list[AnswerEvent]:
    with rag:
        return list(rag.stream_answer(QUESTION, **asked))  # type: ignore[arg-type]


class BreaksOnce(httpx.HTTPTransport):
    """Sockets, of which the first one is lost after the first event."""

    def __init__(self) -> None:
        super().__init__()
        self.since: list[str | None] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.since.append(request.headers.get("last-event-id"))
        response = super().handle_request(request)
        if len(self.since) == 1:
            assert isinstance(response.stream, httpx.SyncByteStream)
            response.stream = _Breaking(response.stream)
        return response


class _Breaking(httpx.SyncByteStream):
    def __init__(self, stream: httpx.SyncByteStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        heard = b""
        for part in self._stream:
            heard += part
            yield part
            if b"\n\n" in heard:
                raise httpx.ReadError("connection lost")

    def close(self) -> None:
        self._stream.close()


async def test_a_thread_hears_the_answer_that_is_kept(rig: Rig, replica: httpx.AsyncClient, base_url: str) -> None:
    rig.model.respond = lambda assignment: [*assignment.sources[0].text, " [", "1", "]", "."]
    events = await asyncio.to_thread(listen, RAGClientSync(base_url))
    names = [event.event for event in events]
    assert (names[0], names.count("citation"), names[-1]) == ("retrieval", 1, "done")
    done = AnswerResponse.model_validate(events[-1].data)
    assert "".join(event.data["text"] for event in events if event.event == "token") == done.answer
    assert (await stored(replica, done.id)).answer == done


async def test_who_leaves_the_loop_stops_the_model(rig: Rig, base_url: str) -> None:
    rig.model.writing.hold()

    def leave(rag: RAGClientSync) -> str:
        with closing(rag.stream_answer(QUESTION)) as events:
            for event in events:
                return event.event
        raise AssertionError("it had nothing to say")

    with RAGClientSync(base_url) as rag:
        assert await asyncio.to_thread(leave, rag) == "retrieval"

        async def stopped() -> bool:
            return rig.model.stopped == 1

        await eventually(stopped)  # while the client itself is open: one loop that is left closes one connection


async def test_a_lost_connection_goes_on_with_the_same_answer(rig: Rig, base_url: str) -> None:
    rig.model.respond = lambda _: ["A report on invoices ", "with totals and dates ", "[1]."]
    rig.model.writing.hold()
    breaking = BreaksOnce()
    listening = asyncio.create_task(asyncio.to_thread(listen, RAGClientSync(base_url, transport=breaking)))

    async def came_back() -> bool:
        return len(breaking.since) == 2

    await eventually(came_back)
    rig.model.writing.open.set()
    events = await listening
    assert len(rig.model.assigned) == 1
    answer_id = events[0].data["id"]
    assert breaking.since == [None, f"{answer_id}:1"]
    assert [event.event_id for event in events] == [f"{answer_id}:{n}" for n in range(1, len(events) + 1)]
    assert (events[0].event, events[-1].event) == ("retrieval", "done")


async def test_a_source_that_falls_meanwhile_takes_it_back(rig: Rig, replica: httpx.AsyncClient, base_url: str) -> None:
    rig.model.writing.hold()
    listening = asyncio.create_task(asyncio.to_thread(listen, RAGClientSync(base_url)))
    await asyncio.wait_for(rig.model.writing.reached.wait(), 5)
    await replica.delete("/api/v1/embeddings/invoices")
    rig.model.writing.open.set()
    end = (await listening)[-1]
    assert (end.event, end.data["fallen"]) == ("withdrawn", ["invoices"])


async def test_a_model_that_is_not_done_in_time_is_a_timeout(rig: Rig, base_url: str) -> None:
    rig.model.writing.hold()
    with pytest.raises(RAGTimeout, match=r"no answer in 0\.5 s"):
        await asyncio.to_thread(listen, RAGClientSync(base_url), timeout=0.5)


async def test_a_refusal_is_the_services_own_word(base_url: str) -> None:
    with pytest.raises(RAGInvalid, match="gpt-9") as caught:
        await asyncio.to_thread(listen, RAGClientSync(base_url), model="gpt-9")
    assert caught.value.status == 400
