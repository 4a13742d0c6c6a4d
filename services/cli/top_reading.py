"""What `dats-rag top` looks at: ledger, broker and replicas, each within seconds; what does not answer says why."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import httpx

from dats_common.contracts.topology import COMMANDS_QUEUE, DEAD_LETTERS_QUEUE, TAINTS_QUEUE, VALIDATED_QUEUE
from dats_common.errors import ConfigurationError, DatsError, Unavailable
from dats_common.ports import OperatorsBus, OperatorsLedger
from dats_common.records import Heartbeat, LedgerCounts
from dats_common.settings import Settings
from services.backends import bus_file, open_bus, open_ledger
from services.cli.maintenance import no_fleet, require_fleet
from services.cli.scrape import Scrape

LOOK_TIMEOUT_S = 3.0
REPLICA_TIMEOUT_S = 6.0
"""A replica takes 3 s to find that something is away, and says so then."""
SHOWN_QUEUES = (TAINTS_QUEUE, VALIDATED_QUEUE, COMMANDS_QUEUE, DEAD_LETTERS_QUEUE)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Away:
    """It did not answer; never to be shown as a number."""

    reason: str


@dataclass(frozen=True, slots=True)
class LedgerFigures:
    """What the ledger says; `writers` are those that reported lately, and the last one if none did."""

    counts: LedgerCounts
    writers: tuple[Heartbeat, ...]
    epoch: int


@dataclass(frozen=True, slots=True)
class ReplicaFigures:
    """What one replica says of itself."""

    health: dict[str, Any]
    scrape: Scrape


@dataclass(frozen=True, slots=True)
class Picture:
    """One look at everything. `at_s` is monotonic."""

    at_s: float
    ledger: LedgerFigures | Away
    queues: dict[str, int] | Away
    replicas: dict[str, ReplicaFigures | Away]


class Fleet:
    """Holds what is open, and opens what was away at the last look."""

    def __init__(self, settings: Settings, urls: Sequence[str], http: httpx.AsyncClient, stack: AsyncExitStack) -> None:
        self._urls = urls
        self._http = http
        self._ledger = _Kept(stack, lambda: _ledger(settings))
        self._bus = _Kept(stack, lambda: _bus(settings))

    async def look(self) -> Picture:
        """Everything at once."""
        ledger, queues, replicas = await asyncio.gather(
            _within(self._look_at_ledger()),
            _within(self._look_at_queues()),
            asyncio.gather(*(_within(self._look_at_replica(url), timeout_s=REPLICA_TIMEOUT_S) for url in self._urls)),
        )
        return Picture(time.monotonic(), ledger, queues, dict(zip(self._urls, replicas, strict=True)))

    async def _look_at_ledger(self) -> LedgerFigures:
        ledger = await self._ledger.get()
        counts, beats, epoch = await ledger.counts(), await ledger.writers(), await ledger.epoch()
        return LedgerFigures(counts, tuple(beat for beat in beats if not beat.is_stale) or tuple(beats[:1]), epoch)

    async def _look_at_queues(self) -> dict[str, int]:
        bus = await self._bus.get()
        depths = await asyncio.gather(*(bus.depth(queue) for queue in SHOWN_QUEUES))
        return dict(zip(SHOWN_QUEUES, depths, strict=True))

    async def _look_at_replica(self, url: str) -> ReplicaFigures:
        try:
            health, metrics = await asyncio.gather(
                self._http.get(f"{url}/health"), self._http.get(f"{url.removesuffix('/api/v1')}/metrics")
            )
            metrics.raise_for_status()
            described = health.json()
            if "components" not in described:
                raise Unavailable(str(described.get("detail") or f"status {health.status_code}"))
            return ReplicaFigures(described, Scrape.parse(metrics.text))
        except (httpx.HTTPError, ValueError) as error:
            raise Unavailable(str(error) or type(error).__name__) from error


class _Kept(Generic[T]):
    """A connection that is opened at the first look that succeeds, and closed at the end."""

    def __init__(self, stack: AsyncExitStack, opening: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._stack = stack
        self._opening = opening
        self._task: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """Raises: DatsError. A slow one goes on opening in the background, for the next look."""
        if self._task is None or (self._task.done() and (self._task.cancelled() or self._task.exception())):
            self._task = asyncio.create_task(self._stack.enter_async_context(self._opening()), name="open")
        return await asyncio.shield(self._task)

    async def give_up(self) -> None:
        """Cancel an opening that is under way, so that the stack can close."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


@asynccontextmanager
async def open_fleet_view(settings: Settings, urls: Sequence[str], *, api_key: str | None) -> AsyncIterator[Fleet]:
    """Looks at a fleet for as long as the context lasts; nothing has to be there."""
    headers = {"X-API-Key": api_key} if api_key else {}
    async with (
        AsyncExitStack() as stack,
        httpx.AsyncClient(timeout=REPLICA_TIMEOUT_S, headers=headers, trust_env=False) as http,
    ):
        fleet = Fleet(settings, urls, http, stack)
        try:
            yield fleet
        finally:
            await fleet._ledger.give_up()
            await fleet._bus.give_up()


async def _within(work: Awaitable[T], *, timeout_s: float = LOOK_TIMEOUT_S) -> T | Away:
    try:
        async with asyncio.timeout(timeout_s):
            return await work
    except TimeoutError:
        return Away(f"no answer within {timeout_s:.0f} s")
    except DatsError as error:
        return Away(str(error))


@asynccontextmanager
async def _ledger(settings: Settings) -> AsyncIterator[OperatorsLedger]:
    require_fleet(settings)
    async with open_ledger(settings) as ledger:
        yield ledger


@asynccontextmanager
async def _bus(settings: Settings) -> AsyncIterator[OperatorsBus]:
    if settings.rabbitmq.is_embedded and not bus_file(settings).exists():
        raise ConfigurationError(no_fleet(settings))
    async with open_bus(settings, name="top", patient=False) as bus:
        yield bus
