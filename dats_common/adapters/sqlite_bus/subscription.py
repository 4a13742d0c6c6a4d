"""Consuming: claims, their settlement, and the wait for more."""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress

import structlog

from dats_common.adapters.sqlite_bus.file import Claim, QueueFile, Waiting
from dats_common.adapters.sqlite_bus.worker import FileThread
from dats_common.contracts.routing import QUEUE_NAMES, dead_letter_headers
from dats_common.contracts.topology import DEAD_LETTERS_QUEUE
from dats_common.errors import BrokerUnavailable, ConfigurationError
from dats_common.records import Delivery

log = structlog.get_logger(component="sqlite_bus")

BEAT_S = 0.5
_WATCHED_TOGETHER = 64


class _Change:
    """The next change of a queue, by us or by another process."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def happened(self) -> None:
        self._event.set()

    async def wait_for(self, timeout_s: float) -> None:
        # Not asyncio.wait_for: before Python 3.12 it loses a cancellation that comes together with the event.
        with suppress(TimeoutError):
            async with asyncio.timeout(max(timeout_s, 0.001)):
                await self._event.wait()


class Changes:
    """The next change of each queue, by us or by another process."""

    def __init__(self) -> None:
        self._next: defaultdict[str, _Change] = defaultdict(_Change)

    def of(self, queue: str) -> _Change:
        """The queue's next change; ask before looking, or it may be missed."""
        return self._next[queue]

    def happened(self, *queues: str) -> None:
        """Wake everybody who waits for one of these queues."""
        for queue in queues:
            if (change := self._next.pop(queue, None)) is not None:
                change.happened()

    def happened_somewhere(self) -> None:
        """Wake everybody."""
        self.happened(*self._next)


class SqliteSubscription:
    """A consumer of `SqliteBus`. Nothing is buffered: a batch claims exactly what it hands out."""

    def __init__(
        self, worker: FileThread, changes: Changes, queue: str, *, prefetch: int, patterns: Sequence[str] | None = None
    ) -> None:
        self._worker = worker
        self._changes = changes
        self._queue = queue
        self._prefetch = prefetch
        self._patterns = patterns
        self._consumer = ""
        self._in_hand: set[int] = set()
        self._unreleased: list[Claim] = []
        self._stopped = False
        self._looking = asyncio.Lock()

    # -- the lease

    async def register(self) -> None:
        """Join the consumers of the queue, last in line."""
        self._consumer = uuid.uuid4().hex
        self._in_hand.clear()
        consumer = self._consumer
        await self._worker.lease(lambda file: file.register(consumer, self._queue, self._patterns))

    async def beat(self) -> None:
        """Renew the lease; where it was lost meanwhile, what is in hand is stale and the place in line is the last."""
        consumer, unreleased = self._consumer, list(self._unreleased)

        def renew(file: QueueFile) -> bool:
            for claim in unreleased:
                file.release(claim)
            return file.renew(consumer)

        stands = await self._worker.lease(renew)
        for claim in unreleased:
            self._unreleased.remove(claim)
            self._in_hand.discard(claim.message)
        if not stands and not self._stopped:
            await self.register()

    async def close(self) -> None:
        """Stop; what was never settled goes back to the queue."""
        self._stopped = True
        consumer = self._consumer
        with suppress(BrokerUnavailable):  # the lease runs out by itself then
            await self._worker.lease(lambda file: file.leave(consumer))
        self._changes.happened(self._queue)

    # -- the port

    async def batch(self, *, max_items: int, max_wait_s: float) -> list[Delivery]:
        """See `ports.Subscription`. Cancelling it loses nothing."""
        # One at a time: every change of the file would send each waiting caller to look for the same messages.
        async with self._looking:
            while not self._stopped:
                try:
                    await self._available(1, timeout_s=None)
                    await self._available(max_items, timeout_s=max_wait_s)
                    if not self._stopped and (taken := await self._claim(max_items)):
                        return taken
                except BrokerUnavailable as error:
                    # A full disk, say: nothing is claimed, so nothing is lost by waiting until there is room.
                    log.warning("broker_waited", error=str(error))
                    await asyncio.sleep(BEAT_S)
        return []

    async def ack(self, delivery: Delivery) -> None:
        """See `ports.Subscription`."""
        claim: Claim = delivery.handle
        await self._settle(delivery, lambda file: file.delete(claim))

    async def give_back(self, delivery: Delivery) -> None:
        """See `ports.Subscription`."""
        claim: Claim = delivery.handle
        await self._settle(delivery, lambda file: file.release(claim))

    async def retry(self, delivery: Delivery, *, delay_s: float) -> None:
        """See `ports.Subscription`. The delay is exact."""
        claim, attempt, headers = delivery.handle, delivery.attempt + 1, delivery.headers
        await self._settle(
            delivery, lambda file: file.move(claim, self._queue, attempt=attempt, headers=headers, delay_s=delay_s)
        )

    async def hand_over(self, delivery: Delivery, *, queue: str) -> None:
        """See `ports.Subscription`."""
        require_known(queue)
        claim, attempt, headers = delivery.handle, delivery.attempt, delivery.headers
        await self._settle(delivery, lambda file: file.move(claim, queue, attempt=attempt, headers=headers))
        self._changes.happened(queue)

    async def dead_letter(self, delivery: Delivery, *, reason: str) -> None:
        """See `ports.Subscription`."""
        claim = delivery.handle
        headers = dead_letter_headers(
            delivery.headers,
            reason=reason,
            source_queue=self._queue,
            attempts=delivery.attempt,
            event_type=delivery.event_type,
            at=time.time_ns() // 1000,
        )
        await self._settle(delivery, lambda file: file.move(claim, DEAD_LETTERS_QUEUE, attempt=1, headers=headers))

    async def stop(self) -> None:
        """See `ports.Subscription`. A standby takes over at once."""
        self._stopped = True
        consumer = self._consumer
        with suppress(BrokerUnavailable):
            await self._worker.lease(lambda file: file.stop_taking(consumer))
        self._changes.happened(self._queue)

    async def _available(self, wanted: int, *, timeout_s: float | None) -> None:
        loop = asyncio.get_running_loop()
        give_up_at = math.inf if timeout_s is None else loop.time() + timeout_s
        while not self._stopped:
            change = self._changes.of(self._queue)
            waiting = await self._waiting(wanted)
            left_s = give_up_at - loop.time()
            if waiting.count >= wanted or left_s <= 0:
                return
            # Woken by a write at the latest when a delayed message is due or a lease may have run out.
            await change.wait_for(min(left_s, BEAT_S, BEAT_S if waiting.due_s is None else waiting.due_s))

    async def _waiting(self, wanted: int) -> Waiting:
        room = min(wanted, self._prefetch - len(self._in_hand))
        if room <= 0:
            return Waiting(0, None)
        consumer = self._consumer
        return await self._worker.read(lambda file: file.waiting(consumer, self._queue, limit=room))

    async def _claim(self, max_items: int) -> list[Delivery]:
        room = min(max_items, self._prefetch - len(self._in_hand))
        consumer, now = self._consumer, asyncio.get_running_loop().time()
        claiming = asyncio.create_task(
            self._worker.lease(lambda file: file.claim(consumer, self._queue, limit=room, received_s=now)),
            name="sqlite-bus claim",
        )
        try:
            deliveries = await asyncio.shield(claiming)
        except asyncio.CancelledError:
            claiming.add_done_callback(self._return_unseen)
            raise
        self._in_hand.update(delivery.handle.message for delivery in deliveries)
        return deliveries

    def _return_unseen(self, claiming: asyncio.Task[list[Delivery]]) -> None:
        """Claims whose caller has gone are released at the next beat."""
        if not claiming.cancelled() and claiming.exception() is None:
            self._unreleased.extend(delivery.handle for delivery in claiming.result())

    async def _settle(self, delivery: Delivery, change: Callable[[QueueFile], None]) -> None:
        try:
            await self._worker.write(change)
        except BrokerUnavailable:
            # Still claimed by a lease that we keep renewing: nobody would ever see it again.
            self._unreleased.append(delivery.handle)
        else:
            self._in_hand.discard(delivery.handle.message)
        self._changes.happened(self._queue)


def require_known(queue: str) -> None:
    """Raises: ConfigurationError: no such queue."""
    if queue not in QUEUE_NAMES:
        raise ConfigurationError(f"{queue} is not a queue of this service")


async def acknowledged(subscription: SqliteSubscription) -> AsyncIterator[Delivery]:
    """What a private view shows: each delivery once, settled before it is seen."""
    while deliveries := await subscription.batch(max_items=_WATCHED_TOGETHER, max_wait_s=0):
        await asyncio.gather(*map(subscription.ack, deliveries))  # together: one transaction
        for delivery in deliveries:
            yield delivery
