"""How soon the standby works when the active writer is killed, stuck or hung.

The figures are measured from the fault to `embedding.completed` of a document that was published after it.
`DATS_TEST_FAILOVERS` sets how often each fault is repeated (2); the bounds here leave room for a busy machine.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio
from crash.points import Armed, Control, Hook, Mode
from crash.scene import add_crash_writer
from fleet import Child, Fleet, Producer, create_database, eventually, names, producer, purge, text
from servers import PostgresServer, RabbitServer

from services.writer.progress import EXIT_CODE

pytestmark = [
    pytest.mark.rabbitmq,
    pytest.mark.postgres,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
]

ROUNDS = int(os.environ.get("DATS_TEST_FAILOVERS", "2"))
HEARTBEAT_S = 4
WATCHDOG_S = 3.0
SLACK_S = 4.0
"""For a machine that does other things as well; the figures on docs/reliability.md come from a quieter one."""

CONFIGURATION = f"""\
events:
  sweep_interval_s: 2
  watchdog_s: {WATCHDOG_S}
  rabbitmq:
    heartbeat_s: {HEARTBEAT_S}
embedding:
  threads: 1
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(
    rabbitmq: RabbitServer, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Fleet]:
    await purge(rabbitmq.url)
    base = tmp_path_factory.mktemp("failover")
    started = Fleet(base, sql_url=await create_database(postgres.url), amqp_url=rabbitmq.url)
    (base / "rag-service.yaml").write_text(CONFIGURATION)
    (base / "control").mkdir()
    try:
        await asyncio.to_thread(started.start_engine)
        for _ in range(2):
            add_crash_writer(started, base / "control")
        await asyncio.to_thread(started.wait_until_up)
        yield started
    finally:
        started.end()


@pytest_asyncio.fixture(loop_scope="module")
async def team(fleet: Fleet) -> AsyncIterator[Producer]:
    async with producer(fleet.amqp_url) as found:
        yield found


@pytest.fixture
def control(fleet: Fleet) -> Control:
    return Control(fleet.base / "control")


async def active(fleet: Fleet, team: Producer, control: Control) -> Child:
    """The writer that handles events now: it is seen at work. (A displaced one may still call itself active.)"""
    (artifact,) = names(1)
    control.arm(Armed(Hook.ADMITTED, Mode.BLOCK, artifact))
    await team.validated(artifact, text(artifact))
    pid = await hit(control)
    control.release()
    await team.completed(artifact)
    return next(child for child in fleet.writers if child.process.pid == pid)


async def hit(control: Control) -> int:
    """Process id of the writer that came to the armed point."""

    async def marked() -> bool:
        return control.hit_by is not None

    await eventually(marked, what="a writer at the point", pause_s=0.005)
    pid = control.hit_by
    assert pid is not None
    return pid


async def next_completed(team: Producer, *, since: float) -> float:
    """Publish a document; seconds from `since` (monotonic) until it is searchable."""
    (artifact,) = names(1)
    await team.validated(artifact, text(artifact))
    await team.completed(artifact)
    return next(
        moment - since
        for moment, (event, body) in zip(team.heard_at, team.heard, strict=True)
        if event == "embedding.completed" and body["data"]["artifact_id"] == artifact
    )


async def repeated(what: str, once: Callable[[], Awaitable[float]]) -> list[float]:
    """The seconds that each round took, printed for docs/reliability.md."""
    took_s = [await once() for _ in range(ROUNDS)]
    median_s, worst_s = statistics.median(took_s), max(took_s)
    print(f"{what}: median {median_s:.2f} s, worst {worst_s:.2f} s, n = {len(took_s)}")
    return took_s


async def test_the_standby_works_at_once_when_the_active_writer_is_killed(
    fleet: Fleet, team: Producer, control: Control
) -> None:
    async def once() -> float:
        victim = await active(fleet, team, control)
        since = time.monotonic()
        await asyncio.to_thread(victim.kill9)
        took_s = await next_completed(team, since=since)
        await asyncio.to_thread(fleet.revive)
        return took_s

    took_s = await repeated("kill -9", once)
    assert statistics.median(took_s) < 1.0 + SLACK_S


async def test_a_stuck_handler_is_given_up_by_the_watchdog_while_others_move_on(
    fleet: Fleet, team: Producer, control: Control
) -> None:
    async def once() -> float:
        stuck, *others = names(60)
        victim = await active(fleet, team, control)
        control.arm(Armed(Hook.ADMITTED, Mode.BLOCK, stuck))
        await team.validated(stuck, text(stuck))
        assert await hit(control) == victim.process.pid
        since = time.monotonic()
        steady = asyncio.create_task(_steadily(team, others), name="steady")
        await team.completed(stuck)
        took_s = time.monotonic() - since
        await steady
        assert await asyncio.to_thread(victim.wait) == EXIT_CODE
        await asyncio.to_thread(fleet.revive)
        return took_s

    took_s = await repeated(f"stuck handler, watchdog {WATCHDOG_S:g} s", once)
    assert min(took_s) >= WATCHDOG_S - 0.5, "it was not stuck"
    assert statistics.median(took_s) < WATCHDOG_S + 1.0 + SLACK_S


async def _steadily(team: Producer, artifacts: list[str]) -> None:
    """A document every tenth of a second: the writer's other batch never rests."""
    for artifact in artifacts:
        await team.validated(artifact, text(artifact))
        await asyncio.sleep(0.1)
    await team.completed(*artifacts)


async def test_a_hung_process_is_given_up_within_three_heartbeats(
    fleet: Fleet, team: Producer, control: Control
) -> None:
    async def once() -> float:
        victim = await active(fleet, team, control)
        since = time.monotonic()
        victim.pause()
        took_s = await next_completed(team, since=since)
        # Resumed, it may find itself fenced, or be ended by its watchdog: either way somebody starts a new one.
        await asyncio.to_thread(victim.kill9)
        await asyncio.to_thread(fleet.revive)
        return took_s

    took_s = await repeated(f"SIGSTOP, heartbeat {HEARTBEAT_S} s", once)
    assert min(took_s) > 1.0, "it did not hang"
    assert max(took_s) < 3 * HEARTBEAT_S + SLACK_S
