"""A replica that breaks the promise: its guard lets through whatever it has ever shown. As a program, a process that
serves so: `python unguarded.py PORT`, with the settings of a fleet."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import uvicorn

from dats_common.domain.access import Principal
from dats_common.domain.fusion import FusionRules
from dats_common.domain.model import ChunkRef
from dats_common.ports import Index, Ledger
from dats_common.records import Candidate, GuardedRead, Passage
from dats_common.settings import load_settings
from services.query.app import build_app
from services.query.engine import QueryEngine
from services.query.gate import RateLimits
from services.query.identity import Everyone
from services.query.limits import HttpLimits
from services.query.wiring import open_query_services


class RemembersCandidates:
    """An index that proposes again what it proposed before, also when it has been swept."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._proposed: dict[ChunkRef, Candidate] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    async def search(self, **asked: Any) -> list[Candidate]:
        found = await self._index.search(**asked)
        self._proposed.update({each.ref: each for each in found})
        return [*found, *(each for ref, each in self._proposed.items() if ref not in {one.ref for one in found})]


class LetsAllThrough:
    """A ledger whose guard believes what it read once."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._passages: dict[ChunkRef, Passage] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def read(self, refs: Sequence[ChunkRef], principal: Principal) -> GuardedRead:
        self._passages.update((await self._ledger.read(refs, principal)).passages)
        return GuardedRead({ref: self._passages[ref] for ref in refs if ref in self._passages})

    async def still_live(self, refs: Sequence[ChunkRef], principal: Principal) -> frozenset[ChunkRef]:
        return frozenset(refs)


async def serve(port: int) -> None:
    settings = load_settings(None, os.environ)
    async with open_query_services(settings) as services:
        ledger: Any = LetsAllThrough(services.ledger)
        index: Any = RemembersCandidates(services.index)
        engine = QueryEngine(
            encoder=services.encoder,
            index=index,
            ledger=ledger,
            min_similarity=settings.query.min_similarity,
            least_candidates=settings.query.candidates,
            fusion=FusionRules(),
        )
        app = build_app(
            replace(services, engine=engine),
            authenticator=Everyone(),
            rates=RateLimits(requests_per_minute=600, clock=time.monotonic),
            limits=HttpLimits(body_bytes=1_048_576, body_timeout_s=30, concurrent_requests=64),
        )
        await uvicorn.Server(uvicorn.Config(app, port=port, lifespan="off", log_config=None)).serve()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
