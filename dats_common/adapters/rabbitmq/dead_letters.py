"""Dead letters as operators see them: looked at, replayed, dropped; in order, and never lost. And a look back at what
was published, in the same way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue

from dats_common.adapters.rabbitmq.connection import Link, close_quietly, translated
from dats_common.adapters.rabbitmq.declarations import DEFAULT_EXCHANGE, declare_known
from dats_common.adapters.rabbitmq.messages import copied_message, dead_letter_of, delivery_of, letter_id_of
from dats_common.adapters.rabbitmq.publisher import Publisher
from dats_common.contracts.routing import replayed_headers
from dats_common.contracts.topology import DEAD_LETTERS_QUEUE, PUBLISHED_QUEUE
from dats_common.ports import MOST_DEAD_LETTERS
from dats_common.records import DeadLetter

DEAD_LETTERS_BYTES = 32 * 1024 * 1024
"""How much of those that are to be settled is in our memory at a time."""

_COUNT_AGAIN_S = 0.05


class RabbitDeadLetters:
    """`ports.DeadLetters` and `ports.LookBack` on RabbitMQ."""

    def __init__(self, *, publisher: Publisher, consumers: Link, call_timeout_s: float) -> None:
        self._publisher = publisher
        self._consumers = consumers
        self._call_timeout_s = call_timeout_s

    async def dead_letters(
        self, *, limit: int, only: Collection[str] | None = None, with_bodies: bool = False
    ) -> list[DeadLetter]:
        """See `ports.DeadLetters`."""
        found: list[DeadLetter] = []

        def note(message: AbstractIncomingMessage) -> None:
            letter = dead_letter_of(message, with_body=with_bodies)
            if len(found) < limit and (only is None or letter.letter_id in only):
                found.append(letter)

        async with self._in_hand(DEAD_LETTERS_QUEUE, note):
            return found

    async def replay_dead_letters(self, *, only: Collection[str] | None = None) -> list[str]:
        """See `ports.DeadLetters`."""
        return await self._settle_dead_letters(only, self._replay)

    async def drop_dead_letters(self, *, only: Collection[str] | None = None) -> list[str]:
        """See `ports.DeadLetters`."""
        return await self._settle_dead_letters(only, _always)

    async def published(self) -> list[bytes]:
        """See `ports.LookBack`."""
        found: list[bytes] = []
        async with self._in_hand(PUBLISHED_QUEUE, lambda message: found.append(message.body)):
            return found

    async def _settle_dead_letters(
        self, only: Collection[str] | None, settle: Callable[[AbstractIncomingMessage], Awaitable[bool]]
    ) -> list[str]:
        """Settle those for which `settle` says so, as many at a time as may be in our memory."""
        settled: list[str] = []
        pick = _Pick(only)
        while pick.again():
            async with self._in_hand(DEAD_LETTERS_QUEUE, pick.note, at_least=pick.left):
                for message in pick.held:
                    if await settle(message):
                        with translated("taking a dead letter"):
                            await message.ack()
                        settled.append(letter_id_of(message))
        return settled

    async def _replay(self, message: AbstractIncomingMessage) -> bool:
        letter = dead_letter_of(message)
        if not letter.death.is_replayable:
            return False
        delivery = replace(
            delivery_of(message, received_s=asyncio.get_running_loop().time()), event_type=letter.death.event_type
        )
        again = copied_message(delivery, replayed_headers(message.headers))
        await self._publisher.publish(DEFAULT_EXCHANGE, letter.death.source_queue, again)
        return True

    @asynccontextmanager
    async def _in_hand(
        self, name: str, note: Callable[[AbstractIncomingMessage], None], *, at_least: int = 0
    ) -> AsyncIterator[None]:
        """Show a queue's messages to `note`, oldest first. What was not acknowledged in the block goes back, in order.

        One consumer holds all of them until its channel closes. Other ways disturb a quorum queue's order: what goes
        back comes before what was never out, but behind what came back earlier; single gets go back in the order of
        their delivery tags as text, and rejected ones by hash.

        Args:
            at_least: so many must be there: the broker counts what went back a moment later than it closes a channel.
        """
        seen, complete = 0, asyncio.Event()
        with translated(f"looking at {name}"):
            async with asyncio.timeout(self._call_timeout_s):
                channel = await self._consumers.channel(confirms=False)
        try:
            with translated(f"looking at {name}"):
                async with asyncio.timeout(self._call_timeout_s):
                    queue, waiting = await self._counted(channel, name, at_least=at_least)

                    async def receive(message: AbstractIncomingMessage) -> None:
                        nonlocal seen
                        seen += 1
                        if seen <= waiting:
                            note(message)
                        if seen == waiting:
                            complete.set()

                    if waiting:
                        await channel.set_qos(prefetch_count=waiting)
                        await queue.consume(receive)
            with suppress(TimeoutError):  # somebody else may have taken one since they were counted
                async with asyncio.timeout(self._call_timeout_s if waiting else 0):
                    await complete.wait()
            yield
            # The broker answers in order: once it has closed the channel, it has taken the acknowledgements.
            with translated(f"taking from {name}"):
                async with asyncio.timeout(self._call_timeout_s):
                    await channel.close()
        finally:
            await close_quietly(channel, timeout_s=self._call_timeout_s)

    async def _counted(self, channel: AbstractChannel, name: str, *, at_least: int) -> tuple[AbstractQueue, int]:
        """The queue and how many wait in it; fewer than asked for if somebody else took some."""
        give_up_at = asyncio.get_running_loop().time() + self._call_timeout_s / 2
        while True:
            queue = await declare_known(channel, name)
            waiting = min(queue.declaration_result.message_count or 0, MOST_DEAD_LETTERS)
            if waiting >= at_least or asyncio.get_running_loop().time() > give_up_at:
                return queue, waiting
            await asyncio.sleep(_COUNT_AGAIN_S)


async def _always(_: AbstractIncomingMessage) -> bool:
    return True


class _Pick:
    """Which dead letters to settle, pass by pass. What dies again meanwhile was not there in the first one."""

    def __init__(self, only: Collection[str] | None) -> None:
        self._only = only
        self._there: set[str] = set()
        self._passes = 0
        self._bytes = 0
        self._left_some = True
        self.held: list[AbstractIncomingMessage] = []

    def again(self) -> bool:
        """Begin a pass, if the one before had to leave some."""
        if not self._left_some:
            return False
        self._there -= {letter_id_of(message) for message in self.held}
        self._passes, self.held, self._bytes, self._left_some = self._passes + 1, [], 0, False
        return True

    @property
    def left(self) -> int:
        """How many of those that were there in the first pass have not been held yet."""
        return len(self._there)

    def note(self, message: AbstractIncomingMessage) -> None:
        """Hold it, unless it is not wanted or too much for now."""
        letter_id = letter_id_of(message)
        if self._passes == 1 and (self._only is None or letter_id in self._only):
            self._there.add(letter_id)
        if letter_id not in self._there:
            return
        if self.held and self._bytes + len(message.body) > DEAD_LETTERS_BYTES:
            self._left_some = True
            return
        self.held.append(message)
        self._bytes += len(message.body)
