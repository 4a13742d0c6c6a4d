"""The named points at which a writer is made to die or to hang, and the work that leads it there.

The two processes share only this module and a directory: the test arms one point by a file there, the writer that gets
there first takes the file away, leaves a mark with its process id, and dies, or stands still until it is released.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

EXIT_CODE = 86
POLL_S = 0.02


class Mode(StrEnum):
    """What happens at the point."""

    EXIT = "exit"
    BLOCK = "block"


class Work(StrEnum):
    """What is asked of the fleet, so that a writer comes by."""

    EMBED = "embed"
    REPLACE = "replace"
    TAINT = "taint"
    POISON = "poison"
    RETRY = "retry"
    TAKE_OVER = "take over"


class Hook(StrEnum):
    """The places in a writer. Each is just before or just after one call of a port."""

    RECEIVED = "received, before V1"
    ADMITTED = "V1 committed"
    ROWS_WRITTEN = "chunk rows written"
    SOME_STORED = "some points stored"
    ALL_STORED = "all points stored, before the flip"
    FLIPPED = "flip committed, before the relay"
    CLAIMED = "outbox claimed, before the publish"
    PUBLISHED = "published, before it is marked"
    TO_ACK = "marked, before the acknowledgement"
    ACKED = "after the acknowledgement"
    TAINT_RECEIVED = "taint received, before T1"
    TAINTED = "T1 committed, before the relay"
    LISTED = "dead points listed, before they are deleted"
    DELETED = "dead points deleted"
    REPORTED = "report written, before the dead letter is published"
    MOVED = "copy published, before the original is acknowledged"
    TAKEN_OVER = "epoch raised"


@dataclass(frozen=True, slots=True)
class Point:
    """A place, and the work on whose way it lies."""

    work: Work
    hook: Hook

    def __str__(self) -> str:
        return f"{self.work}: {self.hook}"


POINTS = (
    *(
        Point(Work.EMBED, hook)
        for hook in (
            Hook.RECEIVED,
            Hook.ADMITTED,
            Hook.ROWS_WRITTEN,
            Hook.SOME_STORED,
            Hook.ALL_STORED,
            Hook.FLIPPED,
            Hook.CLAIMED,
            Hook.PUBLISHED,
            Hook.TO_ACK,
            Hook.ACKED,
        )
    ),
    *(Point(Work.REPLACE, hook) for hook in (Hook.FLIPPED, Hook.LISTED, Hook.DELETED)),
    *(
        Point(Work.TAINT, hook)
        for hook in (
            Hook.TAINT_RECEIVED,
            Hook.TAINTED,
            Hook.CLAIMED,
            Hook.PUBLISHED,
            Hook.TO_ACK,
            Hook.ACKED,
            Hook.LISTED,
            Hook.DELETED,
        )
    ),
    Point(Work.POISON, Hook.REPORTED),
    Point(Work.POISON, Hook.MOVED),
    Point(Work.RETRY, Hook.MOVED),
    Point(Work.TAKE_OVER, Hook.TAKEN_OVER),
)


@dataclass(frozen=True, slots=True)
class Armed:
    """One point, for messages and artifacts that carry a word.

    Attributes:
        word: part of every artifact id (or body) that is meant; work that was left over from before passes.
    """

    hook: str
    mode: str
    word: str


class Control:
    """The directory that test and writers share."""

    def __init__(self, directory: Path) -> None:
        self._armed = directory / "armed"
        self._failing = directory / "failing"
        self._released = directory / "released"
        self._directory = directory

    # -- the test's side

    def arm(self, armed: Armed) -> None:
        """The next writer to come by takes it."""
        self._released.unlink(missing_ok=True)
        for mark in self._directory.glob("*-*"):
            mark.unlink()
        self._write(self._armed, json.dumps(asdict(armed)))

    def fail_once(self, word: str) -> None:
        """The next store of points whose artifact carries the word fails, as an index does that hiccups."""
        self._write(self._failing, word)

    def release(self) -> None:
        """Let the writer that stands still go on."""
        self._released.touch()

    @property
    def hit_by(self) -> int | None:
        """Process id of the writer that reached the point."""
        return next((int(mark.name.partition("-")[2]) for mark in self._directory.glob("hit-*")), None)

    @property
    def hit_at(self) -> float:
        """When it did, in seconds since 1970."""
        return next(self._directory.glob("hit-*")).stat().st_mtime

    def resumed(self, pid: int) -> bool:
        """Whether the writer went on after its release."""
        return (self._directory / f"resumed-{pid}").exists()

    # -- the writer's side

    async def at(self, hook: Hook, about: str) -> None:
        """Die or stand still here if this point is armed for what `about` names; else nothing."""
        armed = self.armed_at(hook, about)
        if armed is None:
            return
        mark = self._directory / f"hit-{os.getpid()}"
        try:
            self._armed.rename(mark)
        except FileNotFoundError:
            return  # another writer, or another task of this one, was first
        os.utime(mark)
        if armed.mode == Mode.EXIT:
            os._exit(EXIT_CODE)
        while not self._released.exists():
            await asyncio.sleep(POLL_S)
        (self._directory / f"resumed-{os.getpid()}").touch()

    def armed_at(self, hook: Hook, about: str) -> Armed | None:
        """What is armed here, if anything."""
        try:
            armed = Armed(**json.loads(self._armed.read_text()))
        except FileNotFoundError:
            return None
        return armed if armed.hook == hook and armed.word in about else None

    def takes_failure(self, about: str) -> bool:
        """Whether this call is the one that is to fail."""
        try:
            if self._failing.read_text() not in about:
                return False
            self._failing.unlink()
        except FileNotFoundError:
            return False
        return True

    def _write(self, path: Path, text: str) -> None:
        scratch = path.with_suffix(".new")
        scratch.write_text(text)
        scratch.rename(path)  # readers see all of it or nothing
