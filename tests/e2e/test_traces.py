"""Whole traces of real processes, as a real collector gets them: writer, replica, RabbitMQ, PostgreSQL, and an Ollama
that follows a script. Every parent is looked at, and every byte for words that nobody may tell."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import aio_pika
import httpx
import pytest
from fleet import CONFIGURATION, Fleet, create_database, eventually, names, purge
from otlp_receiver import Receiver, Span, open_receiver, tree
from scripted_ollama import open_scripted_ollama
from servers import PostgresServer, RabbitServer

from dats_common.contracts.topology import EVENTS_EXCHANGE
from dats_common.telemetry.tracing.attributes import ATTRIBUTES

pytestmark = [pytest.mark.rabbitmq, pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(240)]

SAMPLED = "01"
MODEL = "all-MiniLM-L6-v2"
EMBEDDINGS = f"embeddings {MODEL}"


def canary(what: str) -> str:
    return f"canary{what}{secrets.token_hex(8)}"


CONTENT, TITLE, QUERY, KEY, ID, REASON = (canary(what) for what in ("content", "title", "query", "key", "id", "reason"))


@pytest.fixture(scope="module")
def collector() -> Iterator[Receiver]:
    with open_receiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def ollama_url() -> Iterator[str]:
    """A scripted Ollama on an event loop of its own: it outlives the tests' loops."""
    loop, found = asyncio.new_event_loop(), asyncio.Queue[str]()
    stop = asyncio.Event()

    async def serve() -> None:
        async with open_scripted_ollama() as server:
            server.respond = lambda messages: f"The report on invoices says {CONTENT} [1]."
            server.count_tokens = lambda messages: sum(len(each["content"]) // 4 for each in messages)
            found.put_nowait(server.url)
            await stop.wait()

    import threading

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    yield asyncio.run_coroutine_threadsafe(found.get(), loop).result(10)
    loop.call_soon_threadsafe(stop.set)
    thread.join(10)
    loop.close()


@pytest.fixture(scope="module")
def fleet(
    rabbitmq: RabbitServer,
    postgres: PostgresServer,
    collector: Receiver,
    ollama_url: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Fleet]:
    async def prepare() -> str:
        await purge(rabbitmq.url)
        return await create_database(postgres.url)

    made = Fleet(tmp_path_factory.mktemp("traces"), sql_url=asyncio.run(prepare()), amqp_url=rabbitmq.url)
    (made.base / "rag-service.yaml").write_text(CONFIGURATION)
    made.environment |= {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "OTEL_SERVICE_NAME": "rag-under-test",
        "OLLAMA_BASE_URL": ollama_url,
    }
    try:
        made.start(writers=1, replicas=1)
        yield made
    finally:
        made.end()


class Publisher:
    """Another team's process that traces, with whatever library: it sends ids in headers and hears ours."""

    def __init__(self, exchange: aio_pika.abc.AbstractExchange) -> None:
        self._exchange = exchange
        self._heard: dict[tuple[str, str], list[str]] = {}

    async def publish(self, routing_key: str, data: Mapping[str, Any], *, flags: str = SAMPLED) -> tuple[str, str]:
        """Returns the ids of the publisher's span."""
        trace_id, span_id = secrets.token_hex(16), secrets.token_hex(8)
        message = aio_pika.Message(
            json.dumps({"data": dict(data)}).encode(),
            headers={"traceparent": f"00-{trace_id}-{span_id}-{flags}"},
            message_id=ID,
        )
        await self._exchange.publish(message, routing_key)
        return trace_id, span_id

    async def heard(self, routing_key: str, artifact_id: str) -> list[str]:
        """The ids in the header of the event about this artifact: trace, span, flags."""

        async def there() -> bool:
            return (routing_key, artifact_id) in self._heard

        await eventually(there, what=f"{routing_key} about {artifact_id}", pause_s=0.01)
        return self._heard[routing_key, artifact_id]

    async def hear(self, message: aio_pika.abc.AbstractIncomingMessage) -> None:
        """Remember the trace of an event by its type and the artifacts that it is about."""
        data = json.loads(message.body)["data"]
        for artifact_id in (data.get("artifact_id"), *data.get("artifact_ids", ())):
            self._heard[message.routing_key or "", artifact_id] = str(message.headers["traceparent"]).split("-")[1:]
        await message.ack()


@pytest.fixture
async def publisher(fleet: Fleet) -> AsyncIterator[Publisher]:
    async with await aio_pika.connect(fleet.amqp_url, timeout=10) as connection, connection.channel() as channel:
        exchange = await channel.get_exchange(EVENTS_EXCHANGE)
        answers = await channel.declare_queue(exclusive=True, auto_delete=True)
        await answers.bind(exchange, "embedding.*")
        found = Publisher(exchange)
        await answers.consume(found.hear)
        yield found


@pytest.fixture
async def client(fleet: Fleet) -> AsyncIterator[httpx.AsyncClient]:
    async with fleet.replicas[0].client() as client:
        yield client


def approved(artifact_id: str) -> dict[str, Any]:
    content = f"A report on invoices with totals and dates. It says {CONTENT}, and is called {artifact_id}."
    return {"artifact_id": artifact_id, "content": content, "metadata": {"project_id": "p", "title": TITLE}}


def caller() -> tuple[str, str, dict[str, str]]:
    trace_id, span_id = secrets.token_hex(16), secrets.token_hex(8)
    return trace_id, span_id, {"traceparent": f"00-{trace_id}-{span_id}-01"}


def only(spans: list[Span], name: str) -> Span:
    (found,) = [span for span in spans if span.name == name]
    return found


WORK = {
    "admit ledger": {},
    "rag.index": {EMBEDDINGS: {}, "write_chunks ledger": {}, "store dats_embeddings": {}},
    "flip ledger": {},
}


async def test_an_event_is_one_trace_from_its_publishers_headers_to_the_published_event(
    fleet: Fleet, collector: Receiver, publisher: Publisher
) -> None:
    (artifact,) = names(1)
    trace_id, span_id = await publisher.publish("task.validated", approved(artifact))
    heard = await publisher.heard("embedding.completed", artifact)
    assert (heard[0], heard[2]) == (trace_id, SAMPLED)
    spans = await collector.trace_with(trace_id, "process rag-service-events")
    assert tree(spans, below=span_id) == {"process rag-service-events": WORK | {"send task.events": {}}}
    process, sent = only(spans, "process rag-service-events"), only(spans, "send task.events")
    assert heard[1] == sent.span_id
    assert {span.role for span in spans} == {"writer"}
    assert process.resource["service.name"] == "rag-under-test"
    assert (process.kind, sent.kind) == ("CONSUMER", "PRODUCER")
    assert process.attributes["messaging.destination.name"] == "rag-service-events"
    assert process.attributes["messaging.system"] == "rabbitmq"
    assert process.attributes["rag.settlement"] == "acknowledged"
    assert sent.attributes["messaging.rabbitmq.destination.routing_key"] == "embedding.completed"
    encode = only(spans, EMBEDDINGS)
    assert encode.attributes["gen_ai.operation.name"] == "embeddings"
    assert encode.attributes["gen_ai.request.model"] == MODEL
    assert only(spans, "admit ledger").attributes["db.system.name"] == "postgresql"
    assert only(spans, "store dats_embeddings").attributes["db.system.name"] == "qdrant"
    assert all(process.started_ns <= span.started_ns <= span.ended_ns for span in spans)
    assert not any(span.is_error for span in spans)


async def test_events_that_are_handled_together_keep_their_traces_and_are_linked_with_the_batchs(
    fleet: Fleet, collector: Receiver, publisher: Publisher
) -> None:
    artifacts = names(8)
    published = await asyncio.gather(*(publisher.publish("task.validated", approved(each)) for each in artifacts))
    for artifact, (trace_id, _) in zip(artifacts, published, strict=True):
        assert (await publisher.heard("embedding.completed", artifact))[0] == trace_id

    def batched(span: Span) -> bool:
        return span.name == "rag.batch" and {trace for trace, _ in span.links} <= {trace for trace, _ in published}

    batch = await collector.one(batched, what="a batch of these events")
    assert not batch.parent_id
    assert batch.attributes["messaging.batch.message_count"] == len(batch.links) >= 2
    work = await collector.trace_with(batch.trace_id, "flip ledger")
    assert tree(work, below=batch.span_id) == WORK
    for trace_id, span_id in batch.links:
        spans = await collector.trace_with(trace_id, "process rag-service-events", "send task.events")
        above = dict(published)[trace_id]
        assert tree(spans, below=above) == {"process rag-service-events": {"send task.events": {}}}
        process = only(spans, "process rag-service-events")
        assert (process.span_id, process.links) == (span_id, ((batch.trace_id, batch.span_id),))


async def test_a_taint_is_one_trace_to_the_event_that_confirms_it(
    fleet: Fleet, collector: Receiver, publisher: Publisher
) -> None:
    (artifact,) = names(1)
    await publisher.publish("task.validated", approved(artifact))
    await publisher.heard("embedding.completed", artifact)
    trace_id, span_id = await publisher.publish("artifact.tainted", {"artifact_ids": [artifact], "reason": REASON})
    assert (await publisher.heard("embedding.invalidated", artifact))[0] == trace_id
    spans = await collector.trace_with(trace_id, "process rag-service-taints", "forget ledger")
    swept = {"generations dats_embeddings": {}, "kept ledger": {}, "remove dats_embeddings": {}, "forget ledger": {}}
    done = tree(spans, below=span_id)["process rag-service-taints"]
    assert done.pop("taint ledger") == {"send task.events": {}}
    assert done == {"recall evidence": {}, **swept}


async def test_what_cannot_be_read_is_an_error_in_its_publishers_trace(
    fleet: Fleet, collector: Receiver, publisher: Publisher
) -> None:
    trace_id, _ = await publisher.publish("task.validated", {"artifact_id": CONTENT * 40, "content": [CONTENT]})
    spans = await collector.trace_with(trace_id, "process rag-service-events", "send task.events")
    process = only(spans, "process rag-service-events")
    assert (process.is_error, process.attributes["rag.settlement"]) == (True, "dead_lettered")
    assert only(spans, "send task.events").attributes["messaging.rabbitmq.destination.routing_key"] == (
        "embedding.failed"
    )


async def test_a_publisher_that_does_not_record_is_not_recorded_and_its_ids_go_on(
    fleet: Fleet, collector: Receiver, publisher: Publisher
) -> None:
    (artifact,) = names(1)
    trace_id, _ = await publisher.publish("task.validated", approved(artifact), flags="00")
    heard = await publisher.heard("embedding.completed", artifact)
    assert (heard[0], heard[2]) == (trace_id, "00")
    (other,) = names(1)
    recorded, _ = await publisher.publish("task.validated", approved(other))  # sent after it
    await publisher.heard("embedding.completed", other)
    await collector.trace_with(recorded, "process rag-service-events")
    assert collector.trace(trace_id) == []


async def test_content_that_is_embedded_over_http_is_one_trace_through_both_processes(
    fleet: Fleet, collector: Receiver, publisher: Publisher, client: httpx.AsyncClient
) -> None:
    (artifact,) = names(1)
    trace_id, span_id, headers = caller()
    data = approved(artifact)
    body = {"content": data["content"], "metadata": {**data["metadata"], "artifact_id": artifact}}
    assert (await client.post("/api/v1/embed", json=body, headers=headers)).json()["status"] == "indexed"
    assert (await publisher.heard("embedding.completed", artifact))[0] == trace_id
    spans = await collector.trace_with(trace_id, "POST /api/v1/embed", "process rag-service-commands")
    processed = {"process rag-service-commands": WORK | {"send task.events": {}}}
    assert tree(spans, below=span_id) == {"POST /api/v1/embed": {"send rag.commands": processed}}
    assert {span.role for span in spans} == {"query", "writer"}


async def test_a_taint_over_http_is_one_trace_too(
    fleet: Fleet, collector: Receiver, publisher: Publisher, client: httpx.AsyncClient
) -> None:
    (artifact,) = names(1)
    trace_id, span_id, headers = caller()
    assert (await client.delete(f"/api/v1/embeddings/{artifact}", headers=headers)).is_success
    assert (await publisher.heard("embedding.invalidated", artifact))[0] == trace_id
    spans = await collector.trace_with(trace_id, "send task.events")
    route = "DELETE /api/v1/embeddings/{artifact_id:path}"
    assert tree(spans, below=span_id)[route]["taint ledger"] == {"send task.events": {}}


SEARCHED = {EMBEDDINGS: {}, "search dats_embeddings": {}, "read ledger": {}, "still_live ledger": {}}


@pytest.fixture
async def shelf(publisher: Publisher) -> str:
    (artifact,) = names(1)
    await publisher.publish("task.validated", approved(artifact))
    await publisher.heard("embedding.completed", artifact)
    return artifact


async def test_a_query_is_one_trace_with_the_attributes_of_the_specification(
    collector: Receiver, client: httpx.AsyncClient, shelf: str
) -> None:
    trace_id, span_id, headers = caller()
    question = f"the report on invoices {QUERY} {shelf}"
    asked = {"query": question, "max_tokens": 900, "filters": {"artifact_ids": [shelf]}}
    answer = (await client.post("/api/v1/query", json=asked, headers=headers | {"X-API-Key": KEY})).json()
    assert len(answer["sources"]) == 1
    spans = await collector.trace_with(trace_id, "POST /api/v1/query")
    assert tree(spans, below=span_id) == {"POST /api/v1/query": {"rag.query": SEARCHED}}
    told = only(spans, "rag.query").attributes
    assert told == {
        "rag.query.mode": "hybrid",
        "rag.query.max_tokens": 900,
        "rag.query.results_count": 1,
        "rag.query.tokens_used": answer["tokens_used"],
        "rag.query.dropped": 0,
    }
    request = only(spans, "POST /api/v1/query")
    assert request.kind == "SERVER"
    assert request.attributes == {
        "http.request.method": "POST",
        "http.route": "/api/v1/query",
        "http.response.status_code": 200,
    }
    assert only(spans, "search dats_embeddings").attributes["rag.legs"] == "dense sparse"
    assert only(spans, "read ledger").attributes["rag.kept"] == 1


@pytest.mark.parametrize("path", ["/api/v1/answer", "/api/v1/answer/stream"])
async def test_an_answer_is_one_trace_through_the_model(
    collector: Receiver, client: httpx.AsyncClient, shelf: str, path: str
) -> None:
    trace_id, span_id, headers = caller()
    asked = {"query": f"What does the report on invoices say? {QUERY} {shelf}"}  # a question of its own: none is cached
    answer = await client.post(path, json=asked, headers=headers)
    assert answer.status_code == 200
    assert CONTENT in answer.text
    spans = await collector.trace_with(trace_id, f"POST {path}")
    model = [span for span in spans if span.name == "chat llama3.2"]
    draft, rating = model
    (made,) = tree(spans, below=span_id)[f"POST {path}"].items()
    assert made[0] == "rag.answer"
    assert made[1].keys() >= {"rag.query", "chat llama3.2", "keep evidence"}
    assert made[1]["rag.query"].keys() >= {EMBEDDINGS, "search dats_embeddings", "read ledger"}
    whole = only(spans, "rag.answer")
    assert {draft.parent_id, rating.parent_id} == {whole.span_id}
    assert whole.attributes.keys() == {"rag.answer.action", "rag.answer.confidence", "rag.answer.citations"}
    assert {draft.kind, rating.kind} == {"CLIENT"}
    assert draft.attributes | {"gen_ai.response.time_to_first_chunk": 0, "rag.items": 0} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "ollama",
        "gen_ai.request.model": "llama3.2",
        "gen_ai.response.model": "llama3.2",
        "gen_ai.request.max_tokens": 1024,
        "gen_ai.request.temperature": 0.1,
        "gen_ai.output.type": "text",
        "gen_ai.usage.input_tokens": draft.attributes["gen_ai.usage.input_tokens"],
        "gen_ai.usage.output_tokens": draft.attributes["gen_ai.usage.output_tokens"],
        "gen_ai.response.time_to_first_chunk": 0,
        "rag.purpose": "answer",
        "rag.items": 0,
    }
    assert rating.attributes["rag.purpose"] == "rating"
    request = only(spans, f"POST {path}")
    assert request.started_ns <= whole.started_ns <= draft.started_ns <= draft.ended_ns <= whole.ended_ns


async def test_a_caller_without_a_trace_begins_one_and_a_false_header_is_none(
    collector: Receiver, client: httpx.AsyncClient, shelf: str
) -> None:
    zeros = f"00-{'0' * 32}-{'0' * 16}-01"
    before = {span.span_id for span in collector.spans}
    for header in ({}, {"traceparent": CONTENT}, {"traceparent": zeros}):
        assert (await client.post("/api/v1/query", json={"query": QUERY}, headers=header)).status_code == 200

    def new(span: Span) -> bool:
        return span.name == "POST /api/v1/query" and not span.parent_id and span.span_id not in before

    async with asyncio.timeout(20):
        while len({span.trace_id for span in collector.spans if new(span)}) < 3:
            await asyncio.sleep(0.05)


async def test_no_span_holds_what_somebody_wrote_and_every_attribute_is_listed(
    fleet: Fleet, collector: Receiver, client: httpx.AsyncClient, publisher: Publisher
) -> None:
    """Last: over all that came. Refusals and failures are the likeliest to quote something."""
    await client.post("/api/v1/query", json={"query": [QUERY], QUERY: QUERY})
    await client.get(f"/api/v1/nope/{QUERY}?q={QUERY}", headers={"X-API-Key": KEY})
    await client.request(CONTENT.upper(), f"/api/v1/answers/{ID}")
    await client.post("/api/v1/answer", json={"query": QUERY, "model": CONTENT})
    assert fleet.engine is not None
    fleet.engine.kill9()
    trace_id, _, headers = caller()
    assert (await client.post("/api/v1/query", json={"query": QUERY}, headers=headers)).status_code == 503
    failed = await collector.trace_with(trace_id, "POST /api/v1/query")
    assert {span.name for span in failed if span.is_error} >= {"POST /api/v1/query", "rag.query"}
    assert only(failed, "rag.query").attributes["error.type"] == "IndexUnavailable"
    fleet.start_engine()
    fleet.stop()  # what was in the queue is sent
    words = [CONTENT, TITLE, QUERY, KEY, REASON, CONTENT.upper()]
    assert [word for word in words if any(word.encode() in raw for raw in collector.raw)] == []
    assert ID.encode() in b"".join(collector.raw), "an id that looks like one is told, and would be found"
    assert {name for span in collector.spans for name in span.attributes} <= ATTRIBUTES.keys()
    assert not any(span.events for span in collector.spans), "an exception's message would be an event"
