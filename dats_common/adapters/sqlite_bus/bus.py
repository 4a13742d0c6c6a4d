"""Publishing, subscribing, and the two tasks that keep leases and notice other processes."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from dats_common.adapters.sqlite_bus.file import QueueFile
from dats_common.adapters.sqlite_bus.subscription import (
    BEAT_S,
    Changes,
    SqliteSubscription,
    acknowledged,
    require_known,
)
from dats_common.adapters.sqlite_bus.worker import FileThread
from dats_common.contracts.routing import PUBLISHED_MAX_MESSAGES, QUEUE_NAMES, destinations
from dats_common.contracts.topology import COMMANDS_EXCHANGE, DEAD_LETTERS_QUEUE, EMBED_COMMAND, EVENTS_EXCHANGE
from dats_common.errors import BrokerUnavailable
from dats_common.ports import Subscription
from dats_common.records import DeadLetter, Delivery
from dats_common.trace_context import trace_headers

LISTEN_S = 0.05
"""How often a waiting consumer looks whether another process wrote. One look reads a counter in shared memory."""


class SqliteBus:
    """`ports.Bus` in a SQLite file; open it with `open_sqlite_bus`."""

    def __init__(self, worker: FileThread) -> None:
        self._worker = worker
        self._subscriptions: set[SqliteSubscription] = set()
        self._has_subscriptions = asyncio.Event()
        self._changes = Changes()

    async def publish(self, routing_key: str, body: Mapping[str, Any], *, event_id: str) -> None:
        """See `ports.Bus`."""
        encoded = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        await self.inject(routing_key, encoded, headers=trace_headers())

    async def command(self, body: Mapping[str, Any], *, event_id: str) -> None:
        """See `ports.Bus`."""
        encoded = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        await self.inject(EMBED_COMMAND, encoded, exchange=COMMANDS_EXCHANGE, headers=trace_headers())

    async def inject(
        self,
        routing_key: str,
        body: bytes,
        *,
        exchange: str = EVENTS_EXCHANGE,
        timestamp: int | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> None:
        """Publish raw bytes, as a foreign producer may. Raises: BrokerUnavailable: no queue is bound."""
        fixed = destinations(exchange, routing_key)
        if not fixed:
            raise BrokerUnavailable(f"publishing {routing_key}: no queue is bound")
        targets = list(fixed)

        def insert(file: QueueFile) -> None:
            targets.extend(file.watchers(routing_key))
            file.insert(targets, routing_key, body, timestamp=timestamp, headers=headers or {})

        await self._worker.write(insert)
        self._changes.happened(*targets)

    @asynccontextmanager
    async def subscribe(self, queue: str, *, prefetch: int) -> AsyncIterator[Subscription]:
        """See `ports.Bus`. Raises: ConfigurationError: no such queue."""
        require_known(queue)
        async with self._subscribed(
            SqliteSubscription(self._worker, self._changes, queue, prefetch=prefetch)
        ) as subscription:
            yield subscription

    @asynccontextmanager
    async def watch(self, *routing_keys: str) -> AsyncIterator[AsyncIterator[Delivery]]:
        """See `ports.Bus`."""
        watcher = SqliteSubscription(
            self._worker,
            self._changes,
            f"watch.{uuid.uuid4().hex}",
            prefetch=PUBLISHED_MAX_MESSAGES,
            patterns=routing_keys,
        )
        async with self._subscribed(watcher) as subscription:
            yield acknowledged(subscription)

    async def depth(self, queue: str) -> int:
        """See `ports.Bus`. Messages that wait out a retry are not counted."""
        require_known(queue)
        return await self._worker.read(lambda file: file.depth(queue))

    async def ping(self) -> None:
        """See `ports.Bus`."""
        await self.depth(DEAD_LETTERS_QUEUE)

    async def dead_letters(
        self, *, limit: int, only: Collection[str] | None = None, with_bodies: bool = False
    ) -> list[DeadLetter]:
        """See `ports.DeadLetters`."""
        return await self._worker.read(lambda file: file.dead(only, limit=limit, with_bodies=with_bodies))

    async def replay_dead_letters(self, *, only: Collection[str] | None = None) -> list[str]:
        """See `ports.DeadLetters`. All of them in one transaction: a crash leaves each in one place."""
        replayed: list[str] = []
        await self._worker.write(lambda file: replayed.extend(file.revive(only)))
        self._changes.happened(*QUEUE_NAMES)
        return replayed

    async def drop_dead_letters(self, *, only: Collection[str] | None = None) -> list[str]:
        """See `ports.DeadLetters`."""
        dropped: list[str] = []
        await self._worker.write(lambda file: dropped.extend(file.bury(only)))
        return dropped

    async def published(self) -> list[bytes]:
        """See `ports.LookBack`."""
        return await self._worker.read(QueueFile.published)

    # -- the two tasks

    async def beat(self) -> None:
        """Renew our leases and end those of the dead, for ever."""
        while True:
            with suppress(BrokerUnavailable):
                for subscription in list(self._subscriptions):
                    await subscription.beat()
                await self._worker.lease(QueueFile.expire)
            await asyncio.sleep(BEAT_S)

    async def listen(self) -> None:
        """Notice what other processes write, for ever."""
        seen = None
        while True:
            await self._has_subscriptions.wait()
            await asyncio.sleep(LISTEN_S)
            with suppress(BrokerUnavailable):
                now = await self._worker.read(QueueFile.changes)
                if now != seen:
                    seen = now
                    self._changes.happened_somewhere()

    @asynccontextmanager
    async def _subscribed(self, subscription: SqliteSubscription) -> AsyncIterator[SqliteSubscription]:
        await subscription.register()
        self._subscriptions.add(subscription)
        self._has_subscriptions.set()
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)
            if not self._subscriptions:
                self._has_subscriptions.clear()
            await subscription.close()


@asynccontextmanager
async def open_sqlite_bus(path: Path, *, busy_timeout_s: float = 5.0) -> AsyncIterator[SqliteBus]:
    """Open or create the queue's file; any number of processes of one machine may.

    Args:
        path: the queue's own SQLite file, on a local disk.
        busy_timeout_s: how long a call waits for another process's transaction.

    Raises:
        BrokerUnavailable: the file cannot be opened or written.
    """
    worker = FileThread(path, busy_timeout_s=busy_timeout_s)
    tasks: list[asyncio.Task[None]] = []
    try:
        await worker.open()
        bus = SqliteBus(worker)
        tasks.append(asyncio.create_task(bus.beat(), name="sqlite-bus beat"))
        tasks.append(asyncio.create_task(bus.listen(), name="sqlite-bus listen"))
        yield bus
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await worker.close()
