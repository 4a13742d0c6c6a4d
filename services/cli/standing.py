"""The figures of a fleet, read from its stores by whoever looks after it."""

from __future__ import annotations

import asyncio
import shutil
import time
from contextlib import suppress
from dataclasses import replace

from dats_common.contracts.topology import DEAD_LETTERS_QUEUE
from dats_common.domain.troubles import Standing
from dats_common.errors import DatsError
from dats_common.ports import Ledger
from dats_common.settings import Settings
from services.backends import bus_file, open_bus, open_index, open_ledger

_TIMEOUT_S = 30.0


async def stand(settings: Settings) -> Standing:
    """The figures that can be had, each within seconds. What is away is None here; whoever asks it hears why."""
    standing = await _of_the_ledger(settings, await _of_the_disk(settings))
    if not (settings.rabbitmq.is_embedded and not bus_file(settings).exists()):
        with suppress(DatsError, TimeoutError):
            async with asyncio.timeout(_TIMEOUT_S), open_bus(settings, name="doctor", patient=False) as bus:
                standing = replace(standing, dead_letters=await bus.depth(DEAD_LETTERS_QUEUE))
    with suppress(DatsError, TimeoutError):
        async with asyncio.timeout(_TIMEOUT_S), open_index(settings) as index:
            standing = replace(standing, points=await index.count())
    return standing


def no_ledger_yet(settings: Settings) -> bool:
    """Whether looking would make one."""
    return settings.sql.is_embedded and not (settings.data_dir / "ledger.db").exists()


async def _of_the_disk(settings: Settings) -> Standing:
    if not settings.data_dir.exists():
        return Standing()
    usage = await asyncio.to_thread(shutil.disk_usage, settings.data_dir)
    return Standing(free_bytes=usage.free, disk_bytes=usage.total)


async def _of_the_ledger(settings: Settings, standing: Standing) -> Standing:
    if no_ledger_yet(settings):
        return standing
    with suppress(DatsError, TimeoutError):
        async with asyncio.timeout(_TIMEOUT_S), open_ledger(settings, acting="query") as ledger:
            counts = await ledger.counts()
            beats = await ledger.writers()
            standing = replace(
                standing,
                live_chunks=counts.live_chunks,
                unsent_events=counts.unsent_events,
                oldest_unsent_s=counts.oldest_unsent_s,
                quarantined=counts.quarantined,
                active_writers=tuple(beat.writer_id for beat in beats if beat.state == "active" and not beat.is_stale),
                clock_offset_s=await clock_offset_s(ledger),
            )
    return standing


async def clock_offset_s(ledger: Ledger) -> float:
    """How far this machine's clock is ahead of the ledger's, to half of a call's time."""
    before_s = time.time()
    theirs_s = await ledger.now() / 1e6
    return (before_s + time.time()) / 2 - theirs_s
