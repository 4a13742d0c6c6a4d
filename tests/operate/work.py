"""What people and machines ask of the fleet while its dashboards are watched."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
from fleet import Producer, names, text

from tests.operate.stage import Stage

MODES = ("vector", "keyword", "hybrid")
ON_TOPIC = ("ledger report on invoices", "approvals and the reconciliation of payments", "which report has payments?")
OFF_TOPIC = (
    "how do penguins breed?",
    "best guitar strings for jazz",
    "who won the cup in 1974?",
    "volcanoes of Iceland",
)
PAUSE_S = 0.15
SCOPE = {"domain": "docs", "project_id": "proj-1", "top_k": 5}

ANSWER = "The ledger report describes invoices, approvals and the reconciliation of payments [1]. So says [9]."
"""Of the model: a citation that was issued, and one that it made up."""

Load = Callable[[], Coroutine[Any, Any, None]]


@asynccontextmanager
async def going_on(*loads: Load) -> AsyncIterator[None]:
    """Run these until the block ends. Raises: what ended one of them before."""
    tasks = [asyncio.create_task(load()) for load in loads]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for each in ended:
        if isinstance(each, Exception):
            raise each


def searches(stage: Stage, questions: Sequence[str]) -> Load:
    """Ask every replica in every mode, one after the other, whatever comes back."""

    async def run() -> None:
        async with httpx.AsyncClient(timeout=10, trust_env=False) as client:
            for question in itertools.cycle(questions):
                for mode, replica in itertools.product(MODES, stage.fleet.replicas):
                    body = {"query": question, "search_mode": mode, **SCOPE}
                    with suppress(httpx.TransportError):
                        await client.post(f"{replica.url}/api/v1/query", json=body)
                    await asyncio.sleep(PAUSE_S)

    return run


def answers(stage: Stage) -> Load:
    """Ask for answers: whole, strict and streamed ones."""

    async def run() -> None:
        async with stage.fleet.replicas[0].client() as client:
            for number in itertools.count():
                body = {"query": ON_TOPIC[number % len(ON_TOPIC)], "strict": number % 3 == 1}
                path = "/api/v1/answer/stream" if number % 3 == 2 else "/api/v1/answer"
                with suppress(httpx.TransportError):
                    await client.post(path, json=body)
                await asyncio.sleep(2 * PAUSE_S)

    return run


def approvals(team: Producer) -> Load:
    """Publish documents and take every third back, as QA and Cascade do."""

    async def run() -> None:
        for number in itertools.count():
            [artifact_id] = names(1, prefix="flow")
            await team.validated(artifact_id, text(artifact_id), at=time.time(), domain="docs", title=artifact_id)
            await asyncio.sleep(PAUSE_S)
            if number % 3 == 0:
                await team.tainted(artifact_id, at=time.time())

    return run


def withdrawals(stage: Stage) -> Load:
    """Embed and withdraw over HTTP, one by one and several at once."""

    async def run() -> None:
        async with stage.fleet.replicas[-1].client() as client:
            while True:
                one, other = names(2, prefix="http")
                for each in (one, other):
                    metadata = {"artifact_id": each, "project_id": "proj-2", "domain": "docs"}
                    with suppress(httpx.TransportError):
                        await client.post("/api/v1/embed", json={"content": text(each), "metadata": metadata})
                with suppress(httpx.TransportError):
                    await client.delete(f"/api/v1/embeddings/{one}")
                    await client.post("/api/v1/embeddings/batch-invalidate", json={"artifact_ids": [other]})
                await asyncio.sleep(PAUSE_S)

    return run
