"""What one more replica costs: seconds until it is ready, and memory once it has answered."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from dats_common.clients.rag import RAGClient
from dats_common.errors import Unavailable
from services.lifeline import WITH_PARENT
from tests.bench.corpus import questions
from tests.bench.figures import Figure, percentile
from tests.bench.machine import resident_mb
from tests.bench.query import index_real
from tests.bench.scene import Scene, open_scene, scratch_settings
from tests.servers import free_port

READY_WITHIN_S = 5.0
"""Source: the issue of retrieval, "Speed", as the next one; without a reranker."""
RESIDENT_MB = 700.0
STARTS = 5
_GIVE_UP_S = 60.0
_LOOK_EVERY_S = 0.02


async def replica(*, quick: bool) -> list[Figure]:
    """Beside a running fleet, on its engine and ledger."""
    started_s: list[float] = []
    resident: list[float] = []
    with scratch_settings() as settings:
        async with open_scene(settings) as scene:
            await index_real(scene)
            for _ in range(2 if quick else STARTS):
                async with open_replica(scene) as (url, pid, seconds):
                    started_s.append(seconds)
                    async with RAGClient(f"{url}/api/v1", timeout=60) as client:
                        for question in questions(50 if quick else 200):
                            await client.query(question)
                    resident.append(resident_mb(pid))
    return [
        Figure(
            "replica",
            "start to ready, the slowest",
            percentile(started_s, 100),
            "s",
            at_most=READY_WITHIN_S,
            note=f"n = {len(started_s)}",
        ),
        Figure("replica", "resident memory after searches", max(resident), "MB", at_most=RESIDENT_MB),
    ]


@asynccontextmanager
async def open_replica(scene: Scene, **settings: str) -> AsyncIterator[tuple[str, int, float]]:
    """Another replica with the first one's environment, and `settings`: its address, its pid, seconds until ready."""
    port = free_port()
    raw = Path(f"/proc/{scene.processes['query']}/environ").read_text().split("\0")
    environment = {**dict(each.split("=", 1) for each in raw if each), "PORT": str(port), **settings}
    url, started = f"http://127.0.0.1:{port}", time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.query", WITH_PARENT, env=environment, stdin=asyncio.subprocess.PIPE
    )
    try:
        async with httpx.AsyncClient(trust_env=False) as http:
            while not await _is_ready(http, url):
                if time.perf_counter() - started > _GIVE_UP_S or process.returncode is not None:
                    raise Unavailable("the second replica did not become ready")
                await asyncio.sleep(_LOOK_EVERY_S)
        yield url, process.pid, time.perf_counter() - started
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _is_ready(http: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await http.get(f"{url}/api/v1/health/ready")).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False
