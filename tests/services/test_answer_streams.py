"""What is counted of streams, and which answer a stream that is taken up again may go on with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from rig import Rig
from structlog.testing import capture_logs
from test_answers import ASK, QUESTION, events_of, streamed, text
from test_http import assert_problem

from dats_common.errors import LLMConnectionError
from services.query.event_stream import MOST_EVENTS
from services.query.services import QueryServices

OTHER = "a report on orders"


@pytest.fixture
async def replica(rig: Rig) -> AsyncIterator[httpx.AsyncClient]:
    rig.validated("invoices", text("invoices"))
    async with rig.writer():
        await rig.all_live("invoices")
    async with rig.replica() as client:
        yield client


def services_of(client: httpx.AsyncClient) -> QueryServices:
    services: QueryServices = client._transport.app.state.services  # type: ignore[attr-defined]
    return services


def counted(client: httpx.AsyncClient, name: str, **labels: str) -> float:
    return services_of(client).metrics.registry.get_sample_value(name, labels) or 0.0


def latencies(client: httpx.AsyncClient) -> float:
    return counted(client, "rag_answer_latency_seconds_count")


async def resumed(client: httpx.AsyncClient, event_id: str, **asked: Any) -> httpx.Response:
    return await client.post("/api/v1/answer/stream", json={**ASK, **asked}, headers={"Last-Event-ID": event_id})


# ----------------------------------------------------------------------------------------------------------- counting


async def test_a_stream_is_counted_like_a_whole_answer(replica: httpx.AsyncClient) -> None:
    await streamed(replica)
    assert latencies(replica) == 1
    await replica.post("/api/v1/answer", json=ASK)
    assert latencies(replica) == 2
    assert counted(replica, "rag_answers_total", action="CITE", grounded="true") == 2


async def test_a_streams_time_goes_from_the_request_to_its_last_event(rig: Rig, replica: httpx.AsyncClient) -> None:
    rig.model.writing.hold()
    asking = asyncio.create_task(streamed(replica))
    await asyncio.wait_for(rig.model.writing.reached.wait(), 5)
    assert latencies(replica) == 0
    await asyncio.sleep(0.2)
    rig.model.writing.open.set()
    await asking
    assert counted(replica, "rag_answer_latency_seconds_sum") >= 0.2


async def test_a_stream_that_fails_is_counted_whether_it_had_begun_or_not(rig: Rig, replica: httpx.AsyncClient) -> None:
    rig.model.error = LLMConnectionError("the model broke off")
    assert (await streamed(replica))[-1][0] == "error"
    assert latencies(replica) == 1
    rig.model.missing = LLMConnectionError("nobody listens")
    assert_problem(await replica.post("/api/v1/answer/stream", json=ASK), 503)
    assert latencies(replica) == 2


async def test_a_stream_that_is_withdrawn_is_counted_and_logged(rig: Rig, replica: httpx.AsyncClient) -> None:
    rig.model.respond = lambda _: ["Paid "] * 3
    rig.model.writing.hold()
    with capture_logs() as logs:
        asking = asyncio.create_task(streamed(replica))
        await asyncio.wait_for(rig.model.writing.reached.wait(), 5)
        await replica.delete("/api/v1/embeddings/invoices")
        rig.model.writing.open.set()
        name, _, data = (await asking)[-1]
    assert name == "withdrawn"
    assert counted(replica, "rag_answers_total", action="WITHDRAWN", grounded="false") == 1
    assert latencies(replica) == 1
    (entry,) = [each for each in logs if each["event"] == "answer_withdrawn"]
    assert (entry["answer_id"], entry["artifact_count"]) == (data["id"], 1)


# ----------------------------------------------------------------------------------------------------- taking up again


async def test_an_answer_that_is_kept_is_no_answer_to_another_question(replica: httpx.AsyncClient) -> None:
    last_id = (await streamed(replica))[-1][1]
    problem = assert_problem(await resumed(replica, last_id, query=OTHER), 422)
    assert "another question" in problem.detail
    assert [name for name, _, _ in events_of((await resumed(replica, last_id)).text)] == ["done"]


async def test_an_answer_that_is_being_written_is_no_answer_to_another_question(
    rig: Rig, replica: httpx.AsyncClient
) -> None:
    rig.model.writing.hold()
    stream = services_of(replica).streams.begin(QUESTION)
    await asyncio.wait_for(rig.model.writing.reached.wait(), 5)
    problem = assert_problem(await resumed(replica, f"{stream.answer_id}:1", query=OTHER), 422)
    assert "another question" in problem.detail
    rig.model.writing.open.set()
    assert events_of((await resumed(replica, f"{stream.answer_id}:1")).text)[-1][0] == "done"


async def test_a_number_that_was_never_sent_is_refused_and_none_is_sent_that_would_be(
    replica: httpx.AsyncClient,
) -> None:
    answer_id = (await streamed(replica))[-1][2]["id"]
    for number in (MOST_EVENTS + 1, 999_999_999, 1_000_000_000):
        assert_problem(await resumed(replica, f"{answer_id}:{number}"), 422)
    last_id = f"{answer_id}:{MOST_EVENTS - 1}"
    for _ in range(3):
        ((name, last_id, _),) = events_of((await resumed(replica, last_id)).text)
        assert name == "done"
