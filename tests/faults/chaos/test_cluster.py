"""Leaders of a three-node broker are killed; `DATS_TEST_CLUSTER_KILLS` says how often (by hand 10)."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from servers import ServerMissing

from tests.faults.chaos.cluster import kill_leaders, open_cluster

KILLS = int(os.environ.get("DATS_TEST_CLUSTER_KILLS", "2"))


@pytest.mark.rabbitmq
@pytest.mark.slow
@pytest.mark.timeout(300 + 120 * KILLS)
# The library's connection, dropped half open and collected in another thread, cannot close itself.
@pytest.mark.filterwarnings("ignore:coroutine 'Connection.close' was never awaited")
async def test_no_confirmed_message_is_lost_when_leaders_die_and_both_producers_go_to_another_node(
    tmp_path: Path,
) -> None:
    started = time.monotonic()
    try:
        with open_cluster(tmp_path) as nodes:
            up = time.monotonic()
            tally = await kill_leaders(nodes, kills=KILLS)
    except ServerMissing as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(str(missing))
        pytest.skip(str(missing))
    print(
        f"cluster up in {up - started:.0f} s; {KILLS} leaders killed in {time.monotonic() - up:.0f} s: {tally.killed}; "
        f"confirmed { ({who: len(ids) for who, ids in tally.confirmed.items()}) }, refused {tally.refused}, "
        f"received {len(tally.received)}"
    )
    assert tally.lost == set()
    assert len(tally.killed) == KILLS
    assert all(len(ids) >= 2 * KILLS for ids in tally.confirmed.values())
    assert sum(tally.refused.values()) > 0, "no producer noticed anything: the kills hit nobody"
