"""From validated events to visible generations: the steps V1 to V5 for a batch. See docs/architecture.md."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from dats_common.domain.model import ArtifactKey, Validated
from dats_common.domain.taint import FlipVerdict, Verdict
from dats_common.errors import Fenced, Unavailable
from dats_common.maintenance.sweep import Sweeper
from dats_common.ports import Indexer, Ledger
from dats_common.records import Admission, IndexJob
from services.writer.leadership import Leadership
from services.writer.progress import waiting

# A generation is reclaimed when another writer takes over; more often in a row than this, something else is wrong.
_RECLAIMS = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one event of a batch ended: `error` is None once it is durable and may be acknowledged.

    Attributes:
        chunks: that this event made searchable.
        clamped: its time was ahead of the ledger's clock.
    """

    event: Validated
    verdict: Verdict | FlipVerdict | None = None
    error: Exception | None = None
    chunks: int = 0
    clamped: bool = False


class EmbeddingPipeline:
    """Chunk, embed, store, make visible. Batches may run concurrently; one artifact is in one batch at a time."""

    def __init__(self, *, ledger: Ledger, indexer: Indexer, leadership: Leadership, sweeper: Sweeper) -> None:
        self._ledger = ledger
        self._indexer = indexer
        self._leadership = leadership
        self._sweeper = sweeper
        self._claims = _Claims()
        self._failed: set[int] = set()

    async def run(self, events: Sequence[Validated], *, received_s: float) -> list[Outcome]:
        """Handle a batch; outcomes in the order of `events`, each on its own.

        Args:
            received_s: the loop's time when the first of them was handed to this process.

        Raises: Fenced; LedgerUnavailable: nothing of the batch may be acknowledged.
        """
        outcomes: dict[int, Outcome] = {}
        waiting = list(enumerate(events))
        while waiting:
            turn: dict[ArtifactKey, tuple[int, Validated]] = {}
            later = []
            for position, event in waiting:
                if event.key in turn:
                    later.append((position, event))  # an artifact's events are judged one after the other
                else:
                    turn[event.key] = (position, event)
            async with self._claims.hold(frozenset(turn)):
                done = await self._turn([event for _, event in turn.values()], received_s=received_s)
            outcomes |= {position: done[key] for key, (position, _) in turn.items()}
            waiting = later
        return [outcomes[position] for position in range(len(events))]

    async def _turn(self, events: Sequence[Validated], *, received_s: float) -> dict[ArtifactKey, Outcome]:
        done: dict[ArtifactKey, Outcome] = {}
        for _ in range(_RECLAIMS):
            epoch = await self._leadership.epoch(received_s=received_s)
            try:
                outcomes = await self._attempt(events, epoch=epoch)
            except Fenced:
                self._leadership.lost(epoch)
                raise
            done |= {outcome.event.key: outcome for outcome in outcomes}
            events = [outcome.event for outcome in outcomes if outcome.verdict is FlipVerdict.RECLAIMED]
            if not events:
                return done
        error = Unavailable(f"reclaimed {_RECLAIMS} times by another writer")
        return done | {event.key: Outcome(event, error=error) for event in events}

    async def _attempt(self, events: Sequence[Validated], *, epoch: int) -> list[Outcome]:
        await self._abandon_failed()
        admissions = await self._ledger.admit(events, epoch=epoch)  # V1
        jobs = {item.generation.number: item for item in admissions if item.generation is not None}
        try:
            stored = await self._indexer.index(  # V2, V3
                [IndexJob(item.generation, item.event.content) for item in jobs.values() if item.generation is not None]
            )
            ready = [item for number, item in jobs.items() if isinstance(stored[number], int)]
            flips = await self._ledger.flip(ready, epoch=epoch) if ready else []  # V4
        except BaseException:
            self._failed |= jobs.keys()
            raise
        self._failed |= {number for number in jobs if isinstance(stored[number], Exception)}
        await self._sweep_replaced(admissions)  # V5
        flipped = {item.event.key: verdict for item, verdict in zip(ready, flips, strict=True)}
        return [_outcome(item, flipped.get(item.event.key), stored) for item in admissions]

    async def _abandon_failed(self) -> None:
        """Give up what earlier attempts left pending: nobody will flip it, and the sweep keeps what is pending."""
        failed = sorted(self._failed)
        if failed:
            await self._ledger.abandon(failed)
            self._failed -= set(failed)

    async def _sweep_replaced(self, admissions: Sequence[Admission]) -> None:
        replaced = [item.event.key for item in admissions if item.replaces and item.generation is not None]
        try:
            await self._sweeper.sweep(replaced)
        except Unavailable:
            return  # invisible already; the periodic sweep removes the points once the index is back


def _outcome(item: Admission, flipped: FlipVerdict | None, stored: Mapping[int, int | Exception]) -> Outcome:
    result = stored[item.generation.number] if item.generation is not None else 0
    if isinstance(result, Exception):
        return Outcome(item.event, error=result, clamped=item.place.clamped)
    return Outcome(
        item.event,
        verdict=flipped or item.verdict,
        chunks=result if flipped is FlipVerdict.LIVE else 0,
        clamped=item.place.clamped,
    )


class _Claims:
    """Keeps two concurrent batches from embedding the same artifact twice."""

    def __init__(self) -> None:
        self._held: set[ArtifactKey] = set()
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def hold(self, keys: frozenset[ArtifactKey]) -> AsyncIterator[None]:
        async with self._freed:
            with waiting():
                await self._freed.wait_for(lambda: not keys & self._held)
            self._held |= keys
        try:
            yield
        finally:
            async with self._freed:
                self._held -= keys
                self._freed.notify_all()
