"""A few hundred events under every kind of fault, judged like the long runs; and that a seed decides the plan."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from servers import PostgresCluster, PostgresServer, RabbitNode, RabbitServer

from tests.faults.chaos.check import judge_files
from tests.faults.chaos.plan import FaultKind, Kind, build_plan
from tests.faults.chaos.run import HISTORY, SNAPSHOT, progress, run
from tests.faults.chaos.sizes import LONG, scaled

EVENTS = int(os.environ.get("DATS_TEST_CHAOS_EVENTS", "600"))
SEED = int(os.environ.get("DATS_TEST_CHAOS_SEED", "7"))


@pytest.mark.rabbitmq
@pytest.mark.postgres
@pytest.mark.slow
@pytest.mark.timeout(1500)
# The library's connection, dropped half open and collected in another thread, cannot close itself.
@pytest.mark.filterwarnings("ignore:coroutine 'Connection.close' was never awaited")
async def test_a_fleet_under_every_kind_of_fault_loses_nothing_and_shows_nothing_stale(
    rabbitmq: RabbitServer, postgres: PostgresServer, tmp_path: Path
) -> None:
    if not isinstance(rabbitmq, RabbitNode) or not isinstance(postgres, PostgresCluster):
        pytest.skip("the servers that were named cannot be killed")
    plan = build_plan(SEED, scaled(EVENTS))
    await run(plan, node=rabbitmq, postgres=postgres, out=tmp_path, say=progress)
    judged = judge_files(tmp_path / HISTORY, tmp_path / SNAPSHOT)
    assert {kind: cases for kind, cases in judged.violations.items() if cases} == {}, judged.figures
    assert judged.figures["faults"].keys() == {*FaultKind}
    assert judged.figures["checked results"] > EVENTS
    assert judged.figures["tainted artifacts asked for and not shown"] > EVENTS


def test_a_seed_decides_events_and_faults() -> None:
    assert build_plan(3, scaled(600)) == build_plan(3, scaled(600))
    assert build_plan(3, scaled(600)) != build_plan(4, scaled(600))


def test_the_long_version_is_the_attack_that_was_promised() -> None:
    plan = build_plan(1, LONG)
    events = [event for event in plan.events if event.kind is not Kind.POISON]
    taints = sum(event.kind in (Kind.TAINT, Kind.HTTP_TAINT) and not event.copy for event in events)
    faults = Counter(fault.kind for fault in plan.faults)
    assert len(events) == pytest.approx(20_000, abs=10)
    assert sum(event.copy for event in events) / len(events) == pytest.approx(0.20, abs=0.01)
    assert taints / len(events) == pytest.approx(0.30, abs=0.01)
    assert plan.taints_first >= 1000
    assert faults[FaultKind.KILL_WRITER] + faults[FaultKind.KILL_REPLICA] == 100
    assert faults[FaultKind.PAUSE_WRITER] + faults[FaultKind.PAUSE_REPLICA] == 30
    assert (faults[FaultKind.KILL_BROKER], faults[FaultKind.CLOSE_CONNECTIONS]) == (10, 20)
    assert (faults[FaultKind.RESTART_POSTGRES], faults[FaultKind.KILL_ENGINE]) == (5, 10)


@pytest.mark.parametrize("events", [200, 600, 20_000])
def test_every_kind_of_fault_comes_in_a_plan_of_any_size_and_in_order(events: int) -> None:
    plan = build_plan(1, scaled(events))
    assert {fault.kind for fault in plan.faults} == {*FaultKind}
    assert [fault.at for fault in plan.faults] == sorted(fault.at for fault in plan.faults)
    assert all(0 < fault.at < 1 for fault in plan.faults)
