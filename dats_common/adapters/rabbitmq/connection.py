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
    """Library errors become ours, once. A timeout belongs inside."""
    try:
        yield
    except (AuthenticationError, ProbableAuthenticationError) as error:
        raise ConfigurationError("RabbitMQ refused the credentials: check DATS_RABBITMQ_URL") from error
    except ChannelPreconditionFailed as error:
        raise ConfigurationError(
            f"{doing}: a queue or exchange of that name exists with other properties; delete or rename it ({error})"
        ) from error
    except PublishError as error:
        raise BrokerUnavailable(f"{doing}: no queue is bound") from error
    except (*CONNECTION_EXCEPTIONS, TimeoutError) as error:
        raise BrokerUnavailable(f"{doing}: {type(error).__name__}") from error
    except asyncio.CancelledError as error:
        # The library rejects calls in flight with CancelledError when their channel dies; only a real cancellation
        # is counted on the task.
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise BrokerUnavailable(f"{doing}: the channel was closed") from error


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
    """Close a channel whose end matters to nobody any more."""
    with suppress(BrokerUnavailable), translated("closing a channel"):
        async with asyncio.timeout(timeout_s):
            await channel.close()
