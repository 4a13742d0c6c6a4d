"""Connections to a broker or to any node of a cluster: opened when needed, and again after they were lost."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import aio_pika
import structlog
from aio_pika.abc import AbstractChannel, AbstractConnection
from aio_pika.exceptions import (
    CONNECTION_EXCEPTIONS,
    AuthenticationError,
    ChannelPreconditionFailed,
    ProbableAuthenticationError,
    PublishError,
)

from dats_common.errors import BrokerUnavailable, ConfigurationError

log = structlog.get_logger(component="rabbitmq")

T = TypeVar("T")

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
REPORT_EVERY_S = 5.0

BETWEEN_NODES = re.compile(r",(?=amqps?://)")  # a bare comma may stand in a password

Report = Callable[[float, BrokerUnavailable], None]


def report_wait(waited_s: float, error: BrokerUnavailable) -> None:
    """Log that the broker is still away."""
    log.warning("broker_waited", waited_s=round(waited_s, 1), error=str(error))


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Library errors become ours, once, and a cancellation stays one. A timeout belongs inside."""
    is_cancelled = _watch_for_cancellation()
    try:
        yield
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        # The library rejects calls in flight with CancelledError when their channel dies.
        raise BrokerUnavailable(f"{doing}: the channel was closed") from error
    except Exception as error:
        if not is_cancelled():
            ours = _ours(doing, error)
            if ours is None:
                raise
            raise ours from error
    # Also the other way round: of a cancelled call the library closes the channel, and may then report the channel's
    # end, or nothing. A loop that caught that would never hear that it was to end.
    if is_cancelled():
        raise asyncio.CancelledError


def _watch_for_cancellation() -> Callable[[], bool]:
    """Tells whether this task has been cancelled since: a timeout that is over no longer counts."""
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    return lambda: task is not None and task.cancelling() > before


def _ours(doing: str, error: Exception) -> ConfigurationError | BrokerUnavailable | None:
    """What a library's error is to our callers; None: it is not the library's."""
    match error:
        case AuthenticationError() | ProbableAuthenticationError():
            return ConfigurationError("RabbitMQ refused the credentials: check DATS_RABBITMQ_URL")
        case ChannelPreconditionFailed():
            return ConfigurationError(
                f"{doing}: a queue or exchange of that name exists with other properties; delete or rename it ({error})"
            )
        case PublishError():
            return BrokerUnavailable(f"{doing}: no queue is bound")
    if isinstance(error, (*CONNECTION_EXCEPTIONS, TimeoutError)):
        return BrokerUnavailable(f"{doing}: {type(error).__name__}")
    return None


async def persist(attempt: Callable[[], Awaitable[T]], *, within_s: float | None, report: Report) -> T:
    """Repeat with back-off until it works. Raises: BrokerUnavailable: not within `within_s` (None: for ever)."""
    clock = asyncio.get_running_loop().time
    started, reported, pause_s = clock(), float("-inf"), FIRST_PAUSE_S
    while True:
        try:
            return await attempt()
        except BrokerUnavailable as error:
            now = clock()
            if within_s is not None and now + pause_s - started > within_s:
                raise
            if now - reported >= REPORT_EVERY_S:
                report(now - started, error)
                reported = now
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


class Link:
    """One connection, opened when first needed and again after it was lost, to any node of the cluster."""

    def __init__(self, url: str, *, name: str, heartbeat_s: int, timeout_s: float) -> None:
        self._nodes = deque(BETWEEN_NODES.split(url))  # the first is tried first: it answered last
        self._name = name
        self._heartbeat_s = heartbeat_s
        self._timeout_s = timeout_s
        self._connection: AbstractConnection | None = None
        self._turn = asyncio.Lock()

    async def channel(self, *, confirms: bool) -> AbstractChannel:
        """A fresh channel. Library errors pass through: callers translate them with what they were doing."""
        connection = await self._open()
        channel = connection.channel(publisher_confirms=confirms, on_return_raises=confirms)
        await channel.initialize()
        return channel

    async def close(self) -> None:
        """Close the connection, if there is one; the next channel opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(BrokerUnavailable), translated("closing"):
                async with asyncio.timeout(self._timeout_s):
                    await connection.close()

    async def _open(self) -> AbstractConnection:
        async with self._turn:
            if self._connection is None or not self._connection.connected.is_set():
                await self.close()
                self._connection = await self._connect()
            return self._connection

    async def _connect(self) -> AbstractConnection:
        """To the first node that answers. One that hangs uses up the caller's time, and is the last one next time."""
        for nodes_left in reversed(range(len(self._nodes))):
            try:
                return await aio_pika.connect(
                    self._nodes[0],
                    timeout=self._timeout_s,
                    heartbeat=self._heartbeat_s,
                    client_properties={"connection_name": self._name},
                )
            except BaseException as error:
                self._nodes.rotate(-1)
                if not nodes_left or not isinstance(error, CONNECTION_EXCEPTIONS):
                    raise
        raise AssertionError("a URL has at least one part")


async def close_quietly(channel: AbstractChannel, *, timeout_s: float) -> None:
    """Close a channel whose end matters to nobody any more. A caller that is cancelled leaves it to itself: for a close
    that was broken off the library sends another, and the broker ends the whole connection over it (CHANNEL_ERROR).
    """

    async def close() -> None:
        with suppress(BrokerUnavailable), translated("closing a channel"):
            async with asyncio.timeout(timeout_s):
                await channel.close()

    closing = asyncio.create_task(close(), name="close channel")
    _closing.add(closing)
    closing.add_done_callback(_closing.discard)
    await asyncio.shield(closing)


_closing: set[asyncio.Task[None]] = set()  # the loop itself would keep them by weak references only
