"""The laptop's bus: a durable queue in one SQLite file, shared by the processes of one machine.

A message is a row; being in hand is a claim by a consumer; a consumer is a lease that its process renews. When a
process dies its leases run out and its claims fall back. All SQL runs in one thread of the bus; settlements and
publishes that come together share one transaction, hence one fsync.
"""

# ruff: noqa: S608 - statements are put together from this module's constants alone

from __future__ import annotations

import asyncio
import itertools
import json
import math
import sqlite3
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dats_common.contracts.routing import (
    PUBLISHED,
    PUBLISHED_MAX_MESSAGES,
    QUEUE_NAMES,
    dead_letter_headers,
    death_of,
    destinations,
    is_single_active,
    matches,
    replayed_headers,
)
from dats_common.contracts.topology import COMMANDS_EXCHANGE, DEAD_LETTERS_QUEUE, EMBED_COMMAND, EVENTS_EXCHANGE
from dats_common.errors import BrokerUnavailable, ConfigurationError
from dats_common.ports import MOST_DEAD_LETTERS, DeadLetter, Delivery, Subscription

T = TypeVar("T")

LEASE_S = 2.5
"""A killed process is missed after this long; a live one may hang for this long without losing what it holds."""

WATCH_LEASE_S = 60.0
"""Of a private view: nobody waits to take its place, and one that ran out would miss events without knowing it."""

_WATCHED_TOGETHER = 64

BEAT_S = 0.5
LISTEN_S = 0.05
"""How often a waiting consumer looks whether another process wrote. One look reads a counter in shared memory."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS message (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    queue TEXT NOT NULL,
    body BLOB NOT NULL,
    event_type TEXT NOT NULL,
    message_id TEXT NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 1,
    timestamp INTEGER,
    headers TEXT NOT NULL DEFAULT '{}',
    redelivered INTEGER NOT NULL DEFAULT 0,
    visible_at REAL NOT NULL DEFAULT 0,
    claimed_by TEXT
);
CREATE INDEX IF NOT EXISTS message_waiting ON message (queue, id, visible_at) WHERE claimed_by IS NULL;
CREATE INDEX IF NOT EXISTS message_due ON message (queue, visible_at) WHERE claimed_by IS NULL AND visible_at > 0;
CREATE INDEX IF NOT EXISTS message_claimed ON message (claimed_by) WHERE claimed_by IS NOT NULL;
CREATE TABLE IF NOT EXISTS consumer (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    queue TEXT NOT NULL,
    patterns TEXT,
    taking INTEGER NOT NULL DEFAULT 1,
    expires_at REAL NOT NULL
);
"""

# A lease further ahead than a lease is long was written before the clock went back: it has run out too.
LIVE = "expires_at > :now AND expires_at <= :now + CASE WHEN patterns IS NULL THEN :lease ELSE :watch_lease END"
WAITING = "queue = :queue AND claimed_by IS NULL AND visible_at <= :now"


@dataclass(frozen=True, slots=True)
class _Waiting:
    """What a consumer could claim now, and in how many seconds a delayed message is due."""

    count: int
    due_s: float | None


@dataclass(frozen=True, slots=True)
class _Claim:
    message: int
    consumer: str


class _File:
    """The SQL of the queue. Synchronous; used by one thread."""

    def __init__(self, path: Path, *, busy_timeout_s: float) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False)
        self._db.row_factory = sqlite3.Row
        self._become_wal(time.monotonic() + busy_timeout_s)
        with self.transaction(durable=True):
            for statement in filter(str.strip, SCHEMA.split(";")):
                self._db.execute(statement)

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def transaction(self, *, durable: bool) -> Iterator[None]:
        """Leases and claims need not outlive a power cut, so they spare the disk its fsync; messages do."""
        self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def changes(self) -> int:
        """A number that moves when another connection has committed."""
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def insert(
        self,
        targets: Sequence[str],
        event_type: str,
        body: bytes,
        *,
        timestamp: int | None,
        headers: Mapping[str, Any],
    ) -> None:
        self._db.executemany(
            "INSERT INTO message (queue, body, event_type, message_id, timestamp, headers) VALUES (?, ?, ?, ?, ?, ?)",
            [(queue, body, event_type, uuid.uuid4().hex, timestamp, json.dumps(headers)) for queue in targets],
        )

    def watchers(self, routing_key: str) -> list[str]:
        rows = self._db.execute(f"SELECT queue, patterns FROM consumer WHERE patterns IS NOT NULL AND {LIVE}", _now())
        return [
            row["queue"]
            for row in rows
            if any(matches(pattern, routing_key) for pattern in json.loads(row["patterns"]))
        ]

    def register(self, consumer: str, queue: str, patterns: Sequence[str] | None) -> None:
        self._db.execute(
            "INSERT INTO consumer (id, queue, patterns, expires_at) VALUES (?, ?, ?, ?)",
            (
                consumer,
                queue,
                None if patterns is None else json.dumps(patterns),
                time.time() + (LEASE_S if patterns is None else WATCH_LEASE_S),
            ),
        )

    def renew(self, consumer: str) -> bool:
        """Whether the lease still stood."""
        return self._changed(
            "UPDATE consumer SET expires_at = :now + CASE WHEN patterns IS NULL THEN :lease ELSE :watch_lease END "
            "WHERE id = :id",
            {**_now(), "id": consumer},
        )

    def stop_taking(self, consumer: str) -> None:
        self._db.execute("UPDATE consumer SET taking = 0 WHERE id = ?", (consumer,))

    def leave(self, consumer: str) -> None:
        """The consumer is gone; its claims fall back, and its private queue with it."""
        self._db.execute("DELETE FROM consumer WHERE id = ?", (consumer,))
        self._release_orphans()

    def expire(self) -> None:
        """End leases that ran out, and keep the published queue within its bound."""
        if self._changed(f"DELETE FROM consumer WHERE NOT ({LIVE})", _now()):
            self._release_orphans()
        self._db.execute(
            "DELETE FROM message WHERE queue = :queue AND claimed_by IS NULL AND id <= (SELECT id FROM message "
            "WHERE queue = :queue AND claimed_by IS NULL ORDER BY id DESC LIMIT 1 OFFSET :kept)",
            {"queue": PUBLISHED.name, "kept": PUBLISHED_MAX_MESSAGES},
        )

    def waiting(self, consumer: str, queue: str, *, limit: int) -> _Waiting:
        """How much this consumer could claim now; nothing while it stands by."""
        values = {**_now(), "queue": queue, "limit": limit}
        if not self._is_served(consumer, queue):
            return _Waiting(0, None)
        count = self._db.execute(f"SELECT count(*) FROM (SELECT 1 FROM message WHERE {WAITING} LIMIT :limit)", values)
        due = self._db.execute(
            "SELECT min(visible_at) - :now FROM message WHERE queue = :queue AND claimed_by IS NULL "
            "AND visible_at > 0 AND visible_at > :now",
            values,
        )
        return _Waiting(int(count.fetchone()[0]), due.fetchone()[0])

    def claim(self, consumer: str, queue: str, *, limit: int) -> list[Delivery]:
        if not self._is_served(consumer, queue):
            return []
        rows = self._db.execute(
            f"SELECT * FROM message WHERE {WAITING} ORDER BY id LIMIT :limit",
            {**_now(), "queue": queue, "limit": limit},
        ).fetchall()
        self._db.executemany("UPDATE message SET claimed_by = ? WHERE id = ?", [(consumer, row["id"]) for row in rows])
        return [_delivery(row, consumer) for row in rows]

    def delete(self, claim: _Claim) -> None:
        self._db.execute("DELETE FROM message WHERE id = ? AND claimed_by = ?", (claim.message, claim.consumer))

    def release(self, claim: _Claim) -> None:
        self._db.execute(
            "UPDATE message SET claimed_by = NULL, redelivered = 1 WHERE id = ? AND claimed_by = ?",
            (claim.message, claim.consumer),
        )

    def move(self, claim: _Claim, queue: str, *, attempt: int, headers: Mapping[str, Any], delay_s: float = 0) -> None:
        """One row changes its place: no moment in which the message is in neither queue or in both."""
        self._db.execute(
            "UPDATE message SET queue = ?, attempt = ?, headers = ?, visible_at = ?, redelivered = 0, "
            "claimed_by = NULL WHERE id = ? AND claimed_by = ?",
            (queue, attempt, json.dumps(headers), time.time() + delay_s, claim.message, claim.consumer),
        )

    def depth(self, queue: str) -> int:
        row = self._db.execute(f"SELECT count(*) FROM message WHERE {WAITING}", {**_now(), "queue": queue}).fetchone()
        return int(row[0])

    def dead(self, only: Collection[str] | None, *, limit: int, with_bodies: bool) -> list[DeadLetter]:
        body = "body" if with_bodies else "NULL AS body"
        rows = self._db.execute(
            f"SELECT message_id, event_type, headers, length(body) AS size, {body} FROM message WHERE {WAITING} "
            "ORDER BY id LIMIT :most",
            {**_now(), "queue": DEAD_LETTERS_QUEUE, "most": MOST_DEAD_LETTERS},
        )
        found = (_dead_letter(row) for row in rows if only is None or row["message_id"] in only)
        return list(itertools.islice(found, limit))

    def revive(self, only: Collection[str] | None) -> list[str]:
        revived = []
        for letter in self.dead(only, limit=MOST_DEAD_LETTERS, with_bodies=False):
            if letter.death.is_replayable:
                row = self._db.execute(
                    "SELECT headers FROM message WHERE message_id = ? AND queue = ?",
                    (letter.letter_id, DEAD_LETTERS_QUEUE),
                ).fetchone()
                self._db.execute(
                    "UPDATE message SET queue = ?, attempt = 1, headers = ?, visible_at = 0, redelivered = 0 "
                    "WHERE message_id = ? AND queue = ?",
                    (
                        letter.death.source_queue,
                        json.dumps(replayed_headers(json.loads(row["headers"]))),
                        letter.letter_id,
                        DEAD_LETTERS_QUEUE,
                    ),
                )
                revived.append(letter.letter_id)
        return revived

    def bury(self, only: Collection[str] | None) -> list[str]:
        doomed = [letter.letter_id for letter in self.dead(only, limit=MOST_DEAD_LETTERS, with_bodies=False)]
        self._db.executemany(
            "DELETE FROM message WHERE message_id = ? AND queue = ? AND claimed_by IS NULL",
            [(letter_id, DEAD_LETTERS_QUEUE) for letter_id in doomed],
        )
        return doomed

    def _is_served(self, consumer: str, queue: str) -> bool:
        """Whether the lease stands and, in a single-active queue, is the oldest of those that do."""
        rows = self._db.execute(
            f"SELECT id FROM consumer WHERE queue = :queue AND taking = 1 AND {LIVE} ORDER BY seq",
            {**_now(), "queue": queue},
        ).fetchall()
        served = rows[:1] if is_single_active(queue) else rows
        return any(row["id"] == consumer for row in served)

    def _release_orphans(self) -> None:
        self._db.execute(
            "UPDATE message SET claimed_by = NULL, redelivered = 1 "
            "WHERE claimed_by IS NOT NULL AND claimed_by NOT IN (SELECT id FROM consumer)"
        )
        self._db.execute("DELETE FROM message WHERE queue LIKE 'watch.%' AND queue NOT IN (SELECT queue FROM consumer)")

    def _changed(self, statement: str, values: Sequence[object] | Mapping[str, object]) -> bool:
        return self._db.execute(statement, values).rowcount > 0

    def _become_wal(self, deadline: float) -> None:
        # Switching the journal ignores the busy timeout while another process opens the file for the first time.
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                return


def _now() -> dict[str, float]:
    return {"now": time.time(), "lease": LEASE_S, "watch_lease": WATCH_LEASE_S}


def _delivery(row: sqlite3.Row, consumer: str) -> Delivery:
    return Delivery(
        body=row["body"],
        event_type=row["event_type"],
        message_id=row["message_id"],
        attempt=row["attempt"],
        timestamp=row["timestamp"],
        redelivered=bool(row["redelivered"]),
        headers=json.loads(row["headers"]),
        handle=_Claim(row["id"], consumer),
    )


def _dead_letter(row: sqlite3.Row) -> DeadLetter:
    return DeadLetter(
        letter_id=row["message_id"],
        death=death_of(json.loads(row["headers"]), event_type=row["event_type"]),
        size_bytes=row["size"],
        body=row["body"],
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """One change that waits for its transaction."""

    change: Callable[[_File], object]
    done: asyncio.Future[Any]


class _Worker:
    """The thread that owns the file, seen from the event loop."""

    def __init__(self, path: Path, *, busy_timeout_s: float) -> None:
        self._path = path
        self._busy_timeout_s = busy_timeout_s
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sqlite-bus")
        self._file: _File
        self._jobs: list[_Job] = []
        self._turn = asyncio.Lock()

    async def open(self) -> None:
        self._file = await self._in_thread(lambda: _File(self._path, busy_timeout_s=self._busy_timeout_s))

    async def close(self) -> None:
        if hasattr(self, "_file"):
            await self._in_thread(self._file.close)
        self._thread.shutdown(wait=False)

    async def read(self, question: Callable[[_File], T]) -> T:
        """Ask without a transaction. Raises: BrokerUnavailable."""
        return await self._in_thread(lambda: question(self._file))

    async def lease(self, change: Callable[[_File], T]) -> T:
        """Change claims or leases, at once. Raises: BrokerUnavailable."""

        def run() -> T:
            with self._file.transaction(durable=False):
                return change(self._file)

        return await self._in_thread(run)

    async def write(self, change: Callable[[_File], object]) -> None:
        """Change messages durably, sharing the transaction with whoever writes meanwhile. Raises: BrokerUnavailable."""
        job = _Job(change, asyncio.get_running_loop().create_future())
        self._jobs.append(job)
        async with self._turn:
            if not job.done.done():
                jobs, self._jobs = self._jobs, []
                # A cancelled caller leaves, the transaction of all the others goes on.
                await asyncio.shield(asyncio.create_task(self._commit(jobs), name="sqlite-bus commit"))
        await job.done

    async def _commit(self, jobs: Sequence[_Job]) -> None:
        def run() -> None:
            with self._file.transaction(durable=True):
                for job in jobs:
                    job.change(self._file)

        try:
            await self._in_thread(run)
        except BrokerUnavailable as error:
            for job in jobs:
                job.done.set_exception(error)
                job.done.exception()  # marked as seen: its caller may be gone
        else:
            for job in jobs:
                job.done.set_result(None)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        except sqlite3.Error as error:
            raise BrokerUnavailable(f"the queue's file did not answer: {error}") from error


class SqliteSubscription:
    """A consumer of `SqliteBus`. Nothing is buffered: a batch claims exactly what it hands out."""

    def __init__(
        self, bus: SqliteBus, worker: _Worker, queue: str, *, prefetch: int, patterns: Sequence[str] | None = None
    ) -> None:
        self._bus = bus
        self._worker = worker
        self._queue = queue
        self._prefetch = prefetch
        self._patterns = patterns
        self._consumer = ""
        self._in_hand: set[int] = set()
        self._unreleased: list[_Claim] = []
        self._stopped = False

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

        def renew(file: _File) -> bool:
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
        self._bus.changed(self._queue)

    # -- the port

    async def batch(self, *, max_items: int, max_wait_s: float) -> list[Delivery]:
        """See `ports.Subscription`. Cancelling it loses nothing. Raises: BrokerUnavailable."""
        while True:
            await self._available(1, timeout_s=None)
            await self._available(max_items, timeout_s=max_wait_s)
            if self._stopped:
                return []
            if taken := await self._claim(max_items):
                return taken

    async def ack(self, delivery: Delivery) -> None:
        """See `ports.Subscription`."""
        claim: _Claim = delivery.handle
        await self._settle(delivery, lambda file: file.delete(claim))

    async def give_back(self, delivery: Delivery) -> None:
        """See `ports.Subscription`."""
        claim: _Claim = delivery.handle
        await self._settle(delivery, lambda file: file.release(claim))

    async def retry(self, delivery: Delivery, *, delay_s: float) -> None:
        """See `ports.Subscription`. The delay is exact."""
        claim, attempt, headers = delivery.handle, delivery.attempt + 1, delivery.headers
        await self._settle(
            delivery, lambda file: file.move(claim, self._queue, attempt=attempt, headers=headers, delay_s=delay_s)
        )

    async def hand_over(self, delivery: Delivery, *, queue: str) -> None:
        """See `ports.Subscription`."""
        _check_known(queue)
        claim, attempt, headers = delivery.handle, delivery.attempt, delivery.headers
        await self._settle(delivery, lambda file: file.move(claim, queue, attempt=attempt, headers=headers))
        self._bus.changed(queue)

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
        self._bus.changed(self._queue)

    async def _available(self, wanted: int, *, timeout_s: float | None) -> None:
        loop = asyncio.get_running_loop()
        give_up_at = math.inf if timeout_s is None else loop.time() + timeout_s
        while not self._stopped:
            change = self._bus.change(self._queue)
            waiting = await self._waiting(wanted)
            left_s = give_up_at - loop.time()
            if waiting.count >= wanted or left_s <= 0:
                return
            # Woken by a write at the latest when a delayed message is due or a lease may have run out.
            await change.wait_for(min(left_s, BEAT_S, BEAT_S if waiting.due_s is None else waiting.due_s))

    async def _waiting(self, wanted: int) -> _Waiting:
        room = min(wanted, self._prefetch - len(self._in_hand))
        if room <= 0:
            return _Waiting(0, None)
        consumer = self._consumer
        return await self._worker.read(lambda file: file.waiting(consumer, self._queue, limit=room))

    async def _claim(self, max_items: int) -> list[Delivery]:
        room = min(max_items, self._prefetch - len(self._in_hand))
        consumer = self._consumer
        claiming = asyncio.create_task(
            self._worker.lease(lambda file: file.claim(consumer, self._queue, limit=room)), name="sqlite-bus claim"
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

    async def _settle(self, delivery: Delivery, change: Callable[[_File], None]) -> None:
        try:
            await self._worker.write(change)
        except BrokerUnavailable:
            # Still claimed by a lease that we keep renewing: nobody would ever see it again.
            self._unreleased.append(delivery.handle)
        else:
            self._in_hand.discard(delivery.handle.message)
        self._bus.changed(self._queue)


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


class SqliteBus:
    """`ports.Bus` in a SQLite file; open it with `open_sqlite_bus`."""

    def __init__(self, worker: _Worker) -> None:
        self._worker = worker
        self._subscriptions: set[SqliteSubscription] = set()
        self._has_subscriptions = asyncio.Event()
        self._changes: defaultdict[str, _Change] = defaultdict(_Change)

    async def publish(self, routing_key: str, body: Mapping[str, Any], *, event_id: str) -> None:
        """See `ports.Bus`."""
        await self.inject(routing_key, json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode())

    async def command(self, body: Mapping[str, Any], *, event_id: str) -> None:
        """See `ports.Bus`."""
        encoded = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        await self.inject(EMBED_COMMAND, encoded, exchange=COMMANDS_EXCHANGE)

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

        def insert(file: _File) -> None:
            targets.extend(file.watchers(routing_key))
            file.insert(targets, routing_key, body, timestamp=timestamp, headers=headers or {})

        await self._worker.write(insert)
        self.changed(*targets)

    @asynccontextmanager
    async def subscribe(self, queue: str, *, prefetch: int) -> AsyncIterator[Subscription]:
        """See `ports.Bus`. Raises: ConfigurationError: no such queue."""
        _check_known(queue)
        async with self._subscribed(SqliteSubscription(self, self._worker, queue, prefetch=prefetch)) as subscription:
            yield subscription

    @asynccontextmanager
    async def watch(self, *routing_keys: str) -> AsyncIterator[AsyncIterator[Delivery]]:
        """See `ports.Bus`."""
        watcher = SqliteSubscription(
            self, self._worker, f"watch.{uuid.uuid4().hex}", prefetch=PUBLISHED_MAX_MESSAGES, patterns=routing_keys
        )
        async with self._subscribed(watcher) as subscription:
            yield _acknowledged(subscription)

    async def depth(self, queue: str) -> int:
        """See `ports.Bus`. Messages that wait out a retry are not counted."""
        _check_known(queue)
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
        self.changed(*QUEUE_NAMES)
        return replayed

    async def drop_dead_letters(self, *, only: Collection[str] | None = None) -> list[str]:
        """See `ports.DeadLetters`."""
        dropped: list[str] = []
        await self._worker.write(lambda file: dropped.extend(file.bury(only)))
        return dropped

    # -- for the subscriptions and the two tasks

    def changed(self, *queues: str) -> None:
        """Wake everybody who waits for one of these queues."""
        for queue in queues:
            if (change := self._changes.pop(queue, None)) is not None:
                change.happened()

    def change(self, queue: str) -> _Change:
        """The queue's next change; ask before looking, or it may be missed."""
        return self._changes[queue]

    async def beat(self) -> None:
        """Renew our leases and end those of the dead, for ever."""
        while True:
            with suppress(BrokerUnavailable):
                for subscription in list(self._subscriptions):
                    await subscription.beat()
                await self._worker.lease(_File.expire)
            await asyncio.sleep(BEAT_S)

    async def listen(self) -> None:
        """Notice what other processes write, for ever."""
        seen = None
        while True:
            await self._has_subscriptions.wait()
            await asyncio.sleep(LISTEN_S)
            with suppress(BrokerUnavailable):
                now = await self._worker.read(_File.changes)
                if now != seen:
                    seen = now
                    self.changed(*self._changes)

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


def _check_known(queue: str) -> None:
    if queue not in QUEUE_NAMES:
        raise ConfigurationError(f"{queue} is not a queue of this service")


async def _acknowledged(subscription: SqliteSubscription) -> AsyncIterator[Delivery]:
    while deliveries := await subscription.batch(max_items=_WATCHED_TOGETHER, max_wait_s=0):
        await asyncio.gather(*map(subscription.ack, deliveries))  # together: one transaction
        for delivery in deliveries:
            yield delivery


@asynccontextmanager
async def open_sqlite_bus(path: Path, *, busy_timeout_s: float = 5.0) -> AsyncIterator[SqliteBus]:
    """Open or create the queue's file; any number of processes of one machine may.

    Args:
        path: the queue's own SQLite file, on a local disk.
        busy_timeout_s: how long a call waits for another process's transaction.

    Raises:
        BrokerUnavailable: the file cannot be opened or written.
    """
    worker = _Worker(path, busy_timeout_s=busy_timeout_s)
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
