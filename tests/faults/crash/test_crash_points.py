"""A writer dies, or stands still until another has taken over, at each named point: nothing is lost, nothing stale.

Real processes over RabbitMQ, PostgreSQL and the embedded engine. One fleet lives through all points, and a replica is
asked without pause all the while; the last tests judge the whole run. `DATS_TEST_CRASH_ROUNDS` repeats it (1).
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from fleet import create_database, eventually, purge
from servers import PostgresServer, RabbitServer

from crash.points import POINTS, Mode, Point, Work
from crash.scene import Scene, missing, open_scene

pytestmark = [
    pytest.mark.rabbitmq,
    pytest.mark.postgres,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="module"),
]

ROUNDS = int(os.environ.get("DATS_TEST_CRASH_ROUNDS", "1"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(
    rabbitmq: RabbitServer, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    await purge(rabbitmq.url)
    sql_url = await create_database(postgres.url)
    async with open_scene(tmp_path_factory.mktemp("crash"), sql_url=sql_url, amqp_url=rabbitmq.url) as opened:
        yield opened


@pytest.mark.parametrize("round_", range(ROUNDS))
@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("point", POINTS, ids=str)
async def test_another_writer_goes_on_where_one_died_or_stood_still(
    scene: Scene, point: Point, mode: Mode, round_: int
) -> None:
    hits = len(scene.record.hits)
    await scene.hurt(point, mode)
    assert len(scene.record.hits) == hits + 1


async def test_afterwards_nothing_is_lost(scene: Scene) -> None:
    await scene.settled()
    record, team = scene.record, scene.team
    live = await scene.fleet.live([*record.stay, *record.gone])
    assert missing(record.stay, live, record.stay) == {}
    await team.completed(*record.stay)
    completed = {(data["artifact_id"], data["generation"]) for data in team.data("embedding.completed")}
    assert {pair: record.stay[pair[0]] for pair in live.items() if pair not in completed} == {}
    await team.invalidated(*record.gone)
    letters = await scene.dead_letters()
    assert {word for word in record.poison for letter in letters if word.encode() in letter} == {*record.poison}
    assert all(any(word.encode() in letter for word in record.poison) for letter in letters)
    assert len(team.data("embedding.failed")) >= len(record.poison)


async def test_meanwhile_nothing_was_stale(scene: Scene) -> None:
    record = scene.record
    assert scene.stale() == []
    assert await scene.fleet.live(record.gone) == {}
    # The run has looked where it matters: tainted artifacts had been visible, and an unguarded read would have shown
    # some after their taint was acknowledged.
    were_visible = {artifact for artifact, label in record.gone.items() if label.startswith(Work.TAINT)}
    assert were_visible <= {artifact for _, seen in record.looks for artifact in seen}
    assert record.windows
    print(f"{len(record.hits)} points, {len(record.looks)} queries, windows: {sorted(set(record.windows))}")


async def test_afterwards_every_artifact_is_shown_once_and_the_index_holds_nothing_else(scene: Scene) -> None:
    record = scene.record
    assert await scene.shown_chunks() == dict.fromkeys(((artifact, 0) for artifact in record.stay), 1)
    ids = [*record.stay, *record.gone]
    live = await scene.fleet.live(ids)

    async def swept() -> bool:
        return await scene.fleet.indexed(ids) == {artifact: {number} for artifact, number in live.items()}

    await eventually(swept, what="an index without dead generations", pause_s=0.5)


async def test_no_writer_ended_but_where_it_was_told_to(scene: Scene) -> None:
    told = {name: log for name, log in scene.fleet.logs().items() if "Traceback" in log}
    assert told == {}
