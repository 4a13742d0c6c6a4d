"""What must be so, judged by the events alone and by rules written down a second time.

The order of an artifact's history is a number, its ORD. A taint sent at s covers everything up to s + skew, or up to s
where both times are the ledger's own. What is newest and not covered is what readers see in the end.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dats_common.contracts.events import parse_validated
from dats_common.contracts.topology import DEAD_LETTERS_QUEUE, EMBED_COMMAND, EMBEDDING_INVALIDATED, TASK_VALIDATED
from dats_common.domain.model import NEVER, ArtifactKey
from tests.faults.simulation.record import Answer, Confirmed, Record, Shown
from tests.faults.simulation.scenario import SECOND, Poison, Tainted, Validated, command_of, encode

if TYPE_CHECKING:
    from tests.faults.simulation.world import World


@dataclass(frozen=True, slots=True)
class _Placed:
    """A validated event where the ledger has placed it."""

    event: Validated
    ord: int


@dataclass(frozen=True, slots=True)
class _Live:
    """What the ledger shows of an artifact."""

    version: int
    generation: int
    content: str


class Oracle:
    """Judges a run that is over: `judge` adds what is wrong to the record."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._record: Record = world.record
        self._skew = round(world.scenario.skew_s * SECOND)
        self._placed = [self._place(e) for e in self._record.sent_events if isinstance(e, Validated)]
        self._taints = self._committed()
        self._live = self._live_now()

    def judge(self) -> None:
        """All of it."""
        for answer in self._record.answers:
            for shown in answer.shown:
                self._judge_shown(answer, shown)
        for key in sorted({placed.event.key for placed in self._placed}):
            self._judge_end(key, [placed for placed in self._placed if placed.event.key == key])
        self._judge_events()
        self._judge_leftovers()

    # ------------------------------------------------------------------------------------------------- what was sent

    def _place(self, event: Validated) -> _Placed:
        """Its own time; for a bare or clamped one what the ledger wrote down at first receipt, if that can be."""
        sent = self._record.sent_clock[event.number]
        body, timestamp = (json.dumps(command_of(event)).encode(), None) if event.over_http else encode(event)
        parsed = parse_validated(
            body, event_type=EMBED_COMMAND if event.over_http else TASK_VALIDATED, timestamp_us=timestamp
        )
        found = self._record.rows(
            "SELECT placed FROM rag_receipts WHERE tenant_id = ? AND artifact_id = ? AND content_hash = ?"
            " AND claimed = ?",
            event.key.tenant_id,
            event.key.artifact_id,
            parsed.content_hash,
            NEVER if event.claimed is None else event.claimed,
        )
        name = f"event {event.number} of {event.key.artifact_id}"
        if not found:
            self._record.violated("I8", f"{name} was sent, and nothing is known of it")
            return _Placed(event, sent if event.claimed is None else event.claimed)
        ((placed,),) = found
        if event.claimed is not None and event.claimed <= sent:
            if placed != event.claimed:
                self._record.violated("order", f"{name} claims {event.claimed} and was placed at {placed}")
        elif placed < sent or (event.claimed is not None and placed > event.claimed):
            self._record.violated("order", f"{name} was sent at {sent} and was placed at {placed}")
        return _Placed(event, placed)

    def _committed(self) -> list[Confirmed]:
        """The taints; of those that a caller sent to a replica that died, only what was committed before."""
        rows = self._record.rows("SELECT body FROM rag_outbox WHERE routing_key = ?", EMBEDDING_INVALIDATED)
        through = {data["cascade_id"]: data["through"] for data in (json.loads(body)["data"] for (body,) in rows)}
        committed = []
        for taint in self._record.sent_events:
            if not isinstance(taint, Tainted):
                continue
            if taint.name not in through:
                if not taint.over_http:
                    self._record.violated("L2", f"{taint.name} was sent, and nothing is known of it")
                continue
            reach = through[taint.name]
            sent = self._record.sent_clock[taint.number]
            least = sent if taint.claimed is None else min(sent, taint.claimed)
            most = reach if taint.claimed is None else taint.claimed + self._skew
            if not least + self._skew <= reach <= most:
                self._record.violated("order", f"{taint.name} reaches to {reach}, not {least + self._skew} to {most}")
            committed.append(Confirmed(0, taint, reach, reach - self._skew if taint.own_clock else reach))
        return committed

    def _live_now(self) -> dict[ArtifactKey, _Live]:
        rows = self._record.rows(
            "SELECT a.tenant_id, a.artifact_id, a.version, a.live_generation, d.body FROM rag_artifacts a"
            " JOIN rag_documents d ON d.generation = a.live_generation"
        )
        return {ArtifactKey(tenant, artifact): _Live(*rest) for tenant, artifact, *rest in rows}

    # ------------------------------------------------------------------------------------------------------ answers

    def _judge_shown(self, answer: Answer, shown: Shown) -> None:
        of_this = [p for p in self._placed if p.event.key == shown.ref.key and shown.text in p.event.content]
        of_this = [p for p in of_this if p.ord == shown.version and self._record.first_sent(p.event) < answer.given]
        name = f"{shown.ref.key.artifact_id} at {shown.version}, generation {shown.ref.generation}"
        if not of_this:
            self._record.violated("I4", f"{name} was shown with a text that this version never had")
            return
        for item in self._record.confirmed:
            if item.moment < answer.asked and all(_covers(item, placed) for placed in of_this):
                self._record.violated("stale", f"{name} was shown, asked after {item.taint.name} was confirmed")

    # ---------------------------------------------------------------------------------------------------- in the end

    def _judge_end(self, key: ArtifactKey, placed: Sequence[_Placed]) -> None:
        name = f"{key.tenant_id}/{key.artifact_id}"
        alive = [p for p in placed if not any(_covers(taint, p) for taint in self._taints)]
        newest = max((p.ord for p in alive), default=NEVER)
        live = self._live.get(key)
        if live is None:
            if alive and not self._is_excused(placed, newest):
                self._record.violated("lost", f"{name}: nothing is visible, expected version {newest}")
            return
        if not any(p.ord == live.version and p.event.content == live.content for p in alive):
            self._record.violated("stale", f"{name}: version {live.version} is visible in the end, and is tainted")
        elif live.version != newest and not self._is_excused(placed, newest):
            self._record.violated("lost", f"{name}: version {live.version} is visible, {newest} is newer")
        if (live.version, live.generation) not in self._record.completed:
            self._record.violated("L1", f"{name}: embedding.completed for version {live.version} was never published")

    def _is_excused(self, placed: Sequence[_Placed], newest: int) -> bool:
        """Whether the order of arrival may keep the newest one out of sight: only where clocks are mixed.

        A bare one that comes after a taint is quarantined. One of a foreign clock may be live for a while although a
        taint covers it that comes later, and an older one of the ledger's clock is superseded by it.
        """
        tainted = any(taint.taint.covers(item.event.key) for taint in self._taints for item in placed)
        bare = any(item.event.claimed is None for item in placed)
        own = {item.event.own_clock for item in placed}
        fell = any(item.ord >= newest and any(_covers(taint, item) for taint in self._taints) for item in placed)
        return tainted and (bare or (len(own) > 1 and fell))

    def _judge_events(self) -> None:
        for taint in self._taints:
            if taint.taint.name not in self._record.invalidated:
                self._record.violated("L2", f"embedding.invalidated of {taint.taint.name} was never published")
        committed = {taint.taint.number for taint in self._taints}
        for item in self._record.confirmed:
            if item.taint.number not in committed:
                self._record.violated("L2", f"{item.taint.name} was acknowledged and is nowhere")
        poison = [event.body for event in self._record.sent_events if isinstance(event, Poison)]
        dead = [message.body for message in self._world.bus.queue(DEAD_LETTERS_QUEUE)]
        if set(dead) != set(poison) or len(dead) < len(poison):
            self._record.violated("I8", f"dead letters: {len(dead)}, sent that nobody can read: {len(poison)}")
        if self._record.failures < len(poison):
            self._record.violated("I8", f"embedding.failed: {self._record.failures} of {len(poison)}")

    def _judge_leftovers(self) -> None:
        live = {(key, shown.generation) for key, shown in self._live.items()}
        points = self._world.index.all_generations()
        if points != live:
            more, less = sorted(points - live), sorted(live - points)
            self._record.violated("L3", f"the index has {more} too much and {less} too little")
        texts = {generation for (generation,) in self._record.rows("SELECT DISTINCT generation FROM rag_chunks")}
        if texts != {generation for _, generation in live}:
            self._record.violated("L3", f"chunk rows of {sorted(texts)}, live are {sorted(g for _, g in live)}")
        if self._record.rows("SELECT generation FROM rag_pending"):
            self._record.violated("L3", "generations are pending that nobody writes")
        if self._record.rows("SELECT id FROM rag_outbox WHERE sent_at IS NULL"):
            self._record.violated("L2", "events wait in the outbox")


def _covers(item: Confirmed, placed: _Placed) -> bool:
    return item.taint.covers(placed.event.key) and placed.ord <= item.bound(own_clock=placed.event.own_clock)
