"""The soak's arithmetic, and its load for a minute: nothing is left open. The slopes of memory need the long run."""

from __future__ import annotations

import os
import random
import socket
import statistics
from pathlib import Path

import pytest
from servers import PostgresServer, RabbitServer

from tests.faults.chaos.run import progress
from tests.faults.soak.figures import CONNECTIONS, FILES, MIB, SOCKETS, THREADS, Growth, Sample, growth, theil_sen
from tests.faults.soak.probe import look_at
from tests.faults.soak.run import soak

DURATION_S = float(os.environ.get("DATS_TEST_SOAK_S", "60"))
SLACK = 6
"""Files, sockets or connections that may be open at one moment and not at another: pools breathe."""


@pytest.mark.rabbitmq
@pytest.mark.postgres
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_minute_of_mixed_load_leaves_no_file_socket_thread_or_connection_open(
    rabbitmq: RabbitServer, postgres: PostgresServer
) -> None:
    soaked = await soak(rabbitmq=rabbitmq, postgres=postgres, duration_s=DURATION_S, say=progress)
    assert min(soaked.done[what] for what in ("events", "embeds", "taints", "taints over AMQP", "queries")) > 0
    left_open = {
        (process, what): (before, after)
        for process, what in {(sample.process, sample.what) for sample in soaked.samples}
        if what in {FILES, SOCKETS, THREADS, CONNECTIONS}
        for before, after in [_middle_and_end(soaked.samples, process, what)]
        if after > before + SLACK
    }
    assert left_open == {}


def _middle_and_end(samples: list[Sample], process: str, what: str) -> tuple[float, float]:
    """Medians of the second and of the last quarter."""
    values = [sample.value for sample in samples if (sample.process, sample.what) == (process, what)]
    quarter = len(values) // 4
    return statistics.median(values[quarter : 2 * quarter]), statistics.median(values[-quarter:])


def test_a_slope_is_that_of_most_points() -> None:
    line = [(x, 3.0 * x + 5.0) for x in range(50)]
    outliers = [(x, 1000.0) for x in range(0, 50, 5)]
    assert theil_sen(line) == pytest.approx(3.0)
    assert theil_sen(sorted(line + outliers)) == pytest.approx(3.0, rel=0.1)
    assert theil_sen([(1.0, 1.0)]) == 0.0


@pytest.mark.parametrize(("mib_per_hour", "is_good"), [(0.0, True), (30.0, True), (90.0, False)])
def test_growth_beyond_the_bound_is_told_and_warming_up_is_not_growth(mib_per_hour: float, is_good: bool) -> None:
    rng = random.Random(1)
    samples = [
        Sample(t, "writer-0", MIB, 300 + min(t, 500) * 0.2 + mib_per_hour * t / 3600 + rng.uniform(-1, 1))
        for t in range(0, 1200, 5)
    ]
    (found,) = growth(samples)
    assert found.is_good is is_good
    assert found.slope == pytest.approx(mib_per_hour, abs=6)


def test_the_brokers_own_memory_is_reported_and_not_judged() -> None:
    (found,) = growth([Sample(float(t), "broker", MIB, t * 100.0) for t in range(100)])
    assert isinstance(found, Growth)
    assert found.slope > 60
    assert found.is_good


def test_an_open_file_and_an_open_socket_are_seen(tmp_path: Path) -> None:
    def seen() -> dict[str, float]:
        return {sample.what: sample.value for sample in look_at("self", os.getpid(), at_s=0.0)}

    before = seen()
    with (tmp_path / "file").open("w"), socket.socket():
        during = seen()
    assert during[FILES] == before[FILES] + 2
    assert during[SOCKETS] == before[SOCKETS] + 1
    assert during[MIB] > 10
    assert list(look_at("gone", 2**22 + 1, at_s=0.0)) == []
