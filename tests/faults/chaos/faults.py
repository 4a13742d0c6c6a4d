"""Does the plan's faults to the fleet, mends them, and starts again what ended by itself, as an orchestrator would."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

from fleet import START_TIMEOUT_S, Child, Fleet, Replica
from servers import PostgresCluster, RabbitNode, wait_until

from tests.faults.chaos.history import History
from tests.faults.chaos.plan import Fault, FaultKind

AT_ONCE = 2
"""Faults that may last at the same time."""

LOOK_S = 0.1


class Attacker:
    """Faults come when the producers have got that far, and the producers wait for faults that are late."""

    def __init__(
        self, *, fleet: Fleet, node: RabbitNode, postgres: PostgresCluster, faults: Sequence[Fault], history: History
    ) -> None:
        self._fleet = fleet
        self._node = node
        self._postgres = postgres
        self._faults = faults
        self._history = history
        self._progress = 0.0
        self._begun = 0
        self._moved = asyncio.Condition()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._taken: dict[object, asyncio.Lock] = {}
        self._do: Mapping[FaultKind, Callable[[Fault], Awaitable[None]]] = {
            FaultKind.KILL_WRITER: lambda fault: self._kill(fault, fleet.writers),
            FaultKind.KILL_REPLICA: lambda fault: self._kill(fault, fleet.replicas),
            FaultKind.PAUSE_WRITER: lambda fault: self._pause(fault, fleet.writers),
            FaultKind.PAUSE_REPLICA: lambda fault: self._pause(fault, fleet.replicas),
            FaultKind.KILL_BROKER: self._kill_broker,
            FaultKind.CLOSE_CONNECTIONS: self._close_connections,
            FaultKind.RESTART_POSTGRES: self._restart_postgres,
            FaultKind.KILL_ENGINE: self._kill_engine,
        }

    async def reached(self, progress: float) -> None:
        """The producers are about to go beyond this share: returns once every fault that is due before it has begun."""
        async with self._moved:
            self._progress = progress
            self._moved.notify_all()
            due = sum(fault.at <= progress for fault in self._faults)
            await self._moved.wait_for(lambda: self._begun >= due)

    async def attack(self) -> None:
        """Returns once every fault has come and is mended."""
        async with asyncio.TaskGroup() as group:
            for fault in self._faults:
                async with self._moved:
                    await self._moved.wait_for(lambda due=fault.at: self._progress >= due)  # type: ignore[misc]
                await self._slots.acquire()
                group.create_task(self._one(fault), name=fault.kind)

    async def keep_running(self) -> None:
        """Start again what ended by itself, until cancelled: a writer that its watchdog ended, a start that failed."""
        while True:
            for child in [*self._fleet.writers, *self._fleet.replicas]:
                lock = self._lock(child)
                if not child.is_running and not lock.locked():
                    async with lock:
                        self._history.note("supervisor", "ended", what=child.log.stem, status=child.wait())
                        await self._start(child)
            await asyncio.sleep(LOOK_S)

    # -- faults

    async def _one(self, fault: Fault) -> None:
        try:
            await self._do[fault.kind](fault)
        finally:
            self._slots.release()

    async def _begin(self, fault: Fault, what: str) -> None:
        self._history.note("attacker", "fault", kind=fault.kind, what=what, lasts_s=round(fault.lasts_s, 2))
        async with self._moved:
            self._begun += 1
            self._moved.notify_all()

    async def _kill(self, fault: Fault, among: Sequence[Child]) -> None:
        child = await self._target(fault, among)
        async with self._lock(child):
            await self._begin(fault, child.log.stem)
            if child.is_running:
                await asyncio.to_thread(child.kill9)
            await asyncio.sleep(fault.lasts_s)
            await self._start(child)
        self._mended(fault)

    async def _pause(self, fault: Fault, among: Sequence[Child]) -> None:
        child = await self._target(fault, among)
        async with self._lock(child):
            await self._begin(fault, child.log.stem)
            if child.is_running:
                child.pause()
                await asyncio.sleep(fault.lasts_s)
                child.resume()
        self._mended(fault)

    async def _kill_broker(self, fault: Fault) -> None:
        async with self._lock(self._node):
            await self._begin(fault, "broker")
            await asyncio.to_thread(self._node.kill9)
            await asyncio.sleep(fault.lasts_s)
            await asyncio.to_thread(self._node.start)
        self._mended(fault)

    async def _close_connections(self, fault: Fault) -> None:
        async with self._lock(self._node):
            await self._begin(fault, "broker")
            with suppress(subprocess.SubprocessError):  # rabbitmqctl may give up on a machine this busy
                await asyncio.to_thread(self._node.close_connections)
        self._mended(fault)

    async def _restart_postgres(self, fault: Fault) -> None:
        async with self._lock(self._postgres):
            await self._begin(fault, "postgres")
            await asyncio.to_thread(self._postgres.stop)
            await asyncio.sleep(fault.lasts_s)
            await asyncio.to_thread(self._postgres.start)
        self._mended(fault)

    async def _kill_engine(self, fault: Fault) -> None:
        engine = self._fleet.engine
        assert engine is not None
        async with self._lock(engine):
            await self._begin(fault, "engine")
            await asyncio.to_thread(engine.kill9)
            await asyncio.sleep(fault.lasts_s)
            await self._start(engine)
        self._mended(fault)

    # -- processes

    async def _target(self, fault: Fault, among: Sequence[Child]) -> Child:
        """The active writer in three of four faults on a writer: the standby has little to lose."""
        if among is self._fleet.writers and fault.pick < 0.75:
            # While the ledger is away nobody knows who is active.
            with suppress(OSError, TimeoutError, ConnectionError, *_LEDGER_AWAY):
                if active := await self._fleet.active_writer():
                    return active
        return among[int(fault.pick * 97) % len(among)]

    async def _start(self, child: Child) -> None:
        """Start it and wait until it works; one that ends instead is the supervisor's."""
        started = time.monotonic()
        child.log.rename(child.log.with_name(f"{child.log.stem}.{time.monotonic_ns()}.log"))
        child.start()
        with suppress(TimeoutError):
            await asyncio.to_thread(
                wait_until, lambda: not child.is_running or self._works(child), timeout_s=START_TIMEOUT_S, what="start"
            )
        self._history.note(
            "attacker", "started", what=child.log.stem, up=child.is_running, took_s=round(time.monotonic() - started, 2)
        )

    def _works(self, child: Child) -> bool:
        if isinstance(child, Replica):
            return '"event": "serving"' in child.log.read_text()
        if child is self._fleet.engine:
            return f'"port": {self._fleet.engine_port}' in child.log.read_text()
        return bool(child.said("consuming") or child.said("broker_waited"))

    def _lock(self, target: object) -> asyncio.Lock:
        return self._taken.setdefault(target if isinstance(target, str) else id(target), asyncio.Lock())

    def _mended(self, fault: Fault) -> None:
        self._history.note("attacker", "mended", kind=fault.kind)


def _ledger_errors() -> tuple[type[Exception], ...]:
    import asyncpg

    return (asyncpg.PostgresError, asyncpg.InterfaceError)


_LEDGER_AWAY = _ledger_errors()
