"""How fast an artifact becomes searchable and how fast it vanishes, idle and while others are being indexed.

The promise: no query that starts after a taint was acknowledged sees the artifact. So the start of the last query that
saw it, minus the acknowledgement, is negative every time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from dats_common.contracts.topology import EMBEDDING_COMPLETED, EMBEDDING_INVALIDATED
from dats_common.errors import DatsError, Unavailable
from dats_common.records import Delivery
from tests.bench.corpus import pages
from tests.bench.figures import Figure, Kind, latencies
from tests.bench.scene import SILENCE_S, Scene, completions, next_data, open_scene, scratch_settings

WATCHERS = 2
QUERIES_AFTER = 3
ACKNOWLEDGED_P99_MS = 250.0
WORDS = 120
"""Of an artifact that is tainted: one chunk."""


async def taint(*, quick: bool) -> list[Figure]:
    """On the embedded fleet. Taints come over HTTP and over the bus in turn."""
    idle = 30 if quick else 120
    victims_busy = 150 if quick else 400
    backlog = 150 if quick else 2_000
    with scratch_settings() as settings:
        async with (
            open_scene(settings) as scene,
            scene.bus.watch(EMBEDDING_COMPLETED) as completed,
            scene.bus.watch(EMBEDDING_INVALIDATED) as invalidated,
        ):
            victims = _victims("idle", idle)
            searchable = [await _become_searchable(scene, completed, {name: victims[name]}) for name in victims]
            quiet = await _taint_all(scene, invalidated, victims, until=None)
            victims = _victims("busy", victims_busy)
            await scene.publish(victims)
            await completions(completed, list(victims))
            ingest = asyncio.create_task(_ingest(scene, completed, backlog), name="ingest")
            try:
                busy = await _taint_all(scene, invalidated, victims, until=ingest)
            finally:
                await ingest
    during = f"while {backlog} pages are indexed"
    return [
        *_promised("idle", quiet),
        *_promised(during, busy),
        *latencies("taint", "idle: event to searchable", searchable, 50, 99),
        *_acknowledged("idle", quiet),
        *_acknowledged(during, busy, http_p99_ms=ACKNOWLEDGED_P99_MS),
    ]


def _victims(label: str, count: int) -> dict[str, str]:
    return {f"{label}-{n}": text for n, text in enumerate(pages(count, label=label, words=WORDS))}


def _question(content: str) -> str:
    return " ".join(content.split()[2:20])


async def _become_searchable(scene: Scene, completed: AsyncIterator[Delivery], artifact: Mapping[str, str]) -> float:
    """Seconds from publishing to `embedding.completed`, and a query then does find it."""
    (name,) = artifact
    published = await scene.publish(artifact)
    done = await completions(completed, [name])
    if not await scene.sees(name, question=_question(artifact[name])):
        raise DatsError(f"{name} was announced as completed and is not found")
    return done[name][0] - published[name]


async def _ingest(scene: Scene, completed: AsyncIterator[Delivery], count: int) -> None:
    documents = {f"backlog-{n}": text for n, text in enumerate(pages(count, label="backlog"))}
    await scene.publish(documents)
    await completions(completed, list(documents))


# ---------------------------------------------------------------------------------------------------------- tainting


@dataclass(slots=True)
class _Tainted:
    """Samples of one phase, by the way the taint came.

    Attributes:
        acknowledged_s: from asking to the acknowledgement.
        last_seen_s: start of the last query that saw it, minus the acknowledgement.
        queries: that were asked about artifacts under taint, in all.
    """

    acknowledged_s: dict[str, list[float]] = field(default_factory=lambda: {"HTTP": [], "bus": []})
    last_seen_s: dict[str, list[float]] = field(default_factory=lambda: {"HTTP": [], "bus": []})
    queries: int = 0


@dataclass(slots=True)
class _Sightings:
    """Queries about one artifact: when the last that saw it was started."""

    last_start: float = 0.0
    asked: int = 0
    first: asyncio.Event = field(default_factory=asyncio.Event)


async def _taint_all(
    scene: Scene,
    invalidated: AsyncIterator[Delivery],
    victims: Mapping[str, str],
    *,
    until: asyncio.Task[None] | None,
) -> _Tainted:
    """Taint one after the other while queries about it never pause; with `until`, only as long as that goes on."""
    samples = _Tainted()
    for number, (name, content) in enumerate(victims.items()):
        way = ("HTTP", "bus")[number % 2]
        if until is not None and until.done():
            break
        async with _watched(scene, name, content) as sightings:
            started = time.perf_counter()
            if way == "HTTP":
                await scene.client.invalidate(name)
            else:
                await scene.taint(name)
                while name not in (await next_data(invalidated))["artifact_ids"]:
                    pass
            acknowledged = time.perf_counter()
        samples.acknowledged_s[way].append(acknowledged - started)
        samples.last_seen_s[way].append(sightings.last_start - acknowledged)
        samples.queries += sightings.asked
    return samples


@asynccontextmanager
async def _watched(scene: Scene, name: str, content: str) -> AsyncIterator[_Sightings]:
    """Ask for the artifact without pause; entered once it was seen, left after some more queries of each watcher."""
    sightings = _Sightings()
    leaving = asyncio.Event()

    async def watch() -> None:
        more = QUERIES_AFTER
        while more:
            more -= leaving.is_set()
            started = time.perf_counter()
            seen = await scene.sees(name, question=_question(content))
            sightings.asked += 1
            if seen:
                sightings.last_start = max(sightings.last_start, started)
                sightings.first.set()

    async with asyncio.TaskGroup() as watchers:
        for number in range(WATCHERS):
            watchers.create_task(watch(), name=f"watcher-{number}")
        try:
            async with asyncio.timeout(SILENCE_S):
                await sightings.first.wait()
        except TimeoutError as error:
            raise Unavailable(f"{name} was never found") from error
        yield sightings
        leaving.set()


# ----------------------------------------------------------------------------------------------------------- figures


def _promised(when: str, samples: _Tainted) -> list[Figure]:
    return [
        Figure(
            "taint",
            f"{when}: last query that saw it, minus acknowledgement over {way}, max",
            max(spent) * 1e3,
            "ms",
            Kind.PROMISE,
            at_most=0,
            note=f"n = {len(spent)}; {samples.queries} queries in the phase",
        )
        for way, spent in samples.last_seen_s.items()
        if spent
    ]


def _acknowledged(when: str, samples: _Tainted, *, http_p99_ms: float | None = None) -> Sequence[Figure]:
    limits_ms = {"HTTP": {99.0: http_p99_ms}} if http_p99_ms is not None else {}
    return [
        figure
        for way, spent in samples.acknowledged_s.items()
        if spent
        for figure in latencies(
            "taint", f"{when}: acknowledged over {way}", spent, 50, 99, limits_ms=limits_ms.get(way)
        )
    ]
