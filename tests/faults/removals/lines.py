"""The lines that the promise hangs on, each with what would be there if somebody had left it out."""

from __future__ import annotations

from dataclasses import dataclass

RULES = "tests/unit/test_taint_order.py"
LEDGER = "tests/ports/test_ledger.py"
CONCURRENCY = "tests/ports/test_ledger_concurrency.py"
REPLAY = "tests/faults/model/test_replay.py"
SIMULATION = "tests/faults/test_simulation.py"
CONSUMER = "tests/services/test_consumer.py"
HTTP = "tests/services/test_http.py"
INDEX = "tests/ports/test_index.py"
ENGINE = "tests/ports/test_engine_commits.py"

_SQL = "dats_common/adapters/sql"


@dataclass(frozen=True, slots=True)
class Removal:
    """One change of one file. `before` stands there exactly once."""

    name: str
    path: str
    before: str
    after: str
    suites: tuple[str, ...] = (RULES, LEDGER, CONSUMER, REPLAY, SIMULATION)

    def apply(self, source: str) -> str:
        """The file without the line. Raises: ValueError: the file has moved on."""
        if source.count(self.before) != 1:
            raise ValueError(f"{self.name}: {self.path} holds it {source.count(self.before)} times, not once")
        return source.replace(self.before, self.after)


REMOVALS = (
    Removal(
        "the last look (Q3)",
        "services/query/engine.py",
        "live = await self._ledger.still_live([hit.passage.ref for hit in shown], question.where.principal)",
        "live = frozenset(hit.passage.ref for hit in shown)",
        (HTTP, SIMULATION),
    ),
    Removal(
        "the tombstone of an artifact that was never seen",
        f"{_SQL}/tainting.py",
        "        await connection.execute(insert(artifacts, connection).values(rows).on_conflict_do_nothing())\n",
        "",
    ),
    Removal(
        "live_generation cleared by the taint",
        f"{_SQL}/tainting.py",
        ".values(live_generation=None, content_hash=None)",
        ".values(content_hash=None)",
    ),
    Removal(
        "the taint looked for again at the flip",
        "dats_common/domain/taint.py",
        "if at.ord <= state.tombstone.bound(own_clock=at.own_clock):\n"
        "        if at.ord <= state.tombstone.at or (state.is_live",
        "if False:\n        if at.ord <= state.tombstone.at or (state.is_live",
    ),
    Removal(
        "the pending row asked for at the flip",
        f"{_SQL}/writing.py",
        "pending=_generation(item).number in had_pending,",
        "pending=True,",
    ),
    Removal(
        "a reclaimed generation starts again",
        "dats_common/domain/taint.py",
        "FlipVerdict.LIVE if pending else FlipVerdict.RECLAIMED",
        "FlipVerdict.LIVE if pending else FlipVerdict.GARBAGE",
    ),
    Removal(
        "the epoch asked for in V1 and V4",
        f"{_SQL}/writing.py",
        "if current.scalar_one_or_none() != epoch:",
        "if False and current.scalar_one_or_none() != epoch:",
    ),
    Removal(
        "acknowledged last",
        "services/writer/consumer.py",
        "handled = await self._handle(batch)\n",
        "[await subscription.ack(each) for each in batch]\n                handled = await self._handle(batch)\n",
        (CONSUMER, SIMULATION),
    ),
    Removal(
        "embedding.completed in the flip's transaction",
        f"{_SQL}/writing.py",
        "    await enqueue(connection, announced, now=now, traces=[item.event.trace for item in live])\n",
        "",
    ),
    Removal(
        "embedding.invalidated in the taint's transaction",
        f"{_SQL}/tainting.py",
        "        await enqueue(connection, [invalidated], now=now)\n",
        "",
    ),
    Removal(
        "an event is marked sent only once it was published",
        f"{_SQL}/ledger.py",
        "await self._release(sent, [event.row_id for event in events if event.row_id not in set(sent)])",
        "await self._release([event.row_id for event in events], [])",
    ),
    Removal(
        "the generation in the point id",
        "dats_common/domain/model.py",
        "\\0{self.generation}\\0{self.chunk_index}",
        "\\0{self.chunk_index}",
        (INDEX, REPLAY, SIMULATION),
    ),
    Removal(
        "the sweep spares what is live or pending",
        "dats_common/maintenance/sweep.py",
        "generations - keep.get(key, set())",
        "generations",
    ),
    Removal(
        "the sweep spares what is pending",
        f"{_SQL}/ledger.py",
        "live.union_all(writing)",
        "live",
    ),
    Removal(
        "versions never decrease",
        "dats_common/domain/taint.py",
        "    if at.ord < state.version:\n        return Verdict.SUPERSEDED, None  # also when",
        "    if False:\n        return Verdict.SUPERSEDED, None  # also when",
    ),
    Removal(
        "the skew between two clocks",
        "dats_common/domain/taint.py",
        "through = sent + round(skew_s * MICROSECONDS)",
        "through = sent",
    ),
    Removal(
        "a taint without tenant covers tenants that show the id later",
        f"{_SQL}/rows.py",
        "tombstone=tombstone_of(row).merge(by_id.get(key.artifact_id, Tombstone())),",
        "tombstone=tombstone_of(row),",
    ),
    Removal(
        "the identity judged again by the guard",
        f"{_SQL}/reading.py",
        "if ref is not None and ref.key == key_of(row) and _visible(principal, ref.key, metadata):",
        "if ref is not None and ref.key == key_of(row):",
        (LEDGER, HTTP),
    ),
    Removal(
        "a take-over reclaims what was pending",
        f"{_SQL}/writing.py",
        "        await connection.execute(delete(pending).where(pending.c.epoch < epoch))\n",
        "",
    ),
    Removal(
        "a write is flushed before it is acknowledged",
        "dats_common/embedded/qdrant_collection.py",
        "        if any(one.durable for one in group):\n            flushed",
        "        if False:\n            flushed",
        (ENGINE,),
    ),
)
