"""A real Prometheus over a real fleet: every panel and every rule has data, and each alert fires for its fault.

The rules and the scrape configuration are the shipped ones; only times are shortened (tests/operate/shortened.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml
from conftest import skip_or_fail
from fleet import eventually, names, producer, search, text
from otlp_receiver import Receiver, open_receiver
from servers import ServerMissing

from tests.operate import faults
from tests.operate.boards import Asked, queries
from tests.operate.prometheus import SHIPPED, Prometheus, Watch, open_prometheus
from tests.operate.shortened import EVALUATE_S, LEAST_WINDOW_S, SCRAPE_S
from tests.operate.stage import Stage, open_stage
from tests.operate.work import ANSWER, OFF_TOPIC, ON_TOPIC, answers, approvals, going_on, searches, withdrawals

DATA_WITHIN_S = 90.0
FIRES_WITHIN_S = 75.0
MAY_FIRE_ON_A_WELL_FLEET = {
    "DatsRagCanaryWatchSilent",  # until the first verdict
    "DatsRagQueryLatencyHigh",  # a machine that is busy with other things is slow
}

QUERIES = queries(rate_interval_s=LEAST_WINDOW_S)
ALERTS = {
    (rule["alert"], rule["labels"].get("sign", ""))
    for group in yaml.safe_load((SHIPPED / "rules" / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
}


@pytest.mark.rabbitmq
@pytest.mark.postgres
@pytest.mark.slow
@pytest.mark.timeout(600)
# A client whose broker is stopped collects connections that it never closed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::RuntimeWarning")
async def test_every_panel_and_rule_has_data_and_each_alert_fires_for_its_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    try:
        with open_receiver() as collector:
            async with (
                open_stage(tmp_path, collector=collector.url) as stage,
                a_corpus(stage),
                open_prometheus(tmp_path / "prometheus", targets=stage.targets) as prometheus,
            ):
                ready_s = time.monotonic() - began
                stage.ollama.respond = lambda messages: ANSWER
                recorded = await a_well_fleet_has_data_everywhere_and_no_alert(stage, prometheus)
                await latencies_lead_to_traces(prometheus, collector)
                well_s = time.monotonic() - began
                watch = Watch(prometheus)
                await every_fault(stage, watch)
    except ServerMissing as missing:
        skip_or_fail(missing)
    took_s = time.monotonic() - began
    assert watch.fired.keys() == ALERTS
    for key, said in watch.said.items():
        assert said["runbook_url"].endswith(f"runbook.md#{key[0].lower()}")
        assert "no value" not in said["description"], said
        assert "error" not in said["description"], said
    with capsys.disabled():
        print(f"\n{summary(recorded)} Up after {ready_s:.0f} s, data after {well_s:.0f} s, {took_s:.0f} s in all.")


def summary(recorded: int) -> str:
    """What was looked at, in figures."""
    panels = {(each.board, each.panel) for each in QUERIES}
    server_only = {(each.board, each.panel) for each in QUERIES if each.server_only}
    boards, alerts = {board for board, _ in panels}, {name for name, _ in ALERTS}
    return (
        f"{len(boards)} dashboards, {len(panels)} panels, {len(QUERIES)} queries: all have data "
        f"but {len(server_only)} panels of a Qdrant server, whose queries are well formed. "
        f"{recorded} recording rules: all have data. {len(alerts)} alerts of {len(ALERTS)} rules: "
        "none fires while all is well, each fired for its fault."
    )


# --------------------------------------------------------------------------------------------------- while it is well


@asynccontextmanager
async def a_corpus(stage: Stage) -> AsyncIterator[None]:
    """What there is to be found, and each replica asked once: the first question of all waits for models to load."""
    stage.ollama.respond = lambda messages: ANSWER
    ids = names(6)
    async with producer(stage.fleet.amqp_url) as team:
        for artifact_id in ids:
            await team.validated(artifact_id, text(artifact_id), domain="docs")
        await team.completed(*ids)
    for replica in stage.fleet.replicas:
        async with replica.client() as client:
            assert await search(client, domain="docs")
    yield


async def a_well_fleet_has_data_everywhere_and_no_alert(stage: Stage, prometheus: Prometheus) -> int:
    """Returns the number of recording rules."""
    await eventually(lambda: _has_begun(prometheus), what="a first scrape of everything", timeout_s=DATA_WITHIN_S)
    started = time.time()
    stage.watch([replica.url for replica in stage.fleet.replicas], port=stage.watch_ports[0])
    async with (
        producer(stage.fleet.amqp_url) as team,
        going_on(searches(stage, ON_TOPIC), answers(stage), approvals(team), withdrawals(stage)),
    ):
        await _all_have_data(prometheus, started)
        recorded = await _recording_rules_have_data(prometheus, started)
    firing = await prometheus.range('ALERTS{alertstate="firing"}', start=started, end=time.time(), step_s=EVALUATE_S)
    assert {series["alertname"] for series, _ in firing} - MAY_FIRE_ON_A_WELL_FLEET == set()
    return recorded


async def latencies_lead_to_traces(prometheus: Prometheus, collector: Receiver) -> None:
    """The dots of a latency panel: Prometheus keeps trace ids with the buckets, and the collector has those traces."""
    for name in ("rag_query_latency_seconds", "rag_answer_latency_seconds"):

        async def led(name: str = name) -> bool:
            kept = await prometheus.exemplars(f"{name}_bucket", start=0, end=time.time())
            known = {span.trace_id for span in list(collector.spans)}
            return bool(kept) and bool(known.intersection(each["trace_id"] for each in kept))

        await eventually(led, what=f"an exemplar of {name}", timeout_s=DATA_WITHIN_S)


async def _has_begun(prometheus: Prometheus) -> bool:
    """Whether all was scraped that runs; before that the rules rightly say that nobody is there."""
    up = {target: answers for target, answers in (await prometheus.targets_up()).items() if "rag-verify" not in target}
    told = {rule["name"] for rule in await prometheus.rules() if rule.get("state", "inactive") != "inactive"}
    # None is known yet in the first seconds.
    return bool(up) and all(up.values()) and told <= MAY_FIRE_ON_A_WELL_FLEET


async def _all_have_data(prometheus: Prometheus, started: float) -> None:
    empty = [each for each in QUERIES if not each.server_only]

    async def has_data(asked: Asked) -> bool:
        return bool(await prometheus.range(asked.expr, start=started, end=time.time(), step_s=SCRAPE_S))

    async def done() -> bool:
        nonlocal empty
        empty = [each for each in empty if not await has_data(each)]
        return not empty

    try:
        await eventually(done, what="data", timeout_s=DATA_WITHIN_S, pause_s=2)
    except TimeoutError:
        raise AssertionError(f"no data within {DATA_WITHIN_S:.0f} s: {empty}") from None
    needless = [each for each in QUERIES if each.server_only and await has_data(each)]
    assert needless == [], "they have data: say no more that they need a server"


async def _recording_rules_have_data(prometheus: Prometheus, started: float) -> int:
    rules = await prometheus.rules()
    assert [rule for rule in rules if rule["health"] != "ok"] == []
    recording = [rule["name"] for rule in rules if rule["type"] == "recording"]
    end = time.time()
    empty = [name for name in recording if not await prometheus.range(name, start=started, end=end, step_s=SCRAPE_S)]
    assert empty == []
    return len(recording)


# --------------------------------------------------------------------------------------------------- while it is not


async def every_fault(stage: Stage, watch: Watch) -> None:
    """In an order in which one fault does not hide another; those side by side do not touch each other."""
    await what_is_wrong_with_content(stage, watch)
    await what_is_slow_or_silent(stage, watch)
    await writers_that_are_kept_from_work(stage, watch)
    await an_index_that_is_away(stage, watch)
    await a_broker_that_is_away(stage, watch)
    await a_ledger_that_is_away(stage, watch)
    await replicas_that_are_away(stage, watch)


async def what_is_wrong_with_content(stage: Stage, watch: Watch) -> None:
    """Events, index, questions, a model, a disk; and a replica without a guard beside a watch that sees it."""
    unguarded = stage.unguarded()
    stage.ollama.count_tokens = lambda messages: 3
    async with producer(stage.fleet.amqp_url) as team:
        [lost] = names(1, prefix="lost")
        await team.validated(lost, text(lost))
        await team.completed(lost)
        await faults.break_a_message(team)
        await faults.approve_after_a_taint(team)
        await faults.drift(stage.fleet, lost)
        if stage.small_disk is None:
            skip_or_fail(ServerMissing("no file system may be mounted here, so that none can be filled: run as root"))
        faults.fill_disk(stage)
        async with going_on(searches(stage, OFF_TOPIC), searches(stage, OFF_TOPIC), answers(stage)):
            await eventually(lambda: asyncio.to_thread(lambda: unguarded.is_ready), what="the replica without a guard")
            stage.watch([unguarded.url], port=stage.watch_ports[1])
            await watch.until(
                ("DatsRagDeadLetters", ""),
                ("DatsRagQuarantined", ""),
                ("DatsRagIndexDrift", "missing"),
                ("DatsRagIndexDrift", "orphaned"),
                ("DatsRagDiskLow", ""),
                ("DatsRagContextTruncated", ""),
                ("DatsRagEmptyResultsHigh", ""),
                ("DatsRagHitRateLow", ""),
                ("DatsRagStaleCanary", ""),
                timeout_s=FIRES_WITHIN_S,
            )


async def what_is_slow_or_silent(stage: Stage, watch: Watch) -> None:
    """The watches end, the model server closes, a table is locked."""
    for child in stage.beside:
        child.end()
    await stage.model_server.aclose()
    async with going_on(searches(stage, ON_TOPIC)), faults.a_busy_table(stage.fleet):
        await watch.until(
            ("DatsRagCanaryWatchSilent", ""),
            ("DatsRagOllamaDown", ""),
            ("DatsRagQueryLatencyHigh", ""),
            timeout_s=FIRES_WITHIN_S,
        )


async def writers_that_are_kept_from_work(stage: Stage, watch: Watch) -> None:
    """All writers are killed; when one is back, somebody else holds its place at the queues."""
    for writer in stage.fleet.writers:
        writer.kill9()
    waiting = names(3, prefix="waits")
    async with faults.a_foreign_consumer(stage.fleet), producer(stage.fleet.amqp_url) as team:
        for artifact_id in waiting:
            await team.validated(artifact_id, text(artifact_id))
        await watch.until(("DatsRagNoActiveWriter", "none"), timeout_s=FIRES_WITHIN_S)
        stage.fleet.writers[0].start()
        await watch.until(("DatsRagNoActiveWriter", "idle"), timeout_s=FIRES_WITHIN_S)
    await stage.fleet.all_live(waiting)


async def an_index_that_is_away(stage: Stage, watch: Watch) -> None:
    """Work cannot be done and waits; queries fail, and go on failing for the next fault."""
    assert stage.fleet.engine is not None
    stage.fleet.engine.kill9()
    async with producer(stage.fleet.amqp_url) as team, going_on(searches(stage, ON_TOPIC)):
        await faults.publish_an_old_event(team)
        await watch.until(("DatsRagQueueOld", ""), ("DatsRagQueryErrorBudgetBurn", "fast"), timeout_s=FIRES_WITHIN_S)


async def a_broker_that_is_away(stage: Stage, watch: Watch) -> None:
    """What was withdrawn is gone at once, and nobody can be told."""
    await asyncio.to_thread(stage.broker.kill9)
    await faults.withdraw(stage, "never-told")
    async with going_on(searches(stage, ON_TOPIC)):
        await watch.until(
            ("DatsRagOutboxStuck", ""),
            ("DatsRagQueryErrorBudgetBurn", "steady"),
            ("DatsRagQueryErrorBudgetBurn", "slow"),
            timeout_s=FIRES_WITHIN_S,
        )


async def a_ledger_that_is_away(stage: Stage, watch: Watch) -> None:
    """The guard cannot ask; nothing is shown. The index is back: without candidates nobody would be asked."""
    await asyncio.to_thread(stage.fleet.start_engine)
    await asyncio.to_thread(stage.postgres.stop)
    async with going_on(searches(stage, ON_TOPIC)):
        await watch.until(
            ("DatsRagGuardUnreachable", "away"), ("DatsRagGuardUnreachable", "failures"), timeout_s=FIRES_WITHIN_S
        )


async def replicas_that_are_away(stage: Stage, watch: Watch) -> None:
    """One after the other."""
    one, *others = stage.fleet.replicas
    one.kill9()
    await watch.until(("DatsRagReplicaDown", "one"), timeout_s=FIRES_WITHIN_S)
    for other in others:
        other.kill9()
    await watch.until(("DatsRagReplicaDown", "all"), timeout_s=FIRES_WITHIN_S)
