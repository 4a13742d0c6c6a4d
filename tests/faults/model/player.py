"""What a step of the model is in production: who is let through which gate, and where it must come next."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dats_common.adapters.sql.ledger import RELAY_CLAIM_S
from dats_common.contracts.topology import ARTIFACT_TAINTED

from .projection import of_model, of_production
from .stage import Stage, delivery, message_name, taint_name
from .state import CURRENT, NO_EPOCH, State, Step, Told, World, first_state
from .steps import is_covered, requests
from .wire import START_US, TICK_US, tainted_body, ticks, validated_body, validated_type

Run = Sequence[tuple[Step, State]]


@dataclass
class Clock:
    """The ledger's clock: the model's, plus what has to pass for a lease to end."""

    ticks: int
    passed_us: int = 0

    def __call__(self) -> int:
        return START_US + self.ticks * TICK_US + self.passed_us


@dataclass
class Player:
    """Production code on a stage, moved along a run of the model."""

    world: World
    stage: Stage
    clock: Clock
    database: Path
    _writers: list[str] = field(default_factory=list)
    _relay: str = ""
    _sweeper: str = ""
    _reader: str = ""
    _told: frozenset[Told] = frozenset()

    async def play(self, run: Run) -> None:
        """Every step of it. Raises: AssertionError: production goes another way, or arrives elsewhere."""
        before = first_state(self.world.scenario)
        self._writers = [self.stage.start_writer(), self.stage.start_writer()]
        for number, (step, after) in enumerate(run, start=1):
            self.clock.ticks = before.clock
            try:
                await self._do(step, before, after)
                await self._compare(after)
            except AssertionError as error:
                so_far = "\n".join(
                    f"{at:3}. {one.name} {one.who} {one.what}" for at, (one, _) in enumerate(run[:number], 1)
                )
                raise AssertionError(f"{self.world.scenario.name}, step {number} of:\n{so_far}\n{error}") from error
            before = after

    async def _compare(self, state: State) -> None:
        model = of_model(self.world, state)
        production = await of_production(self.world.scenario, self.stage, self.database)
        differing = [
            f"{name}: the model has {model[name]}, production {production[name]}"
            for name in model
            if model[name] != production[name]
        ]
        assert not differing, "\n".join(differing)

    async def _do(self, step: Step, before: State, after: State) -> None:
        name, _, how = step.name.partition(", ")
        match name:
            case "V1" | "V4":
                await self._transaction(name, how, step.who, before, after)
            case "apply":
                await self.stage.index.store(self.stage.upserts[step.what])
            case "late delete":
                key, generations = requests(before)[step.what]
                await self.stage.index.remove(self.world.scenario.keys[key], sorted(generations))
            case "T1":
                await self._taint(step.what, comes_again=bool(how))
            case "relay":
                await self._drain(dies=bool(how))
            case "publish" | "mark sent" | "relay crashes":
                await self._relay_step(name, before)
            case "Q1":
                await self._ask(before)
            case "Q3":
                await self._answer(before)
            case _ if step.who >= 0:
                await self._writer_step(name, step, before)
            case _:
                await self._sweep_step(name, step.what, after)

    # -- writers

    async def _writer_step(self, name: str, step: Step, before: State) -> None:
        gates, who, was = self.stage.gates, self._writers[step.who], before.writers[step.who]
        match name:
            case "take":
                await gates.let(who, "take", self._handed_out(step.what, who))
                await gates.reached(who, "activate" if was.epoch == NO_EPOCH else "V1")
            case "activate":
                await gates.let(who, "activate")
                await gates.reached(who, "V1")
            case "send":
                await gates.let(who, "send")
                await gates.reached(who, "store")
            case "no answer":
                await gates.let(who, "store", "fail")
                await self._given_back(who)
            case "hang":
                self.stage.broker.requeue(message_name(was.message))
            case "crash":
                self._crash(step.who, was.message)

    async def _transaction(self, name: str, how: str, who: int, before: State, after: State) -> None:
        gates, writer, was = self.stage.gates, self._writers[who], before.writers[who]
        if name == "V4":
            await gates.let(writer, "store")
        await gates.let(writer, name, "lose the answer" if how == "answer lost" else "go")
        if how == "then crash":
            await gates.reached(writer, "ack")
            self._crash(who, was.message)
        elif how == "answer lost" or was.epoch != CURRENT:
            await self._given_back(writer)
        elif after.writers[who].phase == "admitted":
            await gates.reached(writer, "send")
        else:
            await gates.let(writer, "ack")
            await gates.reached(writer, "take")

    async def _given_back(self, who: str) -> None:
        await self.stage.gates.let(who, "give back")
        await self.stage.gates.reached(who, "take")

    def _crash(self, who: int, message: int) -> None:
        self.stage.gates.abandon(self._writers[who])
        self.stage.broker.requeue(message_name(message), held_by=self._writers[who])
        self._writers[who] = self.stage.start_writer()

    def _handed_out(self, message: int, who: str) -> object:
        scenario = self.world.scenario
        event = scenario.approved[scenario.messages[message]]
        self.stage.broker.holders[message_name(message)] = who
        return delivery(message_name(message), who, validated_body(event), validated_type(event))

    # -- taints, relay, sweep

    async def _taint(self, number: int, *, comes_again: bool) -> None:
        gates, name, who = self.stage.gates, taint_name(number), self.stage.start_taint_handler()
        self.stage.broker.holders[name] = who
        body = tainted_body(self.world.scenario.taints[number], number)
        await gates.let(who, "take", delivery(name, who, body, ARTIFACT_TAINTED))
        await gates.let(who, "T1")
        await gates.reached(who, "ack")
        if comes_again:
            gates.abandon(who)
        else:
            await gates.let(who, "ack")
            await gates.reached(who, "take")

    async def _drain(self, *, dies: bool) -> None:
        gates = self.stage.gates
        waiting = (await self.stage.ledger.counts()).unsent_events
        self._relay = self.stage.start_relay()
        for number in range(waiting):
            await gates.let(self._relay, "publish")
            await gates.reached(self._relay, "confirm")
            if dies and number == waiting - 1:
                self._relay_dies()
                return
            await gates.let(self._relay, "confirm")
        await self.stage.ended(self._relay)

    async def _relay_step(self, name: str, before: State) -> None:
        gates = self.stage.gates
        match name:
            case "publish":
                if before.relay.confirmed:
                    await gates.let(self._relay, "confirm")
                else:
                    self._relay = self.stage.start_relay()
                await gates.let(self._relay, "publish")
                await gates.reached(self._relay, "confirm")
            case "mark sent":
                await gates.let(self._relay, "confirm")
                await self.stage.ended(self._relay)
            case "relay crashes":
                self._relay_dies()

    def _relay_dies(self) -> None:
        self.stage.gates.abandon(self._relay)
        self.clock.passed_us += round(RELAY_CLAIM_S * 1e6) + 1  # nobody else takes what it has claimed before

    async def _sweep_step(self, name: str, key: int, after: State) -> None:
        gates = self.stage.gates
        if name in ("sweep", "list"):
            self._sweeper = self.stage.start_sweep([self.world.scenario.keys[key]])
            await gates.let(self._sweeper, "list")
            await gates.reached(self._sweeper, "keep")
        if name in ("sweep", "keep"):
            await gates.let(self._sweeper, "keep")
        if name in ("sweep", "gone"):
            await gates.let(self._sweeper, "remove")
        if name == "sweeper crashes":
            gates.abandon(self._sweeper)
        elif after.sweeper.phase == "removing":
            await gates.reached(self._sweeper, "remove")
        elif name != "list":
            await self.stage.ended(self._sweeper)

    # -- a query

    async def _ask(self, before: State) -> None:
        key = before.generations[min(point.generation for point in before.points) - 1].key
        self._reader = self.stage.start_query(self.world.scenario.keys[key].tenant_id)
        self._told = frozenset(event for event in before.published if event.kind == "invalidated")
        await self.stage.gates.reached(self._reader, "Q3")

    async def _answer(self, before: State) -> None:
        """Let it look, as often as it likes: what the last look takes away makes it search again."""
        query = self.stage.task(self._reader)
        while not query.done():
            looks = asyncio.create_task(self.stage.gates.let(self._reader, "Q3"))
            await asyncio.wait({query, looks}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)
            looks.cancel()
        for ref, version in query.result():
            key = self.world.scenario.keys.index(ref.key)
            row = before.rows[key]
            own_clock = row is not None and row.own_clock
            for event in self._told:
                gone = is_covered(self.world, event, key, ticks(version), own_clock=own_clock)
                assert not gone, f"the query shows {ref.key}, which was invalidated before it started"
