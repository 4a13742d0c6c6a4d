"""Processes of one machine, each scraped at its own address: what they say adds up, and nothing of it is shared."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from fleet import START_TIMEOUT_S, Child, Replica, bare_environment, eventually
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from scripted_ollama import ScriptedOllama, open_scripted_ollama
from servers import free_port

from dats_common.embedded.qdrant_edge import open_engine_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

REFUSED = 78
OPENMETRICS = {"Accept": "application/openmetrics-text;version=1.0.0"}


@dataclass
class Three:
    """One writer and two replicas over one SQLite ledger and an Ollama."""

    ledger: Path
    ollama: ScriptedOllama
    writer: Child
    writer_url: str
    replicas: list[Replica]

    async def read(self, url: str) -> dict[str, float]:
        """Each sample by its name, or summed over its labels."""
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            response = await client.get(f"{url}/metrics", headers=OPENMETRICS)
        assert response.headers["content-type"].startswith("application/openmetrics-text")
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(response.text):
            for sample in family.samples:
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
        return found

    async def of_replicas(self, name: str) -> list[float]:
        return [(await self.read(replica.url))[name] for replica in self.replicas]


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Three]:
    data = tmp_path / "data"
    data.mkdir()
    port = free_port()
    async with open_engine_process(data / "qdrant") as engine, open_scripted_ollama() as ollama:
        ollama.respond = lambda messages: "A report on invoices [1]."
        ollama.count_tokens = lambda messages: sum(len(each["content"]) for each in messages) // 3
        environment = bare_environment(
            DATS_DATA_DIR=str(data),
            QDRANT_HOST=engine.host,
            OLLAMA_BASE_URL=ollama.url,
            QDRANT_GRPC_PORT=str(engine.port),
            DATS_WRITER_METRICS_PORT=str(port),
        )
        with ExitStack() as children:
            writer = Child([sys.executable, "-m", "services.writer"], environment, tmp_path / "writer.log")
            children.callback(writer.end)
            replicas = []
            for number in range(2):
                http_port = free_port()
                log = tmp_path / f"replica-{number}.log"
                command = [sys.executable, "-m", "services.query"]
                url = f"http://127.0.0.1:{http_port}"
                replicas.append(Replica(command, {**environment, "PORT": str(http_port)}, log, url=url))
                children.callback(replicas[-1].end)
            for replica in replicas:
                await eventually(ready(replica), what=replica.log.name, timeout_s=START_TIMEOUT_S)

            async def consumes() -> bool:
                return writer.said("consuming") > 0

            await eventually(consumes, what="a writer", timeout_s=START_TIMEOUT_S)
            yield Three(data / "ledger.db", ollama, writer, f"http://127.0.0.1:{port}", replicas)


def ready(replica: Replica) -> Callable[[], Awaitable[bool]]:
    async def is_ready() -> bool:
        return replica.is_ready

    return is_ready


async def ask(replica: Replica, *, times: int) -> None:
    async with replica.client() as client:
        for _ in range(times):
            answer = await client.post("/api/v1/query", json={"query": "a report on invoices"})
            assert answer.status_code == 200


async def assert_answers_are_measured(three: Three, replica: Replica) -> None:
    async with replica.client() as client:
        answered = await client.post("/api/v1/answer", json={"query": "a report on invoices"})
        assert answered.status_code == 200, answered.text
    found = await three.read(replica.url)
    assert found["rag_model_tokens_total"] > 0
    assert found["rag_citations_valid_total"] == 1


async def assert_a_lost_ledger_is_seen(three: Three, replica: Replica) -> None:
    before = await three.read(replica.url)
    assert before["rag_guard_failures_total"] == 0
    with closing(sqlite3.connect(three.ledger)) as ledger:
        ledger.execute("ALTER TABLE rag_artifacts RENAME TO away")
        async with replica.client() as client:
            found = await client.post("/api/v1/query", json={"query": "a report on invoices"})
        ledger.execute("ALTER TABLE away RENAME TO rag_artifacts")
    assert found.status_code == 503
    assert (await three.read(replica.url))["rag_guard_failures_total"] == 1


async def test_what_processes_say_apart_adds_up_and_outlives_one_of_them(three: Three) -> None:
    one, two = three.replicas
    async with one.client() as client:
        for name in ("a", "b"):
            metadata = {"artifact_id": name, "project_id": "p"}
            embedded = await client.post(
                "/api/v1/embed", json={"content": "a report on invoices", "metadata": metadata}
            )
            assert embedded.json()["status"] == "indexed"
    async with two.client() as client:
        assert (await client.delete("/api/v1/embeddings/b")).json()["removed_chunks"] == 1
    await ask(one, times=3)
    await ask(two, times=5)

    assert await three.of_replicas("rag_query_latency_seconds_count") == [3, 5]
    assert await three.of_replicas("rag_invalidation_count_total") == [0, 1]
    assert await three.of_replicas("rag_index_size_total") == [1, 1], "of what is shared each says the same"
    assert await three.of_replicas("rag_embedding_chunks_created_total") == [0, 0]
    written = await three.read(three.writer_url)
    assert written["rag_embedding_chunks_created_total"] == 2
    assert written["rag_writer_active"] == 1
    assert written["rag_data_free_bytes"] > 0
    assert written["rag_queue_oldest_seconds"] == 0
    assert not {name for name in written if name.startswith("rag_query_")}
    await assert_answers_are_measured(three, one)
    await assert_a_lost_ledger_is_seen(three, one)

    one.kill9()
    one.start()
    await eventually(ready(one), what="a replica that was started again", timeout_s=START_TIMEOUT_S)
    await ask(one, times=2)
    assert await three.of_replicas("rag_query_latency_seconds_count") == [2, 5]

    port = one.environment["PORT"]
    second = Replica(one.command, one.environment, one.log.with_name("second.log"))
    assert await asyncio.to_thread(second.wait) == REFUSED
    assert f"127.0.0.1:{port}" in second.log.read_text()
    assert (await three.read(one.url))["rag_query_latency_seconds_count"] == 2, "no second process behind the port"

    third = Child(three.writer.command, three.writer.environment, one.log.with_name("third.log"))
    assert await asyncio.to_thread(third.wait) == REFUSED
    assert "set DATS_WRITER_METRICS_PORT to another" in third.log.read_text()
