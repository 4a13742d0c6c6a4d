"""What an operator asks: is it well, and if not, what is away and what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from importlib.metadata import version
from time import perf_counter
from typing import TypeVar

from dats_common.contracts.api import (
    ComponentHealth,
    EmbeddingQueueHealth,
    HealthFinding,
    HealthResponse,
    IndexMetrics,
    LightRAGHealth,
    OllamaHealth,
    ProbeResponse,
)
from dats_common.contracts.topology import COMMANDS_QUEUE, DEAD_LETTERS_QUEUE, VALIDATED_QUEUE
from dats_common.domain.troubles import WHEN_AWAY, Standing, troubles
from dats_common.errors import Unavailable
from dats_common.records import Heartbeat, LedgerCounts
from services.query.services import QueryServices

_T = TypeVar("_T")

_LOOK_TIMEOUT_S = 3.0
_MODEL_TIMEOUT_S = 1.0
"""Searches need no model: a model server that hangs must not make the whole service look slow."""


async def look(work: Awaitable[_T], *, within_s: float = _LOOK_TIMEOUT_S) -> tuple[_T | None, str]:
    """The result and an empty reason, or None and why not."""
    try:
        async with asyncio.timeout(within_s):
            return await work, ""
    except TimeoutError:
        return None, f"no answer within {within_s} s"
    except Unavailable as error:
        return None, str(error)


def _component(reason: str) -> ComponentHealth:
    return ComponentHealth(status="unavailable" if reason else "ok", detail=reason)


async def health_of(services: QueryServices) -> HealthResponse:
    """One document for people, dashboards and spec 1, 2 and 5's fields."""
    stores, queues, (encoded, ollama, scorer, reranker) = await asyncio.gather(
        asyncio.gather(look(services.ledger.counts()), look(services.index.count()), look(services.ledger.heartbeat())),
        asyncio.gather(
            *(look(services.bus.depth(queue)) for queue in (VALIDATED_QUEUE, COMMANDS_QUEUE, DEAD_LETTERS_QUEUE))
        ),
        asyncio.gather(
            look(encode(services)), ollama_health(services), scorer_health(services), reranker_health(services)
        ),
    )
    (counts, no_ledger), (points, no_index), (beat, _) = stores
    (waiting, no_broker), (commands, _), (dead, _) = queues
    _, no_encoder = encoded
    no_writer = "not known, since the ledger is away" if no_ledger else _writer_trouble(beat)
    can_query = not (no_ledger or no_index or no_encoder)
    chunks = counts.live_chunks if counts else 0
    away = {
        "ledger": no_ledger,
        "index": no_index,
        "encoder": no_encoder,
        "broker": no_broker,
        "writer": "" if no_ledger else no_writer,
        "ollama": "the model server or its model does not answer; searches need none"
        if ollama and not ollama.healthy
        else "",
    }
    return HealthResponse(
        status="healthy" if can_query and not no_broker and not no_writer else "degraded" if can_query else "unhealthy",
        version=version("dats-rag"),
        lightrag=LightRAGHealth(
            status="unavailable" if no_index else "connected",
            index_size=chunks,
            embedding_model=services.encoder.model,
        ),
        embedding_queue=EmbeddingQueueHealth(
            pending=None if waiting is None or commands is None else waiting + commands,
            processing=None if no_writer or beat is None else beat.processing,
        ),
        rag_ok=can_query,
        rag_details=f"{chunks} live chunks of {counts.live_artifacts if counts else 0} artifacts"
        if can_query
        else (no_ledger or no_index or no_encoder),
        index_metrics=IndexMetrics(
            total_chunks=chunks, total_vectors=points or 0, dimension=services.encoder.dimension
        ),
        ollama=ollama,  # no part of `status`: search needs no model
        components={
            "ledger": _component(no_ledger),
            "index": _component(no_index),
            "encoder": _component(no_encoder),
            "broker": _component(no_broker),
            "writer": _component(no_writer),
            # No part of `status` either: answers are judged without it, and more of them are doubted.
            **scorer,
            # Nor this: answers keep the order of fusion.
            "reranker": reranker,
        },
        findings=[
            *(HealthFinding(what=name, detail=why, runbook=WHEN_AWAY[name]) for name, why in away.items() if why),
            *_findings(counts, points=points, dead_letters=dead, disk_bytes=services.disk_bytes()),
        ],
    )


def _findings(
    counts: LedgerCounts | None, *, points: int | None, dead_letters: int | None, disk_bytes: tuple[float, float]
) -> list[HealthFinding]:
    free, size = disk_bytes
    standing = Standing(points=points, dead_letters=dead_letters, free_bytes=free, disk_bytes=size)
    if counts is not None:
        standing = replace(
            standing,
            live_chunks=counts.live_chunks,
            unsent_events=counts.unsent_events,
            oldest_unsent_s=counts.oldest_unsent_s,
            quarantined=counts.quarantined,
        )
    return [HealthFinding(what=each.what, detail=each.detail, runbook=each.runbook) for each in troubles(standing)]


async def encode(services: QueryServices) -> None:
    """A query's vector: milliseconds here, but the encoder may be another server."""
    await services.encoder.encode(["ping"], kind="query")


async def ollama_health(services: QueryServices) -> OllamaHealth | None:
    """None where no model server is to be used."""
    if services.model is None:
        return None
    started = perf_counter()
    _, away = await look(services.generator.ping(), within_s=_MODEL_TIMEOUT_S)
    latency_ms = None if away else round((perf_counter() - started) * 1e3)
    return OllamaHealth(healthy=not away, model=services.model, latency_ms=latency_ms)


async def scorer_health(services: QueryServices) -> dict[str, ComponentHealth]:
    """What was set to look at answers' sentences; empty where nothing was."""
    scorer = services.answers.scorer
    if scorer is None:
        return {}
    _, away = await look(scorer.ping())
    return {scorer.name: _component(away)}


async def reranker_health(services: QueryServices) -> ComponentHealth:
    """Off where none was set."""
    reranker = services.engine.reranker
    if reranker is None:
        return ComponentHealth(status="off")
    _, away = await look(reranker.ping())
    return _component(away)


def _writer_trouble(beat: Heartbeat | None) -> str:
    if beat is None:
        return "no writer has ever reported; start one with `dats-rag writer`"
    if beat.is_stale:
        return f"the last writer reported {beat.age_s:.0f} s ago; is one running?"
    if beat.state == "draining":
        return "the last writer was asked to stop"
    return ""


def without_details(health: HealthResponse) -> HealthResponse:
    """The same without words: a driver's message may name a host."""
    words = {name: part.model_copy(update={"detail": ""}) for name, part in health.components.items()}
    findings = [finding.model_copy(update={"detail": ""}) for finding in health.findings]
    return health.model_copy(update={"components": words, "findings": findings, "rag_details": ""})


async def readiness_of(services: QueryServices) -> ProbeResponse:
    """Whether queries can be answered: the broker and the writer are not needed for that."""
    looks = {
        "ledger": services.ledger.ping(),
        "index": services.index.ping(),
        "encoder": encode(services),
    }
    reasons = [reason for _, reason in await asyncio.gather(*map(look, looks.values()))]
    # Anyone may probe: what is away is said in a word, why it is so only by GET /health.
    away = ", ".join(name for name, reason in zip(looks, reasons, strict=True) if reason)
    return ProbeResponse(status="unavailable" if away else "ok", detail=f"away: {away}" if away else "")
