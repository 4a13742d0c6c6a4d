"""Each metric moves when what it tells of really happens."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from office import Office
from prometheus_client.parser import text_string_to_metric_families
from rig import LEDGER_AWAY, Rig, Words, eventually
from scripted_ollama import open_scripted_ollama
from sqlalchemy.engine import make_url

from dats_common.adapters.ollama.generator import Timeouts, open_ollama
from dats_common.adapters.sql.evidence import open_evidence
from dats_common.adapters.sql.identity import open_key_store
from dats_common.adapters.sql.ledger import open_ledger
from dats_common.adapters.sql.owners import open_owners
from dats_common.adapters.support.judge import ModelJudge
from dats_common.contracts.api import CANARY_PROJECT
from dats_common.contracts.topology import ARTIFACT_TAINTED, TAINTS_QUEUE, VALIDATED_QUEUE
from dats_common.domain.grounding import Pair
from dats_common.domain.model import ArtifactKey
from dats_common.errors import LLMConnectionError
from dats_common.fingerprint import fingerprint
from dats_common.maintenance.sweep import Sweeper
from dats_common.records import Heartbeat
from dats_common.telemetry.in_hand import MeasuredBus
from dats_common.telemetry.replica_metrics import QueryMetrics
from services.query.services import QueryServices

DAY_S = 86_400.0


class Scrape:
    """One look at a replica's /metrics."""

    def __init__(self, text: str) -> None:
        self._samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def __call__(self, name: str, **labels: str) -> float:
        """The sum of the samples that have these labels. Raises: AssertionError: there are none."""
        found = [each.value for each in self._samples if each.name == name and labels.items() <= each.labels.items()]
        assert found, f"no {name} with {labels}"
        return sum(found)


async def scrape(client: httpx.AsyncClient) -> Scrape:
    return Scrape((await client.get("/metrics")).text)


async def ask(client: httpx.AsyncClient, query: str = "a report with totals", **more: Any) -> httpx.Response:
    return await client.post("/api/v1/query", json={"query": query, **more})


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()


def written(rig: Rig, name: str, **labels: str) -> float:
    """Of the rig's writer."""
    found = rig.writer_metrics.registry.get_sample_value(name, labels)
    assert found is not None, name
    return found


@pytest.fixture
async def replica(rig: Rig) -> AsyncIterator[httpx.AsyncClient]:
    """Two documents, one of which was approved a hundred days ago."""
    rig.validated("invoices", "a report on invoices with totals", time=ago(100 * DAY_S))
    rig.validated("cache", "the cache keeps answers for five minutes")
    async with rig.writer():
        await rig.all_live("invoices", "cache")
    async with rig.replica() as client:
        yield client


# ------------------------------------------------------------------------------------------------------------ queries


async def test_queries_are_told_apart_by_what_was_found(replica: httpx.AsyncClient) -> None:
    before = await scrape(replica)
    await ask(replica, "a report on invoices with totals", search_mode="vector", top_k=4)
    await ask(replica, "zebra quagga", search_mode="vector")
    after = await scrape(replica)

    def moved(name: str, **labels: str) -> float:
        return after(name, **labels) - before(name, **labels)

    assert moved("rag_query_outcomes_total", mode="vector", outcome="hit") == 1
    assert moved("rag_query_outcomes_total", mode="vector", outcome="empty") == 1
    assert moved("rag_query_outcomes_total") == 2
    assert moved("rag_query_best_similarity_bucket", mode="vector", le="0.0") == 1, "the empty one"
    assert moved("rag_query_best_similarity_sum", mode="vector") == pytest.approx(1.0, abs=0.01)
    assert moved("rag_query_results_count_bucket", mode="vector", le="0.0") == 1
    shown = moved("rag_query_results_count_sum", mode="vector")
    assert moved("rag_query_top_k_coverage_sum", mode="vector") == shown / 4


async def test_what_only_has_the_terms_is_no_hit(rig: Rig, replica: httpx.AsyncClient) -> None:
    """A long question: far from the document as a whole, but it has half of its words."""
    services: QueryServices = replica._transport.app.state.services  # type: ignore[attr-defined]
    services.engine.min_similarity = 0.99
    before = await scrape(replica)
    await ask(replica, "report on invoices")
    after = await scrape(replica)
    assert after("rag_query_outcomes_total", outcome="weak") - before("rag_query_outcomes_total", outcome="weak") == 1


async def test_looks_for_canaries_are_no_questions_that_find_nothing(replica: httpx.AsyncClient) -> None:
    before = await scrape(replica)
    await ask(replica, "zebra quagga", search_mode="vector", project_id=CANARY_PROJECT)
    after = await scrape(replica)
    assert after("rag_query_outcomes_total") == before("rag_query_outcomes_total")
    name = "rag_query_latency_seconds_count"
    assert after(name) - before(name) == 1, "but they take time"


async def test_sources_have_the_age_of_their_version(replica: httpx.AsyncClient) -> None:
    await ask(replica, "a report on invoices with totals", filters={"artifact_ids": ["invoices"]})
    found = await scrape(replica)
    assert found("rag_query_source_age_seconds_count") == 1
    assert found("rag_query_source_age_seconds_sum") == pytest.approx(100 * DAY_S, abs=600)
    assert found("rag_query_source_age_seconds_bucket", le="7.776e+06") == 0


async def test_routes_have_their_failures_at_0_before_any_request(replica: httpx.AsyncClient) -> None:
    found = await scrape(replica)
    for route in ("/api/v1/query", "/api/v1/answer", "/api/v1/embeddings/{artifact_id:path}", "/metrics"):
        for status in ("200", "500", "503", "504"):
            assert found("rag_http_requests_total", route=route, status=status) == 0


async def test_paths_and_statuses_from_outside_make_no_series(replica: httpx.AsyncClient) -> None:
    for number in range(60):
        await replica.get(f"/api/v1/{number}")
        await replica.delete(f"/api/v1/embeddings/a{number}")
        await ask(replica, tenant_id=f"tenant-{number}")
    text = (await replica.get("/metrics")).text
    assert "tenant-" not in text
    counted = {line.split('"')[1] for line in text.splitlines() if line.startswith("rag_http_requests_total{")}
    described = {
        path.replace("{artifact_id}", "{artifact_id:path}")
        for path in (await replica.get("/openapi.json")).json()["paths"]
    }
    assert counted == {*described, "/metrics", "none"}


# -------------------------------------------------------------------------------------------------------------- guard


async def test_a_search_that_cannot_ask_the_ledger_is_a_guard_failure(rig: Rig, replica: httpx.AsyncClient) -> None:
    async with rig.replica(ledger=LEDGER_AWAY) as blind:
        assert (await ask(blind)).status_code == 503
        found = await scrape(blind)
    assert found("rag_guard_failures_total", step="read") == 1
    assert found("rag_dependency_up", dependency="ledger") == 0
    assert (await scrape(replica))("rag_guard_failures_total") == 0


@asynccontextmanager
async def on_postgres(url: str, *, timeout_s: float) -> AsyncIterator[Rig]:
    async with (
        open_ledger(url, timeout_s=timeout_s) as ledger,
        open_evidence(url, timeout_s=timeout_s) as evidence,
        open_owners(url, timeout_s=timeout_s) as owners,
    ):
        rig = Rig(ledger, evidence, owners)
        await rig.index.prepare(await fingerprint(rig.encoder))
        rig.validated("invoices", "a report on invoices with totals")
        async with rig.writer():
            await rig.all_live("invoices")
        yield rig


@pytest.mark.postgres
@pytest.mark.parametrize("deadline_s", [5.0, 1.2])
async def test_a_database_that_hangs_is_a_guard_failure_whoever_gives_up_first(
    postgres_url: str, deadline_s: float
) -> None:
    """The ledger's own timeout is 2 s; the second time the query's deadline comes before it."""
    async with on_postgres(postgres_url, timeout_s=2.0) as rig, rig.replica(deadline_s=deadline_s) as client:
        admin = await asyncpg.connect(make_url(postgres_url).set(drivername="postgresql").render_as_string(False))
        try:
            async with admin.transaction():
                await admin.execute("LOCK TABLE rag_artifacts, rag_writers IN ACCESS EXCLUSIVE MODE")
                assert (await ask(client)).status_code in (503, 504)
                found = await scrape(client)
        finally:
            await admin.close()
        assert found("rag_guard_failures_total", step="read") == 1
        assert found("rag_dependency_up", dependency="ledger") == 0
        assert (await ask(client)).status_code == 200
        again = await scrape(client)
        assert again("rag_dependency_up", dependency="ledger") == 1
        assert again("rag_guard_failures_total") == 1


@pytest.mark.postgres
async def test_a_database_that_goes_away_before_an_answer_is_kept_is_a_guard_failure(postgres_url: str) -> None:
    url = make_url(postgres_url).set(drivername="postgresql")
    admin = await asyncpg.connect(url.set(database="postgres").render_as_string(False))
    patient = {"deadline_s": 60.0, "answer_deadline_s": 60.0}
    async with on_postgres(postgres_url, timeout_s=2.0) as rig, rig.replica(**patient) as client:
        rig.model.rated.hold()
        asking = asyncio.create_task(client.post("/api/v1/answer", json={"query": "a report on invoices"}))
        await asyncio.wait_for(rig.model.rated.reached.wait(), 20)
        try:
            await admin.execute(f"ALTER DATABASE {url.database} ALLOW_CONNECTIONS false")
            end_all = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1"
            await admin.execute(end_all, url.database)
            rig.model.rated.open.set()
            assert (await asking).status_code == 503
            found = await scrape(client)
        finally:
            await admin.execute(f"ALTER DATABASE {url.database} ALLOW_CONNECTIONS true")
            await admin.close()
        assert found("rag_guard_failures_total", step="keep") == 1
        assert found("rag_dependency_up", dependency="ledger") == 0


async def test_a_login_that_cannot_be_looked_up_is_a_guard_failure(rig: Rig, tmp_path: Path) -> None:
    async with open_key_store(f"sqlite:///{tmp_path / 'ledger.db'}") as keys:
        key = await Office(rig, keys).key("reader")
    async with Office(rig, LEDGER_AWAY).replica() as client:
        refused = await client.post("/api/v1/query", json={"query": "x"}, headers={"X-API-Key": str(key)})
        assert refused.status_code == 503
        assert (await scrape(client))("rag_guard_failures_total", step="credentials") == 1


# ------------------------------------------------------------------------------------------------------------ answers


async def test_citations_are_counted_as_they_stand_in_the_answer(rig: Rig, replica: httpx.AsyncClient) -> None:
    rig.model.respond = lambda _: ["Paid [1]. Owed [99]. Paid twice [1]."]
    found = await replica.post("/api/v1/answer", json={"query": "a report on invoices"})
    assert found.status_code == 200
    counted = await scrape(replica)
    assert counted("rag_citations_valid_total") == 2
    assert counted("rag_citations_refused_total") == 1


async def test_tokens_are_the_model_servers_count_of_drafts_ratings_and_verdicts(rig: Rig, replica: object) -> None:
    timeouts = Timeouts(total_s=5.0, first_token_s=5.0, rating_s=5.0)
    metrics = QueryMetrics()
    async with (
        open_scripted_ollama() as server,
        open_ollama(
            server.url, timeouts=timeouts, concurrent=2, queue=2, keep_alive_s=60, spent=metrics.spent
        ) as generator,
        rig.replica(generator=generator) as client,
    ):
        counted: list[int] = []

        def count(messages: Any) -> int:
            counted.append(sum(len(each["content"].split()) for each in messages))
            return counted[-1]

        server.count_tokens = count
        server.respond = lambda messages: "A report on invoices with totals [1]."
        assert (await client.post("/api/v1/answer", json={"query": "invoices"})).status_code == 200
        judge = ModelJudge(generator, counter=Words(), model="llama3.2", window_tokens=8192, timeout_s=5.0)
        await judge.score([Pair("Totals are due.", ("A report on invoices with totals.",))])

        def tokens(kind: str) -> float:
            labels = {"model": "llama3.2", "kind": kind}
            return metrics.registry.get_sample_value("rag_model_tokens_total", labels) or 0.0

        assert len(server.chats) == 3, "draft, rating and verdict"
        assert tokens("prompt") == sum(counted)
        assert tokens("completion") > 0


async def test_an_answer_whose_source_falls_is_counted_as_recalled(rig: Rig, replica: httpx.AsyncClient) -> None:
    answered = await replica.post("/api/v1/answer", json={"query": "a report on invoices with totals"})
    assert answered.json()["citations"]
    await replica.delete("/api/v1/embeddings/invoices")

    async def recalled() -> bool:
        return (await scrape(replica))("rag_answers_recalled_total") == 1

    await eventually(recalled)


async def test_a_writer_counts_the_answers_that_it_recalls(rig: Rig, replica: httpx.AsyncClient) -> None:
    await replica.post("/api/v1/answer", json={"query": "a report on invoices with totals"})
    rig.tainted("invoices")
    async with rig.writer():
        await rig.settled()
    assert written(rig, "rag_answers_recalled_total") == 1


# ------------------------------------------------------------------------------------------------------------- taints


async def test_a_taint_over_http_is_timed_from_the_request(replica: httpx.AsyncClient) -> None:
    await replica.delete("/api/v1/embeddings/invoices")
    found = await scrape(replica)
    assert found("rag_taint_to_invisible_seconds_count") == 1
    assert 0 < found("rag_taint_to_invisible_seconds_sum") < 20


async def test_a_taint_that_names_its_time_is_timed_from_then(rig: Rig, replica: httpx.AsyncClient) -> None:
    body = b'{"time": "%s", "data": {"artifact_id": "invoices"}}' % ago(40).encode()
    rig.bus.inject(ARTIFACT_TAINTED, body)
    rig.tainted("cache")
    async with rig.writer():
        await rig.settled()
    assert written(rig, "rag_taint_to_invisible_seconds_count") == 2
    assert 40 <= written(rig, "rag_taint_to_invisible_seconds_sum") < 60
    assert written(rig, "rag_taint_to_invisible_seconds_bucket", le="30.0") == 1, "the one without a time"
    assert written(rig, "rag_invalidation_count_total", reason="taint") == 2


# ------------------------------------------------------------------------------------------------- ledger and index


async def test_drift_is_points_against_live_chunks_both_ways(rig: Rig, replica: httpx.AsyncClient) -> None:
    assert (await scrape(replica))("rag_index_drift_points") == 0
    rig.index.switch.away = True  # nothing is swept
    await replica.delete("/api/v1/embeddings/invoices")
    rig.index.switch.away = False
    assert (await scrape(replica))("rag_index_drift_points") == 1
    await Sweeper(ledger=rig.ledger, index=rig.index).sweep_all()
    assert (await scrape(replica))("rag_index_drift_points") == 0
    key = ArtifactKey("default", "cache")
    await rig.index.remove(key, sorted((await rig.index.generations([key]))[key]))
    assert (await scrape(replica))("rag_index_drift_points") == -1


@pytest.mark.parametrize("path", ["/metrics", "/api/v1/metrics"])
async def test_whoever_accepts_openmetrics_gets_it(replica: httpx.AsyncClient, path: str) -> None:
    plain = await replica.get(path)
    asked = await replica.get(path, headers={"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.3"})
    assert plain.headers["content-type"].startswith("text/plain")
    assert asked.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert asked.text.endswith("# EOF\n")


async def test_what_is_away_is_said_without_any_traffic(rig: Rig, replica: httpx.AsyncClient) -> None:
    names = ("ledger", "index", "encoder", "broker", "ollama")

    def up(found: Scrape) -> dict[str, float]:
        return {name: found("rag_dependency_up", dependency=name) for name in names}

    assert set(up(await scrape(replica)).values()) == {1}
    rig.index.switch.away = rig.bus.switch.away = True
    rig.model.missing = LLMConnectionError("nobody listens")
    assert up(await scrape(replica)) == {"ledger": 1, "index": 0, "encoder": 1, "broker": 0, "ollama": 0}
    rig.index.switch.away = rig.bus.switch.away = False
    rig.model.missing = None
    assert set(up(await scrape(replica)).values()) == {1}


async def test_an_ollama_that_was_stopped_is_down_at_the_next_scrape(rig: Rig) -> None:
    timeouts = Timeouts(connect_s=0.5)
    async with open_scripted_ollama() as server:
        opening = open_ollama(server.url, timeouts=timeouts, concurrent=1, queue=1, keep_alive_s=60)
        generator = await opening.__aenter__()
        async with rig.replica(generator=generator) as client:
            assert (await scrape(client))("rag_dependency_up", dependency="ollama") == 1
    async with rig.replica(generator=generator) as client:
        assert (await scrape(client))("rag_dependency_up", dependency="ollama") == 0
    await opening.__aexit__(None, None, None)


# -------------------------------------------------------------------------------------------------- writers and queues


def beat(state: Any) -> Heartbeat:
    return Heartbeat("writer", state, pending=0, processing=0, model="m", backend="b")


async def test_a_replica_tells_whether_a_writer_reports(tmp_path: Path) -> None:
    now = 1_767_268_800_000_000
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    async with (
        open_ledger(url, clock=lambda: now) as ledger,
        open_evidence(url) as evidence,
        open_owners(url) as owners,
    ):
        rig = Rig(ledger, evidence, owners)
        await rig.index.prepare(await fingerprint(rig.encoder))
        async with rig.replica() as client:

            async def state() -> tuple[str, float]:
                found = await scrape(client)
                names = ("active", "standby", "draining", "none")
                is_now = {name for name in names if found("rag_writer_state", state=name)}
                assert len(is_now) == 1
                return is_now.pop(), found("rag_writer_heartbeat_age_seconds")

            assert await state() == ("none", float("inf"))
            for said in ("standby", "active", "draining"):
                await ledger.beat(beat(said))
                assert await state() == (said, 0.0)
            await ledger.beat(beat("active"))
            now += 20_000_000
            assert await state() == ("none", 20.0)


async def test_messages_that_wait_without_a_writer_grow_old_at_a_replica(rig: Rig, replica: httpx.AsyncClient) -> None:
    async def oldest(queue: str) -> float:
        return (await scrape(replica))("rag_queue_oldest_seconds", queue=queue)

    assert await oldest(VALIDATED_QUEUE) == 0
    rig.validated("late", "another report")
    first = await oldest(VALIDATED_QUEUE)

    async def grows() -> bool:
        return await oldest(VALIDATED_QUEUE) > first

    await eventually(grows)
    assert await oldest(TAINTS_QUEUE) == 0
    await rig.bus.command({"data": {}}, event_id="command")
    assert (await scrape(replica))("rag_embedding_queue_size") == 2, "an event and a command"
    await rig.ledger.beat(beat("standby"))
    assert await oldest(VALIDATED_QUEUE) == 0, "a writer reports: it knows better"


async def test_what_a_writer_has_in_hand_is_as_old_as_it_says(rig: Rig) -> None:
    def oldest(queue: str) -> float:
        return written(rig, "rag_queue_oldest_seconds", queue=queue)

    rig.encoder.documents.hold()
    rig.validated("a", "a report on invoices", time=ago(300))
    async with rig.writer():
        await asyncio.wait_for(rig.encoder.documents.reached.wait(), 20)
        assert 300 <= oldest(VALIDATED_QUEUE) < 330
        assert oldest(TAINTS_QUEUE) == 0
        rig.encoder.documents.open.set()
        await rig.settled()

        async def done() -> bool:
            return oldest(VALIDATED_QUEUE) == 0

        await eventually(done)


async def test_the_brokers_time_of_a_message_goes_before_its_own(rig: Rig) -> None:
    """As when QA publishes an old approval again: the message has not waited for a year."""
    rig.encoder.documents.hold()
    data = {"artifact_id": "a", "content": "x", "metadata": {"project_id": "p"}}
    body = json.dumps({"time": "2025-01-01T00:00:00Z", "data": data}).encode()
    rig.bus.inject("task.validated", body, timestamp=int((time.time() - 50) * 1e6))
    async with rig.writer():
        await asyncio.wait_for(rig.encoder.documents.reached.wait(), 20)
        assert 50 <= written(rig, "rag_queue_oldest_seconds", queue=VALIDATED_QUEUE) < 80


async def test_what_was_given_back_or_failed_is_not_in_hand_any_more(rig: Rig) -> None:
    rig.bus.inject("task.validated", b"not JSON")
    async with rig.writer():
        await rig.dead_letters(1)
        await rig.settled()
    assert written(rig, "rag_queue_oldest_seconds", queue=VALIDATED_QUEUE) == 0
    assert written(rig, "rag_deliveries_not_acknowledged_total", queue=VALIDATED_QUEUE, how="DeadLetter") == 1


# ------------------------------------------------------------------------------------------------------ this machine


def test_the_disk_of_a_directory_that_is_yet_to_be_made_is_seen(tmp_path: Path) -> None:
    metrics = QueryMetrics()
    metrics.watch_disk(tmp_path / "not" / "yet")
    free = metrics.registry.get_sample_value("rag_data_free_bytes")
    real = shutil.disk_usage(tmp_path)
    assert free is not None
    assert free == pytest.approx(real.free, abs=2**30)
    assert metrics.registry.get_sample_value("rag_data_size_bytes") == real.total


def test_each_process_says_which_release_it_runs_and_what_it_takes() -> None:
    metrics = QueryMetrics()
    assert metrics.registry.get_sample_value("rag_build_info", {"version": version("dats-rag")}) == 1
    assert (metrics.registry.get_sample_value("process_resident_memory_bytes") or 0) > 1_000_000


async def test_the_oldest_counts_whatever_was_handed_out_before_it(rig: Rig) -> None:
    rig.encoder.documents.hold()
    bare = {"data": {"artifact_id": "bare", "content": "x", "metadata": {"project_id": "p"}}}
    rig.bus.inject("task.validated", json.dumps(bare).encode())
    rig.validated("a", "a report on invoices", time=ago(300))
    async with rig.writer():
        await asyncio.wait_for(rig.encoder.documents.reached.wait(), 20)
        assert 300 <= written(rig, "rag_queue_oldest_seconds", queue=VALIDATED_QUEUE) < 330


async def test_a_message_without_a_time_that_comes_again_is_as_old_as_when_it_came_first(rig: Rig) -> None:
    def oldest() -> float:
        return written(rig, "rag_queue_oldest_seconds", queue=VALIDATED_QUEUE)

    rig.bus.inject("task.validated", b"{}")
    async with MeasuredBus(rig.bus, rig.writer_metrics).subscribe(VALIDATED_QUEUE, prefetch=1) as subscription:
        [first] = await subscription.batch(max_items=1, max_wait_s=20)
        await eventually(lambda: asyncio.sleep(0, oldest() > 0.1))
        before = oldest()
        await subscription.give_back(first)
        assert oldest() == 0
        [again] = await subscription.batch(max_items=1, max_wait_s=20)
        assert oldest() >= before
        await subscription.ack(again)
        assert oldest() == 0
