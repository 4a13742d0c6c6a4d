"""What a replica sees around it, looked at anew for each scrape: nothing here needs any traffic."""

from __future__ import annotations

import asyncio
import math
import time

from dats_common.contracts.api import ComponentHealth
from dats_common.contracts.topology import COMMANDS_QUEUE, DEAD_LETTERS_QUEUE, TAINTS_QUEUE, VALIDATED_QUEUE
from dats_common.records import Heartbeat, LedgerCounts
from dats_common.telemetry.replica_metrics import QueryMetrics
from services.query.health import encode, look, ollama_health, reranker_health, scorer_health
from services.query.services import QueryServices

_STATES = ("active", "standby", "draining", "none")


async def refresh_gauges(services: QueryServices) -> None:
    """Bring the gauges up to date; one that cannot be read keeps its last value, and `rag_dependency_up` says so."""
    metrics = services.metrics
    stores, queues, others = await asyncio.gather(
        asyncio.gather(
            look(services.ledger.heartbeat()),
            look(services.ledger.counts()),
            look(services.index.ping()),
            look(services.index.count()),
        ),
        asyncio.gather(
            *(
                look(services.bus.depth(queue))
                for queue in (VALIDATED_QUEUE, COMMANDS_QUEUE, TAINTS_QUEUE, DEAD_LETTERS_QUEUE)
            )
        ),
        asyncio.gather(
            look(encode(services)), ollama_health(services), scorer_health(services), reranker_health(services)
        ),
    )
    (beat, no_ledger), (counts, _), (_, no_index), (points, _) = stores
    depths = [waiting for waiting, _ in queues]
    (_, no_encoder), model_server, scores, reranks = others
    up = {
        "ledger": not no_ledger,
        "index": not no_index,
        "encoder": not no_encoder,
        "broker": not any(reason for _, reason in queues),
        **({} if model_server is None else {"ollama": model_server.healthy}),
        **{name: part.status == "ok" for name, part in scores.items()},
        **_unless_off("reranker", reranks),
    }
    for name, answers in up.items():
        metrics.dependency_up.labels(dependency=name).set(answers)
    metrics.index_memory.set(services.index_memory())
    if not no_ledger:
        _show_writer(metrics, beat)
    if counts is not None:
        _show_counts(metrics, counts, points)
    if points is not None:
        metrics.index_points.set(points)
    _show_queues(metrics, depths, is_served=_state(beat) != "none" if not no_ledger else None)


def _unless_off(name: str, part: ComponentHealth) -> dict[str, bool]:
    return {} if part.status == "off" else {name: part.status == "ok"}


def _state(beat: Heartbeat | None) -> str:
    return "none" if beat is None or beat.is_stale else beat.state


def _show_writer(metrics: QueryMetrics, beat: Heartbeat | None) -> None:
    for state in _STATES:
        metrics.writer_state.labels(state=state).set(state == _state(beat))
    metrics.writer_beat_age.set(math.inf if beat is None else beat.age_s)


def _show_counts(metrics: QueryMetrics, counts: LedgerCounts, points: int | None) -> None:
    metrics.index_size.set(counts.live_chunks)
    metrics.outbox_unsent.set(counts.unsent_events)
    metrics.outbox_age.set(counts.oldest_unsent_s)
    metrics.quarantined.set(counts.quarantined)
    if points is not None:
        metrics.index_drift.set(points - counts.live_chunks)


def _show_queues(metrics: QueryMetrics, depths: list[int | None], *, is_served: bool | None) -> None:
    """What waits; for how long nobody has served it only where broker and ledger both say."""
    *work, dead = depths
    validated, commands, _ = work
    if validated is not None and commands is not None:
        metrics.queue_size.set(validated + commands)
    if dead is not None:
        metrics.dead_letters.set(dead)
    if is_served is None:
        return
    for queue, messages in zip((VALIDATED_QUEUE, COMMANDS_QUEUE, TAINTS_QUEUE), work, strict=True):
        if messages is not None:
            metrics.waits(queue, messages=messages, is_served=is_served, now_s=time.monotonic())
