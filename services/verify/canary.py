"""Canaries: texts that are written, found, withdrawn and looked for again, through a fleet's public API alone.

They live where no real query looks: scope `user` of a user that nobody is. Each run has ids of its own and uses them
again in every round, so that a watch of weeks leaves as many tombstones as one round has canaries.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from dats_common.clients.rag import RAGClient, RAGError, RAGForbidden, RAGInvalid
from dats_common.contracts.api import CANARY_PROJECT
from dats_common.errors import Unavailable
from services.verify.verdict import LOOKS_AFTER, Look, Round

RESERVED = CANARY_PROJECT
"""Project, user, and beginning of the artifact ids. No real artifact and no real user may have this name."""

_MODES = ("hybrid", "vector", "keyword")
_QUESTION = "a canary that the verification of this fleet writes, finds, withdraws and looks for again"
_WITHDRAWAL_S = 30.0


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica and how to ask it. `name` may be shown: it holds no credentials."""

    name: str
    client: RAGClient


@dataclass(frozen=True, slots=True)
class Pace:
    """How hard a fleet is asked, and for how long.

    Attributes:
        looks_per_s: of each replica, one at a time; besides `LOOKS_AFTER` of them without a pause at each withdrawal.
        searchable_within_s: how long canaries may take to be found everywhere.
        looks_within_s: how long a replica may take for its looks after an acknowledgement.
    """

    canaries: int = 3
    looks_per_s: float = 8.0
    searchable_within_s: float = 60.0
    looks_within_s: float = 30.0


class CanaryRun:
    """Rounds over the same canaries; open it with `open_canaries`."""

    def __init__(
        self, replicas: Sequence[Replica], *, pace: Pace, tenant_id: str | None, clock: Callable[[], float]
    ) -> None:
        self._replicas = replicas
        self._pace = pace
        self._tenant_id = tenant_id
        self._clock = clock
        self._run = uuid.uuid4().hex
        self._ids = [f"{RESERVED}/{self._run}/{number}" for number in range(pace.canaries)]
        self._writing: set[asyncio.Task[float]] = set()
        self._written = False
        self._withdrawing = False
        self._rounds = itertools.count()
        self._looked = asyncio.Event()

    async def round(self) -> Round:
        """Write, find everywhere, withdraw, look on. Raises: RAGError: a canary was not taken or not withdrawn."""
        number = next(self._rounds)
        looks: list[Look] = []
        over = asyncio.Event()
        looking = [
            asyncio.create_task(self._look_on(replica, looks, over), name=f"look {replica.name}")
            for replica in self._replicas
        ]
        try:
            sent_s = await self._write(number)
            await self._until(
                lambda: all(self._has_shown_all(replica, looks) for replica in self._replicas),
                within_s=self._pace.searchable_within_s,
            )
            self._withdrawing = True  # from here on a pause would only hide how soon they are gone
            tainted_s = self._clock()
            await self._withdraw(self._replicas[number % len(self._replicas)])
            acknowledged_s = self._clock()
            await self._until(
                lambda: all(self._looked_after(replica, looks, acknowledged_s) for replica in self._replicas),
                within_s=self._pace.looks_within_s,
            )
        finally:
            self._withdrawing = False
            over.set()
            await asyncio.gather(*looking, return_exceptions=True)
        return Round(sent_s, tainted_s, acknowledged_s, tuple(looks))

    async def withdraw_all(self) -> None:
        """Leave nothing visible: what is under way is waited for first. Raises: Unavailable: no replica took it."""
        if self._writing:
            await asyncio.wait(self._writing, timeout=_WITHDRAWAL_S)
        for replica in self._replicas if self._written else ():
            try:
                await self._withdraw(replica)
            except RAGError:
                continue
            self._written = False
        if self._written:
            raise Unavailable(f"no replica took the withdrawal of {self._ids}: `dats-rag taint` them")

    # -- steps

    async def _write(self, number: int) -> dict[str, float]:
        started = {}
        for place, artifact_id in enumerate(self._ids):
            replica = self._replicas[(number + place) % len(self._replicas)]
            task = asyncio.create_task(self._embed(replica, artifact_id, number), name=f"write {artifact_id}")
            self._writing.add(task)
            task.add_done_callback(self._finished)
            started[artifact_id] = task
        # Waited for, not cancelled: a request that was cut off could be carried out after the withdrawal that follows.
        await asyncio.wait(started.values())
        return {artifact_id: task.result() for artifact_id, task in started.items()}

    def _finished(self, task: asyncio.Task[float]) -> None:
        self._writing.discard(task)
        if not task.cancelled():
            task.exception()  # marked as seen: an interrupted round asks nobody for its result

    async def _embed(self, replica: Replica, artifact_id: str, number: int) -> float:
        sent_s = self._clock()
        metadata: dict[str, Any] = {
            "artifact_id": artifact_id,
            "project_id": RESERVED,
            "scope": "user",
            "user_id": RESERVED,
            "doc_type": "canary",
        }
        if self._tenant_id is not None:
            metadata["tenant_id"] = self._tenant_id
        try:
            await replica.client.embed(f"This is {_QUESTION}: {artifact_id}, round {number}.", metadata)
        except (RAGForbidden, RAGInvalid):
            raise  # surely not taken
        except RAGError:
            self._written = True
            raise
        self._written = True
        return sent_s

    async def _withdraw(self, replica: Replica) -> None:
        await replica.client.batch_invalidate(self._ids, reason=RESERVED, tenant_id=self._tenant_id)

    async def _look_on(self, replica: Replica, looks: list[Look], over: asyncio.Event) -> None:
        hurried = 0
        for mode in itertools.cycle(_MODES):
            look = await self._look(replica, mode)
            looks.append(look)
            self._looked.set()
            hurries = self._withdrawing and look.seen is not None and hurried < LOOKS_AFTER
            hurried += hurries
            with suppress(TimeoutError):
                async with asyncio.timeout(0 if hurries else 1.0 / self._pace.looks_per_s):
                    await over.wait()
            if over.is_set():
                return

    async def _look(self, replica: Replica, mode: str) -> Look:
        started_s = self._clock()
        try:
            found = await replica.client.query(
                _QUESTION,
                project_id=RESERVED,
                max_tokens=10_000,
                search_mode=mode,
                filters={"artifact_ids": self._ids},
                tenant_id=self._tenant_id,
                user_id=RESERVED,
                top_k=max(10, len(self._ids)),
            )
        except RAGError:
            return Look(replica.name, started_s, self._clock(), None)
        seen = frozenset(source.artifact_id for source in found.sources)
        return Look(replica.name, started_s, self._clock(), seen)

    # -- when to go on

    def _has_shown_all(self, replica: Replica, looks: Sequence[Look]) -> bool:
        """Every mode has: otherwise a mode that never finds anything would count as one that forgets at once."""
        newest = [look for look in looks if look.replica == replica.name][-len(_MODES) :]
        return len(newest) == len(_MODES) and all(
            look.seen is not None and look.seen >= {*self._ids} for look in newest
        )

    def _looked_after(self, replica: Replica, looks: Sequence[Look], acknowledged_s: float) -> bool:
        after = (
            look.seen is not None and look.started_s >= acknowledged_s for look in looks if look.replica == replica.name
        )
        return sum(after) >= LOOKS_AFTER

    async def _until(self, true: Callable[[], bool], *, within_s: float) -> None:
        """Wait until it holds, or until the time is up: the verdict says what is missing then."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not true():
                    self._looked.clear()
                    await self._looked.wait()


@asynccontextmanager
async def open_canaries(
    replicas: Sequence[Replica], *, pace: Pace, tenant_id: str | None, clock: Callable[[], float]
) -> AsyncIterator[CanaryRun]:
    """Canaries of a new run; withdrawn at the end, however it ends.

    Raises: Unavailable: they could not be withdrawn.
    """
    run = CanaryRun(replicas, pace=pace, tenant_id=tenant_id, clock=clock)
    try:
        yield run
    finally:
        async with asyncio.timeout(2 * _WITHDRAWAL_S):
            await run.withdraw_all()
