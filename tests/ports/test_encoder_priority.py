"""Who gets the cores while documents are embedded. In processes of their own: OpenVINO keeps its threads for good."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from dats_common.adapters.encoder_openvino.encoder import BACKGROUND_NICENESS

PROGRAM = """
import asyncio, json, os, sys, threading
from dats_common.adapters.encoder_openvino import open_openvino_encoder

def niceness():
    return {int(tid): os.getpriority(os.PRIO_PROCESS, int(tid)) for tid in os.listdir("/proc/self/task")}

async def main():
    loop_thread, before = threading.get_native_id(), niceness()
    async with open_openvino_encoder(threads=2, background=sys.argv[1] == "background") as encoder:
        await encoder.encode([f"document {number}" for number in range(8)], kind="document")
        after = niceness()
    started = [after[tid] - before[loop_thread] for tid in after.keys() - before.keys()]
    print(json.dumps({"loop": after[loop_thread] - before[loop_thread], "encoder": started}))

asyncio.run(main())
"""


def steps_back(encoder: str) -> dict[str, object]:
    """By how much the loop's thread and each of the encoder's were lowered."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, encoder], capture_output=True, text=True, timeout=100, check=True
    )
    found: dict[str, object] = json.loads(ran.stdout)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="only there do threads have priorities of their own")
@pytest.mark.parametrize(("encoder", "lowered_by"), [("background", BACKGROUND_NICENESS), ("foreground", 0)])
def test_only_the_threads_of_a_writers_encoder_give_way_and_its_loop_does_not(encoder: str, lowered_by: int) -> None:
    found = steps_back(encoder)
    assert found["loop"] == 0
    threads = found["encoder"]
    assert isinstance(threads, list)
    assert len(threads) >= 2
    assert set(threads) == {lowered_by}
