"""The SQL of the queue.

A message is a row; being in hand is a claim by a consumer; a consumer is a lease that its process renews. When a
process dies its leases run out and its claims fall back.
"""

# ruff: noqa: S608 - statements are put together from this module's constants alone

from __future__ import annotations

import itertools
import json
import sqlite3
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dats_common.contracts.routing import (
    PUBLISHED,
    PUBLISHED_MAX_MESSAGES,
    death_of,
    is_single_active,
    matches,
    replayed_headers,
)
from dats_common.contracts.topology import DEAD_LETTERS_QUEUE
from dats_common.ports import MOST_DEAD_LETTERS
from dats_common.records import DeadLetter, Delivery

LEASE_S = 2.5
"""A killed process is missed after this long; a live one may hang for this long without losing what it holds."""

WATCH_LEASE_S = 60.0
"""Of a private view: nobody waits to take its place, and one that ran out would miss events without knowing it."""

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
class Waiting:
    """What a consumer could claim now, and in how many seconds a delayed message is due."""

    count: int
    due_s: float | None


@dataclass(frozen=True, slots=True)
class Claim:
    message: int
    consumer: str


class QueueFile:
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

    def waiting(self, consumer: str, queue: str, *, limit: int) -> Waiting:
        """How much this consumer could claim now; nothing while it stands by."""
        values = {**_now(), "queue": queue, "limit": limit}
        if not self._is_served(consumer, queue):
            return Waiting(0, None)
        count = self._db.execute(f"SELECT count(*) FROM (SELECT 1 FROM message WHERE {WAITING} LIMIT :limit)", values)
        due = self._db.execute(
            "SELECT min(visible_at) - :now FROM message WHERE queue = :queue AND claimed_by IS NULL "
            "AND visible_at > 0 AND visible_at > :now",
            values,
        )
        return Waiting(int(count.fetchone()[0]), due.fetchone()[0])

    def claim(self, consumer: str, queue: str, *, limit: int, received_s: float) -> list[Delivery]:
        if not self._is_served(consumer, queue):
            return []
        rows = self._db.execute(
            f"SELECT * FROM message WHERE {WAITING} ORDER BY id LIMIT :limit",
            {**_now(), "queue": queue, "limit": limit},
        ).fetchall()
        self._db.executemany("UPDATE message SET claimed_by = ? WHERE id = ?", [(consumer, row["id"]) for row in rows])
        return [_delivery(row, consumer, received_s=received_s) for row in rows]

    def delete(self, claim: Claim) -> None:
        self._db.execute("DELETE FROM message WHERE id = ? AND claimed_by = ?", (claim.message, claim.consumer))

    def release(self, claim: Claim) -> None:
        self._db.execute(
            "UPDATE message SET claimed_by = NULL, redelivered = 1 WHERE id = ? AND claimed_by = ?",
            (claim.message, claim.consumer),
        )

    def move(self, claim: Claim, queue: str, *, attempt: int, headers: Mapping[str, Any], delay_s: float = 0) -> None:
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

    def published(self) -> list[bytes]:
        rows = self._db.execute("SELECT body FROM message WHERE queue = ? ORDER BY id", (PUBLISHED.name,))
        return [row["body"] for row in rows]

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


def _delivery(row: sqlite3.Row, consumer: str, *, received_s: float) -> Delivery:
    return Delivery(
        body=row["body"],
        event_type=row["event_type"],
        received_s=received_s,
        message_id=row["message_id"],
        attempt=row["attempt"],
        timestamp=row["timestamp"],
        redelivered=bool(row["redelivered"]),
        headers=json.loads(row["headers"]),
        handle=Claim(row["id"], consumer),
    )


def _dead_letter(row: sqlite3.Row) -> DeadLetter:
    return DeadLetter(
        letter_id=row["message_id"],
        death=death_of(json.loads(row["headers"]), event_type=row["event_type"]),
        size_bytes=row["size"],
        body=row["body"],
    )
