"""The writer's loops: take deliveries, have them handled, settle each one. Acknowledging always comes last."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

from dats_common.contracts.events import build_failed
from dats_common.contracts.readable import Names, names_in
from dats_common.contracts.topology import COMMANDS_QUEUE, TAINTS_QUEUE, VALIDATED_QUEUE
from dats_common.domain.settlement import OUTAGE_PAUSE_S, DeadLetter, GiveBack, Retry, Settlement, describe, settle
from dats_common.errors import BrokerUnavailable, Fenced, Unavailable
from dats_common.maintenance.recall import recalled
from dats_common.maintenance.relay import Relay
from dats_common.maintenance.sweep import Sweeper
from dats_common.ports import Bus, Evidence, Ledger, Subscription
from dats_common.records import Delivery, TaintReceipt
from services.writer.handlers import EventHandlers, Handled
from services.writer.leadership import Leadership
from services.writer.progress import Progress, waiting


class Observer(Protocol):
    """What telemetry wants to hear; the loops do not care who listens."""

    def handling(self, deliveries: Sequence[Delivery]) -> AbstractContextManager[None]:
        """Around the work for these deliveries, handled together."""

    def embedded(self, handled: Handled, *, seconds: float) -> None:
        """A validated event or command ended."""

    def tainted(self, receipt: TaintReceipt, *, waited_s: float) -> None:
        """A taint or a part of one was committed, so long after it was handed to this process."""

    def recalled(self, answers: int) -> None:
        """So many answers were recalled after a taint."""

    def settled(self, queue: str, settlement: str, *, reason: str, names: Names) -> None:
        """A delivery was retried, given back or dead-lettered."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the loops."""

    batch_size: int
    linger_s: float
    prefetch: int
    retry_attempts: int
    concurrent_batches: int = 2  # one is stored while the next is encoded
    concurrent_taints: int = 4  # a taint of very many ids is committed in parts, others between them


class Consumer:
    """Runs the three queues until stopped; what is in hand is finished first."""

    def __init__(
        self,
        *,
        bus: Bus,
        ledger: Ledger,
        handlers: EventHandlers,
        leadership: Leadership,
        relay: Relay,
        sweeper: Sweeper,
        evidence: Evidence,
        progress: Progress,
        observer: Observer,
        healthy: Callable[[], Awaitable[bool]],
        limits: Limits,
    ) -> None:
        self._bus = bus
        self._ledger = ledger
        self._handlers = handlers
        self._leadership = leadership
        self._relay = relay
        self._sweeper = sweeper
        self._evidence = evidence
        self._progress = progress
        self._observer = observer
        self._healthy = healthy
        self._limits = limits
        self._taints: Subscription | None = None
        self._single_active: tuple[Subscription, ...] = ()
        self._stopping = False
        self._at_rest = asyncio.Event()
        self._at_rest.set()
        self.processing = 0

    async def run(self) -> None:
        """Consume until `stop`. Returns when everything that was handed out has been settled."""
        async with (
            self._bus.subscribe(VALIDATED_QUEUE, prefetch=self._limits.prefetch) as validated,
            self._bus.subscribe(COMMANDS_QUEUE, prefetch=self._limits.prefetch) as commands,
            self._bus.subscribe(TAINTS_QUEUE, prefetch=self._limits.prefetch) as taints,
        ):
            if self._stopping:
                return
            self._taints, self._single_active = taints, (validated, commands)
            async with asyncio.TaskGroup() as loops:
                for number in range(self._limits.concurrent_batches):
                    loops.create_task(self._embed_loop(validated, VALIDATED_QUEUE), name=f"validated-{number}")
                loops.create_task(self._command_loop(commands), name="commands")
                for number in range(self._limits.concurrent_taints):
                    loops.create_task(self._taint_loop(taints), name=f"taints-{number}")

    async def stop(self, *, timeout_s: float) -> None:
        """Finish what is in hand, for at most `timeout_s`, and take no more; then what is buffered goes back.

        Before `run` has subscribed there is nothing to finish: it then ends without taking anything.

        The single-active queues are left last: the broker serves a standby at once, whose epoch would fence the work
        in hand here. A taint waits for nobody and goes back first.
        """
        self._stopping = True
        if self._taints is None:
            return
        await self._taints.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._at_rest.wait()
        for subscription in self._single_active:
            await subscription.stop()

    @property
    def is_consuming(self) -> bool:
        """Whether `run` has subscribed, so that something may be in hand."""
        return self._taints is not None

    # -------------------------------------------------------------------------------------- validated and commands

    async def _embed_loop(self, subscription: Subscription, queue: str) -> None:
        while batch := await self._batch(subscription):
            await self._embed(subscription, queue, batch)

    async def _command_loop(self, subscription: Subscription) -> None:
        while batch := await self._batch(subscription):
            if self._leadership.is_active:
                await self._embed(subscription, COMMANDS_QUEUE, batch)
                continue
            # This queue's single consumer may be another process than the active writer. Two of them raising the
            # epoch against each other would never end, so the work goes to where the active writer is.
            for delivery in batch:
                await self._hand_over(subscription, delivery)

    async def _batch(self, subscription: Subscription) -> Sequence[Delivery]:
        if self._stopping:
            return []
        return await subscription.batch(max_items=self._limits.batch_size, max_wait_s=self._limits.linger_s)

    async def _hand_over(self, subscription: Subscription, delivery: Delivery) -> None:
        try:
            await subscription.hand_over(delivery, queue=VALIDATED_QUEUE)
        except BrokerUnavailable:
            await subscription.give_back(delivery)

    async def _embed(self, subscription: Subscription, queue: str, batch: Sequence[Delivery]) -> None:
        started = asyncio.get_running_loop().time()
        self.processing += len(batch)
        self._at_rest.clear()
        try:
            with self._progress.working(), self._observer.handling(batch):
                handled = await self._handle(batch)
                await self._relay_quietly()
                for item in handled:
                    self._observer.embedded(item, seconds=asyncio.get_running_loop().time() - started)
                await self._settle(subscription, queue, handled)
        finally:
            self.processing -= len(batch)
            if not self.processing:
                self._at_rest.set()

    async def _handle(self, batch: Sequence[Delivery]) -> list[Handled]:
        try:
            return await self._handlers.handle_task_validated(batch)
        except Exception as error:
            nobody_to_blame = isinstance(error, Fenced) or await self._is_outage(error)
            if nobody_to_blame or len(batch) == 1:
                return [Handled(delivery, error=error) for delivery in batch]
        # One of them breaks the batch: apart, only that one fails.
        return [item for delivery in batch for item in await self._handle([delivery])]

    async def _is_outage(self, error: Exception) -> bool:
        return isinstance(error, Unavailable) and not await self._healthy()

    async def _settle(self, subscription: Subscription, queue: str, handled: Sequence[Handled]) -> None:
        # Asked and waited for once: a batch that waited for each of its events would look like a hang in an outage.
        outage = any(isinstance(item.error, Unavailable) for item in handled) and not await self._healthy()
        pause_s = 0.0
        postponed: list[Handled] = []
        # Together: where an acknowledgement waits for a disk, all of them wait for it once.
        await asyncio.gather(*(subscription.ack(item.delivery) for item in handled if item.error is None))
        for item in handled:
            if item.error is None:
                continue
            decision = settle(
                item.error,
                attempt=item.delivery.attempt,
                retry_attempts=self._limits.retry_attempts,
                outage=outage and isinstance(item.error, Unavailable),
            )
            if item_pause_s := await self._act(subscription, queue, item, decision):
                pause_s = max(pause_s, item_pause_s)
                postponed.append(item)
            self._progress.moved()
        if postponed:
            await asyncio.sleep(pause_s)
        for item in postponed:
            await subscription.give_back(item.delivery)

    async def _act(self, subscription: Subscription, queue: str, item: Handled, decision: Settlement) -> float:
        """Returns 0 once the delivery is settled, else after how many seconds it is to be given back."""
        reason = decision.reason if isinstance(decision, DeadLetter) else describe(item.error) if item.error else ""
        delivery = item.delivery
        names = names_in(delivery.body, event_type=delivery.event_type, message_id=delivery.message_id)
        self._observer.settled(queue, type(decision).__name__, reason=reason, names=names)
        try:
            match decision:
                case Retry(delay_s):
                    await subscription.retry(item.delivery, delay_s=delay_s)
                case GiveBack(pause_s):
                    return pause_s
                case DeadLetter(reason):
                    await self._dead_letter(subscription, item, names, reason)
        except Unavailable:
            return OUTAGE_PAUSE_S  # its report could not be written, or the copy not be taken: keep the original
        return 0.0

    async def _dead_letter(self, subscription: Subscription, item: Handled, names: Names, reason: str) -> None:
        event = item.outcome.event if item.outcome else None
        report = build_failed(
            event_id=f"failed:{event.event_id if event else item.delivery.message_id or uuid4()}",
            at=await self._ledger.now(),
            artifact_id=names.artifact_id,
            tenant_id=names.tenant_id,
            failed_event_id=names.event_id,
            reason=reason,
            attempts=item.delivery.attempt,
        )
        await self._ledger.announce(report)
        await subscription.dead_letter(item.delivery, reason=reason)
        await self._relay_quietly()

    # ------------------------------------------------------------------------------------------------------ taints

    async def _taint_loop(self, subscription: Subscription) -> None:
        while batch := await subscription.batch(max_items=1, max_wait_s=0.0):
            for delivery in batch:
                with self._progress.working(), self._observer.handling([delivery]):
                    await self._taint(subscription, delivery)

    async def _taint(self, subscription: Subscription, delivery: Delivery) -> None:
        receipts: list[TaintReceipt] = []
        try:
            async for receipt in self._handlers.handle_artifact_tainted(delivery):
                receipts.append(receipt)
                waited_s = asyncio.get_running_loop().time() - delivery.received_s
                self._observer.tainted(receipt, waited_s=waited_s)
                await self._relay_quietly()
                self._progress.moved()
        except Exception as error:
            outage = await self._is_outage(error)
            decision = settle(error, attempt=delivery.attempt, retry_attempts=None, outage=outage)
            await self._end_taint(subscription, Handled(delivery, error=error), decision)
        else:
            await subscription.ack(delivery)
        try:
            for receipt in receipts:
                if receipt.fallen:
                    async for part in recalled(self._evidence, receipt.fallen, cascade_id=receipt.cascade_id):
                        self._progress.moved()
                        self._observer.recalled(part)
                        if part:
                            await self._relay_quietly()
                await self._sweeper.sweep(receipt.fallen)
                self._progress.moved()
        except Unavailable:
            return  # invisible already; the periodic sweep does what is left once ledger and index are back

    async def _end_taint(self, subscription: Subscription, item: Handled, decision: Settlement) -> None:
        if pause_s := await self._act(subscription, TAINTS_QUEUE, item, decision):
            await asyncio.sleep(pause_s)
            await subscription.give_back(item.delivery)

    async def _relay_quietly(self) -> None:
        """The outbox keeps what the broker does not take now; the periodic relay tries again.

        It may take long: others' events go first, and each publish and transaction has a timeout of its own.
        """
        try:
            with waiting():
                await self._relay.drain()
        except Unavailable:
            return
