"""Answers on their way to who listens: numbered, resumable on this replica, and stopped when nobody listens any more.

What was written is shown only while its sources stand: a listener who is slow, or comes back, is shown nothing that has
lain here for long before the sources were looked at again.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from time import perf_counter

from dats_common.errors import DatsError, DeadlineExceeded, InvalidInput, Unavailable
from dats_common.ports import Guard
from dats_common.telemetry.logs import log
from services.query.answering import Answering
from services.query.happenings import Answer, Ask, Found, Happening, Withdrawn, new_answer_id

GRACE_S = 2.0
"""A listener whose connection broke may come back within this; then the model is stopped."""
_FRESH_S = 0.2


@dataclass(slots=True, eq=False)
class Stream:
    """One answer on its way, and how many listen. Bounded by the longest response: a token is a few pieces at most."""

    answer_id: str
    ask: Ask
    begun_s: float = field(default_factory=perf_counter)
    happened: list[tuple[float, Happening | DatsError]] = field(default_factory=list)
    sources: Found | None = None
    listeners: int = 0
    more: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, happening: Happening | DatsError) -> None:
        """Wake everybody who listens."""
        self.happened.append((asyncio.get_running_loop().time(), happening))
        if isinstance(happening, Found):
            self.sources = happening
        self.more.set()
        self.more = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen."""
        return bool(self.happened) and isinstance(self.happened[-1][1], Answer | Withdrawn | DatsError)

    def is_of(self, ask: Ask) -> bool:
        """Whether the same caller asks for the same user: nobody else may listen."""
        return (self.ask.actor, self.ask.principal) == (ask.actor, ask.principal)


class Streams:
    """The answers that this replica is writing."""

    def __init__(self, *, engine: Answering, ledger: Guard, deadline_s: float, grace_s: float = GRACE_S) -> None:
        self._engine = engine
        self._ledger = ledger
        self._deadline_s = deadline_s
        self._grace_s = grace_s
        self._running: dict[str, Stream] = {}
        self._tasks: dict[Stream, asyncio.Task[None]] = {}

    def begin(self, ask: Ask) -> Stream:
        """Have an answer written, for as long as somebody listens."""
        stream = Stream(new_answer_id(), ask)
        task = asyncio.create_task(self._write(stream), name=stream.answer_id)
        self._running[stream.answer_id] = stream
        self._tasks[stream] = task
        task.add_done_callback(lambda _: self._forget(stream))
        return stream

    def running(self, answer_id: str, ask: Ask) -> Stream | None:
        """One that is still being written, for the same asker."""
        stream = self._running.get(answer_id)
        return stream if stream is not None and stream.is_of(ask) and not stream.is_over else None

    async def listen(self, stream: Stream, *, after: int = 0) -> AsyncGenerator[tuple[int, Happening | DatsError]]:
        """What happens, each with its number from 1, from behind `after` to the end of the answer.

        Raises: InvalidInput: nothing of that number has happened yet.
        """
        if after > len(stream.happened):
            raise InvalidInput(f"this answer has {len(stream.happened)} events so far, not {after}")
        stream.listeners += 1
        looked_s = -math.inf
        try:
            number = after
            while True:
                while number >= len(stream.happened):
                    await stream.more.wait()
                at_s, happening = stream.happened[number]
                number += 1
                now_s = asyncio.get_running_loop().time()
                if min(now_s - at_s, now_s - looked_s) > _FRESH_S:
                    looked_s = now_s
                    happening = await self._unless_fallen(stream, happening)
                yield number, happening
                if isinstance(happening, Answer | Withdrawn | DatsError):
                    return
        finally:
            stream.listeners -= 1
            if not stream.listeners:
                asyncio.get_running_loop().call_later(self._grace_s, self._stop_unheard, stream)

    async def _write(self, stream: Stream) -> None:
        try:
            async with (
                asyncio.timeout(self._deadline_s),
                aclosing(self._engine.happenings(stream.ask, answer_id=stream.answer_id)) as happenings,
            ):
                async for happening in happenings:
                    stream.add(happening)
        except TimeoutError:
            stream.add(DeadlineExceeded(f"not done within {self._deadline_s} s"))
        except DatsError as error:
            stream.add(error)
        except Exception as error:
            log("query").error("request_failed", route="answer/stream", error_type=type(error).__name__)
            stream.add(DatsError("the service failed; it has been logged"))
        finally:
            if not stream.is_over:  # cancelled: whoever listens all the same must not wait for ever
                stream.add(Unavailable("the answer was stopped"))

    async def _unless_fallen(self, stream: Stream, happening: Happening | DatsError) -> Happening | DatsError:
        """What may be shown now, instead of something that has lain here: without the ledger nothing may."""
        refs = [hit.passage.ref for hit in stream.sources.hits] if stream.sources else []
        try:
            live = await self._ledger.still_live(refs, stream.ask.principal)
        except DatsError as error:
            return error
        fallen = tuple(sorted({ref.key for ref in refs if ref not in live}))
        return Withdrawn(stream.answer_id, fallen) if fallen else happening

    def _forget(self, stream: Stream) -> None:
        self._running.pop(stream.answer_id, None)
        del self._tasks[stream]

    def _stop_unheard(self, stream: Stream) -> None:
        if not stream.listeners and (task := self._tasks.get(stream)) is not None:
            self._running.pop(stream.answer_id, None)
            task.cancel()

    async def close(self) -> None:
        """Stop them all."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
