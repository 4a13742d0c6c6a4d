"""The world of one run: two writers, a replica, a broker, an index, a ledger; who goes on, and what goes wrong."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context
from typing import Any

from dats_common.adapters.memory_bus import MemoryBus
from dats_common.adapters.memory_encoder import MemoryEncoder
from dats_common.adapters.memory_indexer import MemoryIndexer
from dats_common.adapters.sql.evidence import SqlEvidence
from dats_common.contracts.topology import ARTIFACT_TAINTED, EMBEDDING_INVALIDATED, TASK_VALIDATED
from dats_common.domain.access import Principal
from dats_common.domain.fusion import FusionRules
from dats_common.domain.model import EventTime, Taint
from dats_common.errors import Unavailable
from dats_common.fingerprint import fingerprint
from dats_common.maintenance.relay import Relay
from dats_common.maintenance.sweep import Sweeper
from dats_common.records import SearchFilter
from dats_common.settings import Embedding, Events, Settings
from services.query.engine import QueryEngine, Question
from services.query.services import Errands
from services.writer.ports import WriterPorts
from services.writer.progress import Progress
from services.writer.wiring import Lanes, build_writer
from services.writer.writer import Writer
from tests.faults.simulation.faults import Fault, TimedFault, Trouble
from tests.faults.simulation.loop import State, VirtualLoop
from tests.faults.simulation.mutants import PRODUCTION, Parts
from tests.faults.simulation.ports import SharedIndex
from tests.faults.simulation.process import Process
from tests.faults.simulation.record import Record, Shown
from tests.faults.simulation.scenario import (
    SECOND,
    SENDING_S,
    START,
    TENANTS,
    Event,
    Scenario,
    Tainted,
    Validated,
    command_of,
    encode,
)
from tests.faults.simulation.sqlite import Slots, fresh_database

WRITERS = ("writer-1", "writer-2")
REPLICA = "replica"
DRAIN_S = 3.0
QUIET_S = 400.0
"""Virtual seconds within which everything must have come to rest after the last event."""

CHUNK_TOKENS = 24
_INDEXERS = 2
_EVERYTHING = 60


def open_slots() -> Slots:
    """What runs share: one for a whole series of them."""
    return Slots(*WRITERS, REPLICA)


class World:
    """Everything of one run. `settle` plays it to its end."""

    def __init__(self, scenario: Scenario, slots: Slots, *, parts: Parts = PRODUCTION) -> None:
        self.scenario = scenario
        self.parts = parts
        self.loop = VirtualLoop(self.rng("order"))
        self.database = fresh_database("run")
        self.closed = False
        self.record = Record(self)
        self.index = SharedIndex(self.record.stored)
        self.encoder = MemoryEncoder(dimension=16)
        self.bus = MemoryBus(new_id=self.new_id)
        self.away_until: dict[str, float] = {}
        self.processes: dict[str, Process] = {}
        self.ever: list[Process] = []
        self.writers: dict[str, Writer] = {}
        self.hits: Counter[str] = Counter()
        self.lines: list[str] = []
        self._slots = slots
        self._ids = 0
        self._visits: Counter[str] = Counter()
        self._planned: dict[tuple[str, int], Fault] = {(f.point, f.visit): f for f in scenario.faults}
        self._points = {fault.point for fault in scenario.faults}
        self._outstanding = 0
        self._requests: list[tuple[Process, asyncio.Task[None]]] = []
        self._asking: asyncio.Event | None = None

    # -------------------------------------------------------------------------------------- nondeterminism, all of it

    def rng(self, purpose: str) -> random.Random:
        """A stream of its own for each purpose, from the seed alone."""
        return random.Random(f"{purpose} {self.scenario.seed}")

    def clock(self) -> int:
        """The ledger's clock."""
        return START + round(self.loop.time() * SECOND)

    def new_id(self) -> str:
        """An id that nobody else has."""
        self._ids += 1
        return f"id-{self._ids}"

    def trace(self, who: str, what: str) -> None:
        """One line of the run's history; the digest is over all of them."""
        self.lines.append(f"{self.loop.time():.6f} {self.loop.steps} {who} {what}")

    def digest(self) -> str:
        """Equal for two runs exactly if everything that was traced happened in the same order at the same time."""
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()[:16]

    # ------------------------------------------------------------------------------------------------------- faults

    def visit(self, process: Process, point: str) -> Fault | None:
        """The fault that is planned for this visit of a point, if one is."""
        if self.closed:
            return None
        if point != "statement":
            self.trace(process.name, point)
        if point not in self._points:
            return None
        self._visits[point] += 1
        fault = self._planned.pop((point, self._visits[point]), None)
        if fault is not None:
            self.hits[f"{point} {fault.kind}"] += 1
            self.trace(process.name, f"fault {fault.kind} at {point}")
        return fault

    def plan(self, fault: Fault) -> None:
        """A fault that is not of the scenario: at so many visits from now."""
        self._points.add(fault.point)
        self._planned[fault.point, self._visits[fault.point] + fault.visit] = fault

    def crash(self, process: Process, *, restart_s: float) -> None:
        """kill -9; its supervisor starts it again."""
        if not process.is_alive:
            return
        self.trace(process.name, "dies")
        process.die()
        self.background(self._restart(process.name, restart_s))

    async def _restart(self, name: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await self.start(name)

    def freeze(self, process: Process, *, notice_s: float, lasting_s: float) -> None:
        """SIGSTOP, and SIGCONT later."""
        if process.lane.state is not State.RUNNING:
            return
        self.trace(process.name, "freezes")
        process.lane.state = State.FROZEN
        self.background(self._thaw(process, notice_s=notice_s, lasting_s=lasting_s))

    async def _thaw(self, process: Process, *, notice_s: float, lasting_s: float) -> None:
        await asyncio.sleep(notice_s)
        if process.is_alive:
            process.disconnect()
        await asyncio.sleep(max(0.0, lasting_s - notice_s))
        if process.is_alive:
            self.trace(process.name, "wakes up")
            self.loop.thaw(process.lane)
            process.reconnect()

    def notice(self, process: Process, *, after_s: float) -> None:
        """The broker closes the process' connections, and it connects again."""
        self.background(self._reconnect(process, after_s))

    async def _reconnect(self, process: Process, after_s: float) -> None:
        await asyncio.sleep(after_s)
        if process.is_alive:
            process.disconnect()
        await asyncio.sleep(0.2)
        if process.lane.state is State.RUNNING:
            process.reconnect()

    def apply_later(self, seconds: float, apply: Callable[[], Awaitable[None]]) -> None:
        """A request that was given up, and that the index takes after all."""
        self.background(self._apply(seconds, apply))

    async def _apply(self, seconds: float, apply: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(seconds)
        self.trace("index", "applies late")
        await apply()

    def background(self, work: Any) -> None:
        """Something outside of all processes that must end before the run can."""
        self._outstanding += 1
        # Of no process: it was called from within the one that it is about, which may never run again.
        self.loop.create_task(work, context=Context()).add_done_callback(self._ended, context=Context())

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._outstanding -= 1
        if not task.cancelled() and (error := task.exception()) is not None:
            self.record.violated("simulation", repr(error))

    async def strike(self, fault: TimedFault) -> None:
        """Trouble at its time."""
        await asyncio.sleep(max(0.0, fault.at_s - self.loop.time()))
        await self.trouble(fault)

    async def trouble(self, fault: TimedFault) -> None:
        """What happens whatever is under way."""
        process = self.processes[fault.process]
        self.hits[str(fault.trouble)] += 1
        self.trace(fault.process, f"trouble {fault.trouble}")
        match fault.trouble:
            case Trouble.CRASH:
                self.crash(process, restart_s=fault.lasting_s)
            case Trouble.FREEZE:
                self.freeze(process, notice_s=fault.lasting_s / 2, lasting_s=fault.lasting_s)
            case Trouble.DRAIN:
                await self._drain(process)
            case Trouble.DISCONNECT:
                self.notice(process, after_s=0.0)
            case Trouble.SHUFFLE:
                self.bus.shuffle(self.rng("shuffle").randrange(1 << 30))
            case Trouble.DUPLICATE:
                self.bus.duplicate_next(3)
            case Trouble.INDEX_AWAY:
                self.away_until["index"] = self.loop.time() + fault.lasting_s
            case Trouble.BROKER_AWAY:
                self.away_until["broker"] = self.loop.time() + fault.lasting_s
            case Trouble.LEDGER_AWAY:
                self.away_until["ledger"] = self.loop.time() + fault.lasting_s

    async def _drain(self, process: Process) -> None:
        writer = self.writers.get(process.name)
        if writer is None or process.lane.state is not State.RUNNING:
            return
        stopping = self.loop.start(process.lane, writer.consumer.stop(timeout_s=DRAIN_S), name="stop")
        await asyncio.wait([stopping], timeout=2 * DRAIN_S)  # it may freeze or die on the way
        self.crash(process, restart_s=0.5)  # drained, so what is killed now had nothing in hand

    # ---------------------------------------------------------------------------------------------------- processes

    async def open(self) -> None:
        """Start everybody."""
        self._asking = asyncio.Event()
        await self.index.prepare(await fingerprint(self.encoder))
        for name in (*WRITERS, REPLICA):
            await self.start(name)

    async def start(self, name: str) -> None:
        """A new incarnation of a process."""
        slot = self._slots[name]
        process = Process(self, name, slot)
        await slot.let(process)
        self.processes[name] = process
        self.ever.append(process)
        self.trace(name, "starts")
        if name == REPLICA:
            self._start_replica(process)
        else:
            self._start_writer(process)

    def _start_writer(self, process: Process) -> None:
        ledger = self.parts.ledger(process.ledger_database(), process)
        index = self.parts.index(self.index, process)
        settings = Settings(
            events=Events(skew_s=self.scenario.skew_s, sweep_interval_s=self.scenario.sweep_interval_s),
            embedding=Embedding(batch_size=self.scenario.batch_size, retry_attempts=20, linger_ms=20),
        )
        indexers = [
            MemoryIndexer(encoder=self.encoder, index=index, ledger=ledger, max_tokens=CHUNK_TOKENS, overlap_tokens=0)
            for _ in range(_INDEXERS)
        ]
        writer = build_writer(
            settings,
            WriterPorts(
                ledger=ledger,
                evidence=SqlEvidence(process.ledger_database()),
                encoder=self.encoder,
                index=index,
                bus=self.parts.bus(self.bus, process),
            ),
            indexer=Lanes(indexers),
            progress=Progress(),
            writer_id=process.name,
        )
        self.writers[process.name] = writer
        for name, work in (
            ("consumer", writer.consumer.run),
            ("relay", writer.relay_periodically),
            ("sweep", writer.sweep_periodically),
        ):
            self.loop.start(process.lane, self._ends_with(process, work), name=f"{process.name}.{name}")

    async def _ends_with(self, process: Process, work: Callable[[], Awaitable[None]]) -> None:
        """A writer whose loop fails ends, and is started again, as `Writer.work` and the supervisor have it."""
        try:
            await work()
        except Exception as error:
            self.record.surprise(process.name, error)
            self.crash(process, restart_s=0.5)

    def _start_replica(self, process: Process) -> None:
        replica = Replica(self, process)
        self.replica = replica
        self.loop.start(process.lane, replica.ask_on_and_on(), name="reader")

    # --------------------------------------------------------------------------------------------------- producers

    async def send(self, event: Event) -> None:
        """An event at its times."""
        for at_s in sorted(event.times_s):
            await asyncio.sleep(max(0.0, at_s - self.loop.time()))
            await self.send_now(event)

    async def send_now(self, event: Event) -> None:
        """Once."""
        self.record.sent(event)
        self.trace("producer", f"sends {type(event).__name__} {event.number}")
        if isinstance(event, Tainted) and event.over_http:
            if self.processes[REPLICA].lane.state is State.RUNNING:
                replica = self.processes[REPLICA]
                request = self.loop.start(replica.lane, self.replica.taint(event), name=event.name)
                self._requests.append((replica, request))
            return
        if isinstance(event, Validated) and event.over_http:
            await self.bus.command(command_of(event), event_id=f"emb-{event.number}")
            return
        body, timestamp = encode(event)
        routing_key = ARTIFACT_TAINTED if isinstance(event, Tainted) else TASK_VALIDATED
        self.bus.inject(routing_key, body, timestamp=timestamp)

    def published(self, process: Process, routing_key: str, body: Mapping[str, Any]) -> None:
        """The broker has confirmed an event."""
        self.trace(process.name, f"published {routing_key} {body['data']}")
        self.record.published(routing_key, body["data"])
        if routing_key == EMBEDDING_INVALIDATED and self._asking is not None:
            self._asking.set()

    async def next_question(self, within_s: float) -> None:
        """Until somebody has reason to look, or until a reader is curious."""
        assert self._asking is not None
        try:
            async with asyncio.timeout(within_s):
                await self._asking.wait()
        except TimeoutError:
            return
        self._asking.clear()

    # -------------------------------------------------------------------------------------------------- to its end

    async def play(self) -> None:
        """All events and all trouble of the scenario."""
        await self.open()
        for event in self.scenario.events:
            self.background(self.send(event))
        for fault in self.scenario.troubles:
            self.background(self.strike(fault))
        await asyncio.sleep(SENDING_S)

    async def settle(self) -> None:
        """Until nothing is under way anywhere."""
        give_up_at = self.loop.time() + QUIET_S
        while self._outstanding or self._has_requests() or not self.record.is_quiet():
            if self.loop.time() > give_up_at:
                self.record.violated("L1", f"not at rest after {QUIET_S:.0f} s: {self.record.unrest()}")
                return
            await asyncio.sleep(0.5)

    def _has_requests(self) -> bool:
        """Whether a replica that lives is still at something; what a killed one was at has no end."""
        return any(process.is_alive and not request.done() for process, request in self._requests)

    async def sweep_up(self) -> None:
        """One writer takes over in peace and sweeps: what it leaves is left for ever."""
        self._planned.clear()
        self.away_until.clear()
        for name in WRITERS:
            self.processes[name].die()
        await self.start(WRITERS[0])
        process = self.processes[WRITERS[0]]
        ledger = self.parts.ledger(process.ledger_database(), process)
        work = self._sweep_all(ledger, self.parts.index(self.index, process))
        await self.loop.start(process.lane, work, name="last sweep")

    async def _sweep_all(self, ledger: Any, index: Any) -> None:
        await ledger.activate("closing")
        await Sweeper(ledger=ledger, index=index).sweep_all()
        await Relay(ledger=ledger, bus=self.parts.bus(self.bus, self.processes[WRITERS[0]])).drain()


class Replica:
    """A query replica: the production engine, and what its routes do for a taint."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self._rng = world.rng("questions")
        self._ledger = world.parts.ledger(process.ledger_database(), process)
        self._index = world.parts.index(world.index, process)
        self._relay = Relay(ledger=self._ledger, bus=world.parts.bus(world.bus, process))
        self._sweeper = Sweeper(ledger=self._ledger, index=self._index)
        self._errands = Errands()
        self._engine = QueryEngine(
            encoder=world.encoder,
            index=self._index,
            ledger=self._ledger,
            min_similarity=0.0,
            least_candidates=_EVERYTHING,
            fusion=FusionRules(),
        )

    async def taint(self, event: Tainted) -> None:
        """As `DELETE /embeddings/{artifact_id}`: T1 here and now; publishing and sweeping follow behind the answer."""
        taint = Taint(event.tenant_id, event.artifact_ids, EventTime(), cascade_id=event.name)
        try:
            receipt = await self._ledger.taint(taint, skew_s=self._world.scenario.skew_s)
        except Unavailable:
            return
        self._world.record.acknowledged(event, through=receipt.through)
        self._errands.run("relay", self._relay.drain)
        self._errands.run("sweep", lambda: self._sweeper.sweep(receipt.fallen))

    async def ask_on_and_on(self) -> None:
        """A reader that never tires."""
        while True:
            await self._world.next_question(within_s=self._rng.expovariate(1.2))
            await self.ask()

    async def ask(self) -> None:
        """One question, and beside it what an unguarded read of the index would have shown."""
        world = self._world
        tenant_id = self._rng.choice(TENANTS)
        question = Question(
            text=f"report {self._rng.randrange(30)}",
            mode=self._rng.choice(("vector", "vector", "hybrid")),
            where=SearchFilter(principal=Principal(tenant_id=tenant_id)),
            top_k=_EVERYTHING,
            budget_tokens=100_000,
        )
        started = world.record.unguarded_read(tenant_id)
        try:
            retrieved = await self._engine.retrieve(question)
        except Unavailable as error:
            world.trace(self._process.name, f"no answer: {type(error).__name__}")
            return
        shown = [Shown(h.passage.ref, h.passage.version, h.passage.text) for h in retrieved.hits]
        world.trace(self._process.name, f"answers {[(s.ref.key.artifact_id, s.ref.generation) for s in shown]}")
        world.record.answered(started, tenant_id, shown)
