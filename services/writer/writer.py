"""A writer put together: its work, and what goes on beside it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal

from dats_common.contracts.topology import COMMANDS_QUEUE, VALIDATED_QUEUE
from dats_common.errors import Fenced, Unavailable
from dats_common.maintenance.recall import recalled
from dats_common.maintenance.relay import Relay
from dats_common.maintenance.sweep import Sweeper
from dats_common.ports import Bus, Encoder, Evidence, Index, Ledger
from dats_common.records import Heartbeat
from dats_common.telemetry.logs import log
from dats_common.telemetry.writer_metrics import WriterMetrics
from services.writer.consumer import Consumer
from services.writer.leadership import Leadership
from services.writer.progress import Progress

BEAT_INTERVAL_S = 2.0
RELAY_INTERVAL_S = 1.0
_PING_TIMEOUT_S = 3.0
_CANCEL_AGAIN_S = 1.0
_UNKNOWN = (
    "the index has artifacts that this ledger never heard of: if QDRANT_HOST or DATS_SQL_URL is another fleet's, stop "
    "this writer; if the ledger was lost or restored, `dats-rag sweep` removes them"
)


@dataclass(frozen=True, slots=True)
class Writer:
    """The parts of a writer; `work` runs them."""

    writer_id: str
    consumer: Consumer
    leadership: Leadership
    relay: Relay
    sweeper: Sweeper
    evidence: Evidence
    ledger: Ledger
    index: Index
    bus: Bus
    encoder: Encoder
    metrics: WriterMetrics
    progress: Progress
    sweep_interval_s: float
    answers_kept_s: float

    async def work(self, *, until: asyncio.Event, drain_s: float) -> None:
        """Consume until the event is set or something fails, then drain for at most `drain_s`. Raises what failed."""
        loop = asyncio.get_running_loop()
        work = asyncio.create_task(self.consumer.run(), name="consumer")
        beside = [
            asyncio.create_task(self.beat(), name="heartbeat"),
            asyncio.create_task(self.relay_periodically(), name="relay"),
            asyncio.create_task(self.sweep_periodically(), name="sweep"),
        ]
        stopped = asyncio.create_task(until.wait(), name="stop")
        try:
            await asyncio.wait([work, stopped, *beside], return_when=asyncio.FIRST_COMPLETED)
            log("writer").info("draining", seconds=drain_s)
            give_up_at = loop.time() + drain_s
            await self.consumer.stop(timeout_s=drain_s)
            if self.consumer.is_consuming:
                await asyncio.wait([work], timeout=max(0.0, give_up_at - loop.time()))
            for task in (work, *beside):
                if task.done() and not task.cancelled():
                    task.result()  # a loop that failed must not end as a success
        finally:
            await _end(work, stopped, *beside)
            await self.farewell()

    async def beat(self) -> None:
        """Tell the ledger how we are, until cancelled."""
        while True:
            epoch = self.leadership.held
            try:
                await self._beat_once("standby" if epoch is None else "active", epoch=epoch)
            except Fenced:
                if epoch is not None:
                    self.leadership.lost(epoch)
                continue  # as a standby, at once: whoever looks for the active writer must not find two
            except Unavailable as error:
                log("writer").warning("heartbeat_missed", detail=str(error))
            await asyncio.sleep(BEAT_INTERVAL_S)

    async def farewell(self) -> None:
        """The last beat: we are going."""
        try:
            await self._beat_once("draining")
        except Unavailable as error:
            log("writer").warning("heartbeat_missed", detail=str(error))

    async def _beat_once(self, state: Literal["active", "standby", "draining"], *, epoch: int | None = None) -> None:
        pending = await self._waiting()
        self.metrics.queue_size.set(pending)
        await self.ledger.beat(
            Heartbeat(
                writer_id=self.writer_id,
                state=state,
                pending=pending,
                processing=self.consumer.processing,
                model=self.encoder.model,
                backend=self.encoder.backend,
            ),
            epoch=epoch,
        )

    async def _waiting(self) -> int:
        """Messages that wait; 0 while the broker does not say: we live without it, and replicas ask it themselves."""
        try:
            async with asyncio.timeout(_PING_TIMEOUT_S):
                return await self.bus.depth(VALIDATED_QUEUE) + await self.bus.depth(COMMANDS_QUEUE)
        except (Unavailable, TimeoutError):
            return 0

    async def relay_periodically(self) -> None:
        """Publish what other processes queued, and what failed before, until cancelled."""
        while True:
            try:
                await self.relay.drain()
            except Unavailable as error:
                log("writer").warning("relay_postponed", detail=str(error))
            await asyncio.sleep(RELAY_INTERVAL_S)

    async def sweep_periodically(self) -> None:
        """Recall answers, drop old ones and remove what is left of dead generations anywhere, until cancelled."""
        while True:
            await asyncio.sleep(self.sweep_interval_s)
            try:
                answers = sum([part async for part in recalled(self.evidence)])
                swept = await self.sweeper.sweep_all()
                forgotten = await self._forget_answers()
            except Unavailable as error:
                log("writer").warning("sweep_postponed", detail=str(error))
                continue
            if answers:
                log("writer").info("answers_recalled", count=answers)
            if forgotten:
                log("writer").info("old_answers_dropped", count=forgotten)
            self.metrics.answers_recalled.inc(answers)
            self.metrics.swept.inc(swept.removed)
            if swept.removed:
                log("writer").info("dead_generations_swept", removed=swept.removed)
            if swept.unknown:
                log("writer").error("unknown_points_left", count=swept.unknown, detail=_UNKNOWN)

    async def _forget_answers(self) -> int:
        forgotten = part = await self.evidence.forget(older_than_s=self.answers_kept_s)
        while part:
            part = await self.evidence.forget(older_than_s=self.answers_kept_s)
            forgotten += part
        return forgotten


async def _end(*tasks: asyncio.Task[object]) -> None:
    """Cancel them until they have ended. Libraries lose a cancellation now and then, and a loop that is cancelled only
    once would then keep the process until it is killed."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_CANCEL_AGAIN_S)
