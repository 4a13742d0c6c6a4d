"""Production code that a scheduler moves one port call at a time: a call that is a step of the model waits at a gate.

Nothing is patched: the processes are `Consumer`, `EmbeddingPipeline`, `EventHandlers`, `Sweeper`, `Relay` and
`QueryEngine` as they are, over a real SQLite ledger and the in-memory index; only the ports they are given wait.
A process that crashed is one that is never let through again, which is what a crash looks like from outside.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

from dats_common.adapters.memory_bus import MemoryBus
from dats_common.adapters.memory_encoder import MemoryEncoder
from dats_common.adapters.memory_index import MemoryIndex
from dats_common.adapters.memory_indexer import MemoryIndexer
from dats_common.contracts.readable import Names
from dats_common.contracts.topology import ARTIFACT_TAINTED, TAINTS_QUEUE, VALIDATED_QUEUE
from dats_common.domain.access import Principal
from dats_common.domain.fusion import FusionRules
from dats_common.domain.model import ArtifactKey, ChunkRef
from dats_common.domain.settlement import OUTAGE_PAUSE_S
from dats_common.errors import IndexUnavailable, LedgerUnavailable
from dats_common.maintenance.relay import Relay
from dats_common.maintenance.sweep import Sweeper
from dats_common.ports import Ledger, Subscription
from dats_common.records import AnswerRecord, Delivery, KeptAnswer, Point, SearchFilter, TaintReceipt
from services.query.engine import QueryEngine, Question
from services.writer.consumer import Consumer, Limits
from services.writer.handlers import EventHandlers, Handled
from services.writer.leadership import Leadership
from services.writer.pipeline import EmbeddingPipeline
from services.writer.progress import Progress

from .wire import words

DEADLINE_S = 30.0
Order = Literal["go", "lose the answer", "fail"]


class WarpLoop(asyncio.SelectorEventLoop):
    """A loop whose clock can be moved on: a writer's pause in an outage takes no time."""

    _ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self._ahead_s

    def warp(self, seconds: float) -> None:
        """What waits for this long is due."""
        self._ahead_s += seconds


class Gates:
    """Where processes wait. A process is at one gate at a time; which one is what it does next."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], asyncio.Future[Any]] = {}
        self._arrived = asyncio.Condition()

    async def enter(self, who: str, gate: str) -> Any:
        """Wait to be let through. Returns: what `let` was given."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        async with self._arrived:
            self._waiting[who, gate] = future
            self._arrived.notify_all()
        return await future

    async def reached(self, who: str, gate: str) -> None:
        """Wait until this process is at this gate. Raises: AssertionError: it went to another one, or nowhere."""
        try:
            async with asyncio.timeout(DEADLINE_S), self._arrived:
                await self._arrived.wait_for(lambda: any(name == who for name, _ in self._waiting))
        except TimeoutError:
            raise AssertionError(f"{who} does not come to {gate!r}") from None
        at = next(name for process, name in self._waiting if process == who)
        assert at == gate, f"{who} went to {at!r} instead of {gate!r}"

    async def let(self, who: str, gate: str, order: Any = "go") -> None:
        """Wait until the process is there, and let it through."""
        await self.reached(who, gate)
        self._waiting.pop((who, gate)).set_result(order)

    def abandon(self, who: str) -> None:
        """This process is not heard of any more."""
        self._waiting = {at: future for at, future in self._waiting.items() if at[0] != who}


class LedgerAt:
    """A process's ledger: the calls named in `gated` wait, those in `away` are refused, the others pass."""

    def __init__(
        self, inner: Ledger, gates: Gates, who: str, *, gated: Mapping[str, str], away: frozenset[str] = frozenset()
    ) -> None:
        self._inner, self._gates, self._who = inner, gates, who
        self._gated, self._away = gated, away

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self._inner, name)
        if name in self._away:
            return self._refused
        return self._through(inner, self._gated[name]) if name in self._gated else inner

    async def _refused(self, *_: Any, **__: Any) -> Any:
        raise LedgerUnavailable("the ledger is away")

    def _through(self, inner: Callable[..., Any], gate: str) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            order: Order = await self._gates.enter(self._who, gate)
            result = await inner(*args, **kwargs)
            if order == "lose the answer":
                raise LedgerUnavailable("committed, but nobody heard of it")
            return result

        return call


class IndexAt:
    """A process's index: requests are on their way until the scheduler applies them."""

    def __init__(self, stage: Stage, who: str, *, sweeps: bool = False) -> None:
        self._stage, self._who, self._sweeps = stage, who, sweeps

    async def store(self, points: Sequence[Point]) -> None:
        self._stage.upserts[points[0].ref.generation] = points
        if await self._stage.gates.enter(self._who, "store") == "fail":
            raise IndexUnavailable("no answer in time")

    async def generations(self, keys: Any) -> Any:
        if not self._sweeps:
            raise IndexUnavailable("away while this writer sweeps; the sweeper does")
        await self._stage.gates.enter(self._who, "list")
        return await self._stage.index.generations(keys)

    async def remove(self, key: Any, generations: Sequence[int]) -> None:
        await self._stage.gates.enter(self._who, "remove")
        await self._stage.index.remove(key, generations)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage.index, name)


class BusAt:
    """A process's bus: the broker has taken an event before its publisher hears of it.

    One publish at a time, as in the model's steps. That publishes overlap is the simulation's to play.
    """

    def __init__(self, inner: MemoryBus, gates: Gates, who: str) -> None:
        self._inner, self._gates, self._who = inner, gates, who
        self._turn = asyncio.Lock()

    async def publish(self, routing_key: str, body: Mapping[str, Any], *, event_id: str) -> None:
        async with self._turn:
            await self._gates.enter(self._who, "publish")
            await self._inner.publish(routing_key, body, event_id=event_id)
            await self._gates.enter(self._who, "confirm")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Broker:
    """Who holds which message. A delivery of a lost connection settles nothing, as with AMQP."""

    def __init__(self) -> None:
        self.holders: dict[str, str | None] = {}
        self.acked: set[str] = set()

    def requeue(self, name: str, *, held_by: str | None = None) -> None:
        """Its holder is gone (for the broker); `held_by` only if it is this one."""
        if held_by in (None, self.holders.get(name)):
            self.holders[name] = None

    def settles(self, delivery: Delivery) -> bool:
        name, holder = delivery.handle
        return bool(self.holders.get(name) == holder)


class Hand:
    """`ports.Subscription`: the scheduler hands out deliveries."""

    def __init__(self, stage: Stage, who: str) -> None:
        self._stage, self._who = stage, who

    async def batch(self, *, max_items: int, max_wait_s: float) -> list[Delivery]:
        return [await self._stage.gates.enter(self._who, "take")]

    async def ack(self, delivery: Delivery) -> None:
        await self._stage.gates.enter(self._who, "ack")
        if self._stage.broker.settles(delivery):
            self._stage.broker.acked.add(delivery.handle[0])

    async def give_back(self, delivery: Delivery) -> None:
        await self._stage.gates.enter(self._who, "give back")
        if self._stage.broker.settles(delivery):
            self._stage.broker.holders[delivery.handle[0]] = None


class Silence:
    """`ports.Subscription` of a queue that nothing comes from."""

    async def batch(self, *, max_items: int, max_wait_s: float) -> list[Delivery]:
        await asyncio.Event().wait()
        return []


class Hurry:
    """`Observer`: a delivery that will be given back after a pause is given back at once."""

    def handling(self, deliveries: Sequence[Delivery]) -> AbstractContextManager[None]:
        return nullcontext()

    def embedded(self, handled: Handled, *, seconds: float) -> None:
        """Nothing to do."""

    def tainted(self, receipt: TaintReceipt, *, waited_s: float) -> None:
        """Nothing to do."""

    def recalled(self, answers: int) -> None:
        """Nothing to do."""

    def settled(self, queue: str, settlement: str, *, reason: str, names: Names) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, WarpLoop)
        loop.call_soon(loop.warp, OUTAGE_PAUSE_S)


@dataclass
class Stage:
    """Ledger, index, broker, and the processes that have come and gone."""

    ledger: Ledger
    skew_s: float
    gates: Gates = field(default_factory=Gates)
    index: MemoryIndex = field(default_factory=MemoryIndex)
    encoder: MemoryEncoder = field(default_factory=MemoryEncoder)
    bus: MemoryBus = field(default_factory=MemoryBus)
    broker: Broker = field(default_factory=Broker)
    upserts: dict[int, Sequence[Point]] = field(default_factory=dict)
    _tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    _started: int = 0

    def start_writer(self) -> str:
        """A process that handles validated events."""
        gated = {"activate": "activate", "admit": "V1", "write_chunks": "send", "flip": "V4"}
        return self._start("writer", VALIDATED_QUEUE, gated)

    def start_taint_handler(self) -> str:
        """A process that handles one taint."""
        return self._start("taints", TAINTS_QUEUE, {"taint": "T1"})

    def start_sweep(self, keys: Any) -> str:
        """Sweep these artifacts once."""
        name = self._name("sweeper")
        ledger: Any = LedgerAt(self.ledger, self.gates, name, gated={"kept": "keep"})
        index: Any = IndexAt(self, name, sweeps=True)
        self._spawn(name, Sweeper(ledger=ledger, index=index).sweep(keys))
        return name

    def start_relay(self) -> str:
        """Drain the outbox once."""
        name = self._name("relay")
        bus: Any = BusAt(self.bus, self.gates, name)
        self._spawn(name, Relay(ledger=self.ledger, bus=bus).drain())
        return name

    def start_query(self, tenant_id: str) -> str:
        """One query, whose last look waits."""
        name = self._name("query")
        self._spawn(name, self.ask(LedgerAt(self.ledger, self.gates, name, gated={"still_live": "Q3"}), tenant_id))
        return name

    async def ask(self, ledger: Any, tenant_id: str) -> list[tuple[ChunkRef, int]]:
        """What the production's engine returns to somebody of this tenant: chunks and their versions."""
        engine = QueryEngine(
            encoder=self.encoder,
            index=self.index,
            ledger=ledger,
            min_similarity=0.0,
            least_candidates=50,
            fusion=FusionRules(),
        )
        where = SearchFilter(Principal(tenant_id=tenant_id))
        answer = await engine.retrieve(Question(words("x"), "hybrid", where, top_k=20, budget_tokens=5000))
        return [(hit.passage.ref, hit.passage.version) for hit in answer.hits]

    async def ended(self, who: str) -> Any:
        """The result of a task that has nothing left to wait for."""
        async with asyncio.timeout(DEADLINE_S):
            return await self.task(who)

    def task(self, who: str) -> asyncio.Task[Any]:
        """The process of this name."""
        return next(task for task in self._tasks if task.get_name() == who)

    async def close(self) -> None:
        """End every process, the crashed ones too."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _name(self, role: str) -> str:
        self._started += 1
        return f"{role} {self._started}"

    def _spawn(self, name: str, work: Any) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    def _start(self, role: str, queue: str, gated: Mapping[str, str]) -> str:
        name = self._name(role)
        # What a process would relay and sweep by itself is left to the relay and the sweeper: an outage, just then.
        ledger: Any = LedgerAt(self.ledger, self.gates, name, gated=gated, away=frozenset({"relay"}))
        index: Any = IndexAt(self, name)
        bus: Any = _OneQueue(self, name, queue)
        leadership = Leadership(ledger, name)
        sweeper = Sweeper(ledger=ledger, index=index)
        indexer = MemoryIndexer(encoder=self.encoder, index=index, ledger=ledger, max_tokens=20, overlap_tokens=0)
        pipeline = EmbeddingPipeline(ledger=ledger, indexer=indexer, leadership=leadership, sweeper=sweeper)
        consumer = Consumer(
            bus=bus,
            ledger=ledger,
            handlers=EventHandlers(ledger=ledger, pipeline=pipeline, skew_s=self.skew_s),
            leadership=leadership,
            relay=Relay(ledger=ledger, bus=bus),
            sweeper=sweeper,
            evidence=_NoAnswers(),
            progress=Progress(),
            observer=Hurry(),
            healthy=_never,
            limits=Limits(batch_size=1, linger_s=0.0, prefetch=1, retry_attempts=0, concurrent_batches=1),
        )
        self._spawn(name, consumer.run())
        return name


class _NoAnswers:
    """`ports.Evidence` where nobody asks: answers are no part of the model."""

    async def keep(self, record: AnswerRecord) -> tuple[ArtifactKey, ...]:
        raise AssertionError("nobody asks here")

    async def find(self, answer_id: str, principal: Principal, *, actor: str) -> KeptAnswer:
        raise AssertionError("nobody asks here")

    async def recall(self, *_: object, **__: object) -> int:
        return 0


async def _never() -> bool:
    """Whatever is unavailable here is an outage: no message is to blame."""
    return False


class _OneQueue:
    """`ports.Bus` of a process that is handed messages of one queue only."""

    def __init__(self, stage: Stage, who: str, queue: str) -> None:
        self._stage, self._who, self._queue = stage, who, queue

    @asynccontextmanager
    async def subscribe(self, queue: str, *, prefetch: int) -> AsyncIterator[Subscription]:
        hand: Any = Hand(self._stage, self._who) if queue == self._queue else Silence()
        yield hand


def message_name(number: int) -> str:
    """Of a message of the validated queue."""
    return f"validated {number}"


def taint_name(number: int) -> str:
    """Of a message of the taints' queue; its AMQP message id too, so that a copy is known as one."""
    return f"taint {number}"


def delivery(name: str, holder: str, body: Mapping[str, Any], event_type: str) -> Delivery:
    """A message as the broker hands it out."""
    identity = name if event_type == ARTIFACT_TAINTED else None
    now = asyncio.get_running_loop().time()
    return Delivery(json.dumps(body).encode(), event_type, now, message_id=identity, handle=(name, holder))
