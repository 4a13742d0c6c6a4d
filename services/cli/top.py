"""`dats-rag top`: a fleet as it is at this moment, in a terminal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from typing import Any

from rich.live import Live
from rich.text import Text

from dats_common.settings import Settings
from services.cli.console import Voice
from services.cli.top_reading import Picture, open_fleet_view
from services.cli.top_view import described, rendered


async def watch(
    settings: Settings, urls: Sequence[str], *, api_key: str | None, interval_s: float, once: bool, voice: Voice
) -> None:
    """Until cancelled, or once. A terminal is redrawn in place and given back as it was; else lines follow lines."""
    in_place = voice.console.is_terminal and not once and not voice.as_json
    live = Live(Text("looking ..."), console=voice.console, screen=True, vertical_overflow="crop") if in_place else None
    with live or nullcontext():
        async for figures in _looks(settings, urls, api_key=api_key, interval_s=interval_s, once=once):
            title = f"DATS RAG  {time.strftime('%H:%M:%S')}  every {interval_s:g} s, Ctrl-C ends it"
            if live is not None:
                live.update(rendered(figures, title=title), refresh=True)
            elif voice.as_json:
                voice.result(figures)
            else:
                voice.console.print(rendered(figures, title=title))


async def _looks(
    settings: Settings, urls: Sequence[str], *, api_key: str | None, interval_s: float, once: bool
) -> AsyncIterator[dict[str, Any]]:
    before: Picture | None = None
    async with open_fleet_view(settings, urls, api_key=api_key) as fleet:
        while True:
            now = await fleet.look()
            yield described(now, before)
            if once:
                return
            before = now
            await asyncio.sleep(interval_s)
