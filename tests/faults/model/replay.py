"""A run of the model, played by production code; after every step both must be in the same state.

What is compared: rows with their bounds, taints without tenant, pending and written generations, quarantine, outbox and
what was published, receipts, the index's points, which messages are acknowledged, and what a query returns.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dats_common.adapters.sql.ledger import RELAY_CLAIM_S, open_ledger
from dats_common.contracts.events import parse_validated, rfc3339
from dats_common.contracts.topology import (
    ARTIFACT_TAINTED,
    EMBED_COMMAND,
    EMBEDDING_INVALIDATED,
    PUBLISHED_QUEUE,
    TASK_VALIDATED,
)
from dats_common.domain.access import Principal
from dats_common.domain.fusion import LegWeights
from dats_common.domain.model import NEVER
from dats_common.fingerprint import fingerprint
from dats_common.ports import SearchFilter
from services.query.engine import QueryEngine, Question

from .stage import Stage, delivery
from .state import ACKED, CURRENT, NO_EPOCH, Scenario, State, Step, World, canonical, first_state, told
from .steps import is_covered, moves, requests, shown

START_US = 1_600_000_000_000_000
TICK_US = 1_000_000_000
"""One step of the model's clock: longer than anything that production times within a run."""

Run = Sequence[tuple[Step, State]]


# --------------------------------------------------------------------------------------------------------------- runs


def random_run(world: World, seed: int, *, most_steps: int) -> list[tuple[Step, State]]:
    """One run of the model, faults included; faults are rarer than progress."""
    choice = random.Random(seed)
    state, run = first_state(world.scenario), list[tuple[Step, State]]()
    while len(run) < most_steps:
        possible = list(moves(world, state))
        if not possible:
            break
        weights = [0.4 if step.fault else 1.0 for step, _ in possible]
        step, state = choice.choices(possible, weights)[0]
        run.append((step, state))
    return run


def same_run(world: World, mutated: World, trace: Sequence[Step]) -> list[tuple[Step, State]]:
    """As much of a mutant's trace as the algorithm itself can do: the same steps, to the same states."""
    theirs, ours = first_state(mutated.scenario), first_state(world.scenario)
    run = list[tuple[Step, State]]()
    for step in trace:
        theirs = canonical(next(after for one, after in moves(mutated, theirs) if one == step))
        found = next(((one, after) for one, after in moves(world, ours) if _is(one, step, after, theirs)), None)
        if found is None:
            break
        run.append(found)
        ours = found[1]
    return run


def _is(one: Step, step: Step, after: State, theirs: State) -> bool:
    return one.name == step.name and canonical(after) == theirs


# -------------------------------------------------------------------------------------------------------------- player


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
    writers: list[str] = field(default_factory=list)
    relay: str = ""
    sweeper: str = ""
    reader: tuple[str, int] = ("", 0)

    async def play(self, run: Run) -> None:
        """Every step of it. Raises: AssertionError: production goes another way, or arrives elsewhere."""
        before = first_state(self.world.scenario)
        self.writers = [self.stage.start_writer(), self.stage.start_writer()]
        for number, (step, after) in enumerate(run):
            self.clock.ticks = before.clock
            try:
                await self._do(step, before, after)
                expected, found = self._expected(after), await self._found(after)
                differing = {name for name in expected if expected[name] != found[name]}
                assert not differing, "\n".join(
                    f"{name}: model {expected[name]}, production {found[name]}" for name in sorted(differing)
                )
            except AssertionError as error:
                steps = "\n".join(
                    f"  {at}. {one.name} {one.who} {one.what}" for at, (one, _) in enumerate(run[: number + 1])
                )
                raise AssertionError(f"{self.world.scenario.name}\n{steps}\n{error}") from error
            before = after

    # -- steps

    async def _do(self, step: Step, before: State, after: State) -> None:
        name, _, how = step.name.partition(", ")
        if step.who >= 0:
            await self._writer_step(name, how, step, before, after)
        elif name in ("apply", "late delete"):
            await self._index_step(step, before)
        elif name == "T1":
            await self._taint(step.what, comes_again=bool(how))
        elif name in ("relay", "publish", "mark sent", "relay crashes"):
            await self._relay_step(name, how, before)
        elif name in ("Q1", "Q3"):
            await self._reader_step(name, before)
        else:
            await self._sweep_step(step, before, after)

    async def _writer_step(self, name: str, how: str, step: Step, before: State, after: State) -> None:
        gates, who = self.stage.gates, self.writers[step.who]
        was = before.writers[step.who]
        lost = "lose the answer" if how == "answer lost" else "go"
        match name:
            case "take":
                await gates.let(who, "take", self._handed_out(step.what, who))
                await gates.reached(who, "activate" if was.epoch == NO_EPOCH else "V1")
                return
            case "hang":
                self.stage.broker.holders[self._name(was.message)] = None
                return
            case "crash":
                await self._crash(step.who, was.message)
                return
            case "activate":
                await gates.let(who, "activate")
                await gates.reached(who, "V1")
                return
            case "send":
                await gates.let(who, "send")
                await gates.reached(who, "store")
                return
            case "no answer":
                await gates.let(who, "store", "fail")
                await self._given_back(who)
                return
            case "V1":
                await gates.let(who, "V1", lost)
            case "V4":
                await gates.let(who, "store")
                await gates.let(who, "V4", lost)
        if how == "then crash":
            await gates.reached(who, "ack")
            await self._crash(step.who, was.message)
        elif how == "answer lost" or was.epoch != CURRENT:
            await self._given_back(who)
        elif after.writers[step.who].phase == "admitted":
            await gates.reached(who, "send")
        else:
            await gates.let(who, "ack")
            await gates.reached(who, "take")

    async def _given_back(self, who: str) -> None:
        await self.stage.gates.let(who, "give back")
        await self.stage.gates.reached(who, "take")

    async def _crash(self, who: int, message: int) -> None:
        name = self.writers[who]
        self.stage.gates.abandon(name)
        if self.stage.broker.holders.get(self._name(message)) == name:
            self.stage.broker.holders[self._name(message)] = None
        self.writers[who] = self.stage.start_writer()

    def _name(self, message: int) -> str:
        return f"validated {message}"

    def _handed_out(self, message: int, who: str) -> Any:
        event = self.world.scenario.approved[self.world.scenario.messages[message]]
        self.stage.broker.holders[self._name(message)] = who
        return delivery(self._name(message), who, body_of(event), EMBED_COMMAND if event.own_clock else TASK_VALIDATED)

    async def _index_step(self, step: Step, before: State) -> None:
        if step.name == "apply":
            await self.stage.index.store(self.stage.upserts[step.what])
        else:
            key, generations = requests(before)[step.what]
            await self.stage.index.remove(self.world.scenario.keys[key], sorted(generations))

    async def _taint(self, number: int, *, comes_again: bool) -> None:
        taint, gates = self.world.scenario.taints[number], self.stage.gates
        who = self.stage.start_taint_handler()
        data = {"artifact_ids": list(taint.artifact_ids), "tenant_id": taint.tenant_id, "cascade_id": str(number)}
        body = {"data": data, **_time(taint.claimed)}
        self.stage.broker.holders[f"taint {number}"] = who
        await gates.let(who, "take", delivery(f"taint {number}", who, body, ARTIFACT_TAINTED))
        await gates.let(who, "T1")
        await gates.reached(who, "ack")
        if comes_again:
            gates.abandon(who)
        else:
            await gates.let(who, "ack")
            await gates.reached(who, "take")

    async def _relay_step(self, name: str, how: str, before: State) -> None:
        gates = self.stage.gates
        match name:
            case "relay":
                self.relay = self.stage.start_relay()
                waiting = self._rows("SELECT count(*) FROM rag_outbox WHERE sent_at IS NULL")[0][0]
                for number in range(waiting):
                    await gates.let(self.relay, "publish")
                    await gates.reached(self.relay, "confirm")
                    if how and number == waiting - 1:
                        self._relay_dies()
                        return
                    await gates.let(self.relay, "confirm")
                await self.stage.ended(self.relay)
            case "publish":
                if before.relay.confirmed:
                    await gates.let(self.relay, "confirm")
                else:
                    self.relay = self.stage.start_relay()
                await gates.let(self.relay, "publish")
                await gates.reached(self.relay, "confirm")
            case "mark sent":
                await gates.let(self.relay, "confirm")
                await self.stage.ended(self.relay)  # fewer than it asked for: what came meanwhile waits for the next
            case "relay crashes":
                self._relay_dies()

    def _relay_dies(self) -> None:
        self.stage.gates.abandon(self.relay)
        self.clock.passed_us += round(RELAY_CLAIM_S * 1e6) + 1  # nobody else takes what it has claimed before

    async def _sweep_step(self, step: Step, before: State, after: State) -> None:
        gates = self.stage.gates
        match step.name:
            case "sweep" | "list":
                self.sweeper = self.stage.start_sweep([self.world.scenario.keys[step.what]])
                await gates.let(self.sweeper, "list")
                await gates.reached(self.sweeper, "keep")
                if step.name == "sweep":
                    await gates.let(self.sweeper, "keep")
                    await gates.let(self.sweeper, "remove")
                    await self.stage.ended(self.sweeper)
            case "keep":
                await gates.let(self.sweeper, "keep")
                if after.sweeper.phase == "removing":
                    await gates.reached(self.sweeper, "remove")
                else:
                    await self.stage.ended(self.sweeper)
            case "gone":
                await gates.let(self.sweeper, "remove")
                await self.stage.ended(self.sweeper)
            case "sweeper crashes":
                gates.abandon(self.sweeper)

    async def _reader_step(self, name: str, before: State) -> None:
        gates = self.stage.gates
        if name == "Q1":
            key = before.generations[min(point.generation for point in before.points) - 1].key
            tenant_id = self.world.scenario.keys[key].tenant_id

            async def ask(ledger: Any) -> Any:
                return await self._ask(ledger, tenant_id)

            who = self.stage.spawn_reader(ask)
            await gates.reached(who, "Q3")
            self.reader = (who, len(before.published))
            self._told = frozenset(event for event in before.published if event.kind == "invalidated")
            return
        who, _ = self.reader
        answered = False
        while not answered:
            await gates.let(who, "Q3")
            answered = await self._answered_or_looks_again(who)
        for key, version in await self.stage.ended(who):
            row = before.rows[key]
            own_clock = bool(row and row.own_clock)
            assert not any(is_covered(self.world, event, key, version, own_clock=own_clock) for event in self._told), (
                f"the query shows {self.world.scenario.keys[key]} at {version}"
            )

    async def _answered_or_looks_again(self, who: str) -> bool:
        """It asks again, at most so many rounds, when the last look took something away."""
        task = self.stage.task(who)
        again = asyncio.ensure_future(self.stage.gates.reached(who, "Q3"))
        await asyncio.wait({task, again}, return_when=asyncio.FIRST_COMPLETED)
        again.cancel()
        return task.done()

    async def _ask(self, ledger: Any, tenant_id: str) -> list[tuple[int, int]]:
        engine = QueryEngine(
            encoder=self.stage.encoder,
            index=self.stage.index,
            ledger=ledger,
            min_similarity=0.0,
            least_candidates=50,
            weights=LegWeights(dense=1.0, sparse=0.5),
        )
        where = SearchFilter(Principal(tenant_id=tenant_id))
        answer = await engine.retrieve(Question(_words("x"), "hybrid", where, top_k=20, budget_tokens=5000))
        return [
            (self.world.scenario.keys.index(hit.passage.ref.key), _ticks(hit.passage.version)) for hit in answer.hits
        ]

    # -- states

    def _expected(self, state: State) -> dict[str, Any]:
        scenario = self.world.scenario
        everything = told(state)
        exact = scenario.fine_relay
        return {
            "rows": {
                key: (
                    *row.tombstone,
                    row.version,
                    row.own_clock if row.version > NEVER else False,
                    row.live,
                    row.content,
                )
                for key, row in enumerate(state.rows)
                if row
            },
            "wildcards": {
                scenario.keys[key].artifact_id: tuple(stone)
                for key, stone in enumerate(state.wildcards)
                if stone.at > NEVER
            },
            "pending": set(state.pending),
            "texts": set(state.texts),
            "quarantine": {item[:3] for item in state.quarantine},
            "receipts": {(key, text, claimed, at) for key, text, claimed, at in state.receipts},
            "told": {_said(one) for one in everything},
            "unsent": [_said(one) for one in state.unsent] if exact else {_said(one) for one in state.unsent},
            "published": {_said(one) for one in state.published if exact or one.kind == "invalidated"},
            "points": {point.generation for point in state.points},
            "acked": {self._name(number) for number, status in enumerate(state.messages) if status == ACKED},
            "tainted": {f"taint {number}" for number, status in enumerate(state.taints) if status == "acked"},
            "visible": {
                (key, row.version) for key, row in enumerate(state.rows) if row and shown(self.world, state, key)
            },
        }

    async def _found(self, state: State) -> dict[str, Any]:
        scenario = self.world.scenario
        keys = {(key.tenant_id, key.artifact_id): number for number, key in enumerate(scenario.keys)}
        labels = {parse_validated(_encoded(body_of(event)), event_type=_type(event)).content_hash: event.content
                  for event in scenario.approved}  # fmt: skip
        exact = scenario.fine_relay
        unsent = [self._event(*row) for row in self._rows(
            "SELECT event_id, routing_key, body FROM rag_outbox WHERE sent_at IS NULL ORDER BY id")]  # fmt: skip
        timely = [one for one in unsent if exact or one[0] == "invalidated"]
        published = {
            self._published(message.body) for message in self.stage.bus.queue(PUBLISHED_QUEUE)
            if exact or message.event_type == EMBEDDING_INVALIDATED
        }  # fmt: skip
        index: set[int] = set()
        async for page in self.stage.index.scan():
            index |= {one for found in page.values() for one in found}
        visible = {one for tenant_id in {key.tenant_id for key in scenario.keys}
                   for one in await self._ask(self.stage.ledger, tenant_id)}  # fmt: skip
        acked = self.stage.broker.acked
        return {
            "rows": {
                keys[tenant, artifact]: (
                    _ticks(at), _ticks(through), _ticks(own), _ticks(version), bool(own_clock), live or 0,
                    labels.get(content or "", ""),
                )
                for tenant, artifact, at, through, own, version, own_clock, live, content in self._rows(
                    "SELECT tenant_id, artifact_id, tainted_at, tainted_through, tainted_through_own, version,"
                    " version_own_clock, live_generation, content_hash FROM rag_artifacts"
                )
                if (tenant, artifact) in keys
            },
            "wildcards": {
                artifact: tuple(map(_ticks, bounds))
                for artifact, *bounds in self._rows(
                    "SELECT artifact_id, tainted_at, tainted_through, tainted_through_own FROM rag_wildcards"
                )
            },
            "pending": {one for (one,) in self._rows("SELECT generation FROM rag_pending")},
            "texts": {one for (one,) in self._rows("SELECT DISTINCT generation FROM rag_chunks")},
            "quarantine": {
                (keys[tenant, artifact], _ticks(version), labels[content])
                for tenant, artifact, version, content in self._rows(
                    "SELECT tenant_id, artifact_id, version, content_hash FROM rag_quarantine"
                )
            },
            "receipts": {
                (keys[tenant, artifact], labels[content], None if claimed == NEVER else _ticks(claimed), _ticks(placed))
                for tenant, artifact, content, claimed, placed in self._rows(
                    "SELECT tenant_id, artifact_id, content_hash, claimed, placed FROM rag_receipts"
                )
                if scenario.keeps_receipts
            },
            "told": {self._event(*row) for row in self._rows("SELECT event_id, routing_key, body FROM rag_outbox")},
            "unsent": timely if exact else set(timely),
            "published": published,
            "points": index,
            "acked": {name for name in acked if name.startswith("validated")},
            "tainted": {name for name in acked if name.startswith("taint")},
            "visible": visible,
        }  # fmt: skip

    def _rows(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self.database)) as connection:
            return connection.execute(statement).fetchall()

    def _event(self, event_id: str, routing_key: str, body: str) -> tuple[Any, ...]:
        return self._published(body, event_id)

    def _published(self, body: str | bytes, event_id: str | None = None) -> tuple[Any, ...]:
        event = json.loads(body)
        assert event_id in (None, event["id"])
        kind = event["type"].partition(".")[2]
        data = event["data"]
        if kind == "invalidated":
            return (kind, int(data["cascade_id"]), _ticks(data["through"]))
        documents = {key.document_id: number for number, key in enumerate(self.world.scenario.keys)}
        return (kind, documents[event["id"].split(":")[1]], _ticks(data["version"]))


# --------------------------------------------------------------------------------------------------------- translation


def body_of(event: Any) -> dict[str, Any]:
    """What QA would send."""
    data = {
        "artifact_id": event.key.artifact_id,
        "tenant_id": event.key.tenant_id,
        "content": _words(event.content),
        "metadata": {"project_id": "p"},
    }
    return {"data": data, **_time(event.claimed)}


def _time(claimed: int | None) -> dict[str, str]:
    return {} if claimed is None else {"time": rfc3339(START_US + claimed * TICK_US)}


def _type(event: Any) -> str:
    return EMBED_COMMAND if event.own_clock else TASK_VALIDATED


def _encoded(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


def _words(content: str) -> str:
    """A text of two chunks."""
    return " ".join(f"paragraph {number} of content {content}." for number in range(6))


def _ticks(ord_us: int) -> int:
    return NEVER if ord_us == NEVER else (ord_us - START_US) // TICK_US


def _said(event: Any) -> tuple[Any, ...]:
    if event.kind == "invalidated":
        return (event.kind, event.taint, event.tombstone.through)
    return (event.kind, event.key, event.ord)


# ------------------------------------------------------------------------------------------------------------- theatre


class Theatre:
    """Makes a fresh ledger for every run from one that was migrated once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._runs = 0

    async def play(self, scenario: Scenario, run: Run) -> None:
        """Play a run of the algorithm itself. Raises: AssertionError: production does something else."""
        clock = Clock(scenario.clock)
        database = await self._fresh()
        async with open_ledger(f"sqlite:///{database}", clock=clock) as ledger:
            stage = Stage(ledger, skew_s=scenario.skew * TICK_US / 1e6)
            await stage.index.prepare(await fingerprint(stage.encoder))
            try:
                await Player(World(scenario), stage, clock, database).play(run)
            finally:
                await stage.close()

    async def _fresh(self) -> Path:
        template = self._directory / "template.db"
        if not template.exists():
            async with open_ledger(f"sqlite:///{template}"):
                pass
        self._runs += 1
        return Path(shutil.copy(template, self._directory / f"run-{self._runs}.db"))
