"""A simulated process: its callbacks, its connections, and what happens to it at a point."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from dats_common.adapters.memory_bus import MemorySubscription
from dats_common.adapters.sql.engine import Database
from dats_common.domain.model import ArtifactKey, Taint
from dats_common.records import Admission
from tests.faults.simulation.faults import Kind
from tests.faults.simulation.loop import Lane, State
from tests.faults.simulation.sqlite import TIMEOUT_S, Connection, EngineSlot

if TYPE_CHECKING:
    from tests.faults.simulation.world import World


class Process:
    """One incarnation of a writer or replica. It is `ports.Points` for its ports and `sqlite.Host` for its database."""

    def __init__(self, world: World, name: str, slot: EngineSlot) -> None:
        self.world = world
        self.name = name
        self.lane = Lane(name)
        self.connections: list[Connection] = []
        self.subscriptions: list[MemorySubscription] = []
        self.slot = slot
        self.database: Path = world.database
        self._rng: random.Random = world.rng("latency")
        self._late_s = 0.0

    def ledger_database(self) -> Database:
        """Its way to the ledger."""
        return Database(self.slot.engine, timeout_s=TIMEOUT_S, clock=self.world.clock, new_id=self.world.new_id)

    # ------------------------------------------------------------------------------------------------ sqlite.Host

    async def pause(self, statement: str) -> None:
        if self.world.closed or statement.startswith("PRAGMA"):
            return
        if await self.reach("statement") is Kind.REFUSED:
            raise sqlite3.OperationalError("disk I/O error")
        if self._rng.random() < 0.12:
            await asyncio.sleep(self._rng.choice((0.0, 0.0, 0.001, 0.02)))

    async def after_commit(self) -> None:
        if await self.reach("commit.after") is Kind.UNCONFIRMED:
            raise sqlite3.OperationalError("disk I/O error")

    # ----------------------------------------------------------------------------------------------- ports.Points

    async def latency(self) -> None:
        chance = self._rng.random()
        if chance < 0.6:
            await asyncio.sleep(0.0 if chance < 0.3 else self._rng.uniform(0.0, 0.03 if chance < 0.57 else 0.8))

    async def reach(self, point: str) -> Kind | None:
        fault = self.world.visit(self, point)
        if fault is None:
            return None
        match fault.kind:
            case Kind.CRASH:
                self.world.crash(self, restart_s=fault.lasting_s)
                await _never()
            case Kind.FREEZE:
                self.world.freeze(self, notice_s=fault.notice_s, lasting_s=fault.lasting_s)
                await asyncio.sleep(0)
            case Kind.STALL:
                self.world.notice(self, after_s=fault.notice_s)
                await asyncio.sleep(fault.lasting_s)
            case Kind.DISCONNECT:
                self.world.notice(self, after_s=0.0)
            case kind:
                self._late_s = fault.lasting_s
                return kind
        return None

    def away(self, what: str) -> bool:
        return self.world.loop.time() < self.world.away_until.get(what, 0.0)

    def later(self, apply: Callable[[], Awaitable[None]]) -> None:
        self.world.apply_later(self._late_s, apply)

    def admitted(self, admissions: Sequence[Admission]) -> None:
        self.world.record.admitted(admissions)

    def removing(self, key: ArtifactKey, generations: Sequence[int]) -> None:
        self.world.record.removing(key, generations)

    def tainted(self, taint: Taint) -> None:
        self.world.trace(self.name, f"tainted {taint.cascade_id}")
        self.world.record.tainted(str(taint.cascade_id))

    def published(self, routing_key: str, body: Mapping[str, Any]) -> None:
        self.world.published(self, routing_key, body)

    def connected(self, subscription: MemorySubscription) -> None:
        self.subscriptions.append(subscription)

    # ------------------------------------------------------------------------------------------- what befalls it

    def disconnect(self) -> None:
        """The broker closes its connections."""
        for subscription in self.subscriptions:
            subscription.disconnect()

    def reconnect(self) -> None:
        """It consumes again, behind the others."""
        for subscription in self.subscriptions:
            subscription.reconnect()

    def die(self) -> None:
        """Nothing of it runs again; what it had open is closed by the kernel."""
        self.lane.state = State.DEAD
        for connection in list(self.connections):
            connection.stop()
        self.disconnect()

    @property
    def is_alive(self) -> bool:
        return self.lane.state is not State.DEAD


async def _never() -> NoReturn:
    await asyncio.get_running_loop().create_future()
    raise AssertionError("a dead process went on")
