"""`dats-rag publish` when the queue goes away under it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from dats_common.adapters.sqlite_bus import open_sqlite_bus
from dats_common.contracts.topology import ARTIFACT_TAINTED
from dats_common.errors import BrokerUnavailable
from dats_common.settings import load_settings
from services.backends import bus_file
from services.cli.console import Voice
from services.cli.publish import publish_lines


async def test_a_queue_that_is_locked_in_the_middle_is_told_as_an_outage(tmp_path: Path) -> None:
    settings = load_settings(None, {"DATS_DATA_DIR": str(tmp_path)})
    async with open_sqlite_bus(bus_file(settings)):
        pass  # as a fleet would have made it

    holder = sqlite3.connect(bus_file(settings))

    def lines() -> Iterator[bytes]:
        holder.execute("BEGIN IMMEDIATE")  # once the first line is asked for, the queue is open
        for number in range(2):
            yield json.dumps({"type": ARTIFACT_TAINTED, "data": {"artifact_id": f"a-{number}"}}).encode()

    try:
        with pytest.raises(BrokerUnavailable):
            await publish_lines(settings, lines(), event_type=ARTIFACT_TAINTED, voice=Voice())
    finally:
        holder.close()
