"""The transition relation: from a state to every state that one atomic step leads to.

A step is one call of a port (a transaction of the ledger, a request to the index, a publish, an acknowledgement):
between two of them anything else may happen. V1, V4 and T1 call the production rules of `dats_common.domain.taint`.

Broader than production on purpose: any writer may take any message at any time (no single active consumer is assumed),
a taint may be handled by any process, a claimed outbox row is free again as soon as its relay has died.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, lru_cache
from typing import TypeVar

from dats_common.domain.model import EventTime
from dats_common.domain.taint import (
    MICROSECONDS,
    ArtifactState,
    FlipVerdict,
    Place,
    QuarantineReason,
    Verdict,
    admit,
    flip,
    place,
    tombstone,
)

from .state import (
    ACKED,
    CURRENT,
    NO_EPOCH,
    NO_STONE,
    NOBODY,
    QUEUED,
    STALE,
    Generation,
    Held,
    Point,
    Reader,
    Relay,
    Row,
    Scenario,
    State,
    Step,
    Stone,
    Sweeper,
    Told,
    World,
    Writer,
    merged,
)

Moves = Iterator[tuple[Step, State]]

_T = TypeVar("_T")

# The rules are pure, and asked the same few questions a million times.
_admit = lru_cache(maxsize=None)(admit)
_flip = lru_cache(maxsize=None)(flip)
_ArtifactState = lru_cache(maxsize=None)(ArtifactState)


@cache
def _covering(at: int, *, own_clock: bool, skew: int) -> Stone:
    stone = tombstone(at, own_clock=own_clock, skew_s=skew / MICROSECONDS)
    return Stone(stone.at, stone.through, stone.through_own)


def moves(world: World, state: State) -> Moves:
    """Every step that is possible now, with the state after it."""
    for who in (0, 1):
        yield from _writer_moves(world, state, who)
    yield from _index_moves(world, state)
    for number in range(len(state.taints)):
        yield from _taint_moves(world, state, number)
    yield from _relay_moves(world, state)
    if world.rules.sweeper:
        yield from _sweeper_moves(world, state)
    if world.scenario.queries:
        yield from _reader_moves(world, state)


# ------------------------------------------------------------------------------------------------------------- writer


def _writer_moves(world: World, state: State, who: int) -> Moves:
    rules = world.rules
    writer = state.writers[who]
    phase = writer.phase
    if phase == "idle":
        yield from _take(world, state, who)
        return
    if phase == "taken" and writer.epoch == NO_EPOCH:
        yield Step("activate", who), _activate(state, who)
    elif phase == "admitted" and rules.flip_after_upsert:
        yield Step("send", who), _send(world, state, who)
    elif phase in ("taken", "admitted", "stored"):
        yield from _transactions(world, state, who)
    elif phase == "flipped":
        yield Step("next", who), _settled(_after_early_flip(world, state, who), who)
    if not state.faults:
        return
    spent = state._replace(faults=state.faults - 1)
    if phase in ("sent", "stored"):
        yield Step("no answer", who, fault=True), _failed(spent, state, who)
    if not rules.perfect_lease and _holds(state, who):
        hung = spent._replace(messages=_set(state.messages, writer.message, QUEUED))
        yield Step("hang", who, fault=True), hung
    yield Step("crash", who, fault=True), _crashed(spent, who, writer.message)


def _transactions(world: World, state: State, who: int) -> Moves:
    """V1 or V4, and the acknowledgement if nothing is left to do; or what may come between the commit and that."""
    writer = state.writers[who]
    if _is_locked(world, state, writer):
        return
    if writer.phase == "stored" and not world.rules.flip_after_upsert:
        yield Step("finish", who), _settled(_with(state, who, writer._replace(phase="ending")), who)
        return
    name = "V1" if writer.phase == "taken" else "V4"
    after = _v1(world, state, who) if writer.phase == "taken" else _v4(world, state, who)
    yield Step(name, who), _settled(after, who)
    if state.faults and after.writers[who].epoch != NO_EPOCH:
        spent = after._replace(faults=after.faults - 1)
        yield Step(f"{name}, answer lost", who, fault=True), _failed(spent, state, who)
        if after.writers[who].phase == "ending":
            yield Step(f"{name}, then crash", who, fault=True), _crashed(spent, who, writer.message)


def _settled(state: State, who: int) -> State:
    """Acknowledged, if the writer has come to that."""
    writer = state.writers[who]
    if writer.phase != "ending":
        return state
    if _holds(state, who):
        state = state._replace(messages=_set(state.messages, writer.message, ACKED))
    return _with(state, who, writer._replace(phase="idle", message=-1, generation=0))


def _crashed(state: State, who: int, message: int) -> State:
    return _requeue(_with(state, who, Writer()), who, message)


def _holds(state: State, who: int) -> bool:
    """Whether the broker still takes this writer for the holder of its message."""
    message = state.writers[who].message
    return message >= 0 and state.messages[message] == who + 1


def _is_locked(world: World, state: State, writer: Writer) -> bool:
    """A taint in the making holds the rows that it has seen."""
    if not world.scenario.wildcard_race or "begun" not in state.taints:
        return False
    return world.scenario.key_of[world.scenario.messages[writer.message]] in state.snapshot


def _take(world: World, state: State, who: int) -> Moves:
    """The broker hands out a message; what earlier attempts left pending is abandoned first."""
    writer, other = state.writers[who], state.writers[1 - who]
    if world.rules.perfect_lease and other.phase != "idle":
        return
    takeovers = state.takeovers
    if writer.epoch == NO_EPOCH and other.epoch == CURRENT:
        if not takeovers:
            return
        takeovers -= 1
    for message, status in enumerate(state.messages):
        if status == QUEUED:
            taken = _with(state, who, writer._replace(phase="taken", message=message, failed=()))
            yield (
                Step("take", who, message),
                taken._replace(
                    messages=_set(state.messages, message, who + 1),
                    pending=state.pending.difference(writer.failed),
                    takeovers=takeovers,
                ),
            )


def _activate(state: State, who: int) -> State:
    writer, other = state.writers[who], state.writers[1 - who]
    if other.epoch == CURRENT:
        other = other._replace(epoch=STALE)
    # Every pending row was inserted under an epoch that is over now. What failed is therefore not pending any more.
    state = _with(state, who, writer._replace(epoch=CURRENT, failed=()))
    return _with(state, 1 - who, other._replace(failed=()))._replace(pending=frozenset())


def _fenced(world: World, state: State, who: int) -> State:
    writer = state.writers[who]
    if world.rules.refused_flip_acks and writer.phase != "taken":
        return _with(state, who, writer._replace(phase="ending", epoch=NO_EPOCH))
    return _requeue(_with(state, who, Writer()), who, writer.message)


def _v1(world: World, state: State, who: int) -> State:
    scenario, rules = world.scenario, world.rules
    writer = state.writers[who]
    if rules.fence and writer.epoch != CURRENT:
        return _fenced(world, state, who)
    number = scenario.messages[writer.message]
    ending = writer._replace(phase="ending", generation=0)
    if rules.inbox_first:
        if number in state.inbox:
            return _with(state, who, ending)
        state = state._replace(inbox=state.inbox | {number})
    key, event = scenario.key_of[number], scenario.approved[number]
    row = state.rows[key] or Row()
    stone = merged(state, key)
    if rules.taint_is_flag:
        row = row._replace(tombstone=NO_STONE)
        stone = NO_STONE
    state = state._replace(rows=_set(state.rows, key, row))
    at, seen_before, state = _placed(scenario, state, number)
    seen_stone = stone if rules.admit_checks_taint else NO_STONE
    verdict, reason = _admit(
        _ArtifactState(seen_stone.rule, row.version, row.live or None, row.content or None),
        at,
        content_hash=event.content,
        seen_before=seen_before,
    )
    if verdict is Verdict.EMBED:
        generation = len(state.generations) + 1
        held = _holds(state, who)
        state = state._replace(
            generations=(*state.generations, Generation(key, number, at.ord, at.own_clock)),
            pending=state.pending | {generation},
        )
        state = _with(state, who, writer._replace(phase="admitted", generation=generation))
        if not rules.ack_last and held:
            state = state._replace(messages=_set(state.messages, writer.message, ACKED))
        return state
    if verdict is Verdict.UNCHANGED:
        moved = row._replace(version=at.ord, own_clock=at.own_clock)
        state = _tell(world, state._replace(rows=_set(state.rows, key, moved)), Told("completed", key, at.ord))
    elif verdict is Verdict.QUARANTINED:
        bare = reason is QuarantineReason.BARE_AFTER_TAINT
        state = _hold(world, state, Held(key, at.ord, event.content, bare))
    return _with(state, who, ending)


def _placed(scenario: Scenario, state: State, number: int) -> tuple[Place, bool, State]:
    """The event's place, whether this content could be placed before, and the ledger that remembers it.

    Mirrors `_judge` of the ledger's writing side; the replay holds the two together.
    """
    event, key = scenario.approved[number], scenario.key_of[number]
    time = EventTime(event.claimed, event.own_clock)
    if not scenario.keeps_receipts:
        return place(time, now=state.clock, first_receipt=None), True, state
    seen = {
        claimed: placed
        for where, content, claimed, placed in state.receipts
        if where == key and content == event.content
    }
    if event.claimed is not None:
        at = place(time, now=state.clock, first_receipt=seen.get(event.claimed))
    else:
        first = min(seen.values(), default=None)
        at = replace(place(time, now=state.clock, first_receipt=first), own_clock=first in (None, seen.get(None)))
    ambiguous = any(item.bare and item.key == key and item.content == event.content for item in state.quarantine)
    seen_before = any(claimed is not None or not ambiguous for claimed in seen)
    if event.claimed not in seen:
        receipt = (key, event.content, event.claimed, at.ord)
        state = state._replace(receipts=state.receipts | {receipt})
        if at.ord == state.clock:
            state = state._replace(clock=state.clock + 1)
    return at, seen_before, state


def _send(world: World, state: State, who: int) -> State:
    """Chunk rows to the ledger if the generation is still pending; points on their way to the index in any case."""
    writer = state.writers[who]
    phase = "sent" if world.rules.upsert_waits else "stored"
    state = _with(state, who, writer._replace(phase=phase))
    sent = frozenset({writer.generation})
    return state._replace(upserts=state.upserts | sent, texts=state.texts | (sent & state.pending))


def _v4(world: World, state: State, who: int) -> State:
    scenario, rules = world.scenario, world.rules
    writer = state.writers[who]
    if rules.fence and writer.epoch != CURRENT:
        return _fenced(world, state, who)
    number = writer.generation
    generation = state.generations[number - 1]
    key, content = generation.key, scenario.approved[generation.event].content
    row = state.rows[key] or Row()
    stone = merged(state, key) if rules.flip_checks_taint else NO_STONE
    verdict, _ = _flip(
        _ArtifactState(stone.rule, row.version, row.live or None, row.content or None),
        Place(generation.ord, generation.own_clock),
        content_hash=content,
        pending=number in state.pending or not rules.flip_checks_pending,
    )
    state = state._replace(pending=state.pending - {number})
    ended = writer._replace(phase="ending", generation=0)
    if verdict is FlipVerdict.RECLAIMED and not rules.refused_flip_acks:
        return _with(state, who, writer._replace(phase="taken", generation=0))
    if verdict is FlipVerdict.QUARANTINED:
        state = _hold(world, state, Held(key, generation.ord, content))
    elif verdict is FlipVerdict.LIVE:
        live = row._replace(version=generation.ord, own_clock=generation.own_clock, live=number, content=content)
        state = state._replace(rows=_set(state.rows, key, live))
        if rules.outbox_in_flip:
            state = _tell(world, state, Told("completed", key, generation.ord))
        if not rules.outbox_in_flip or not rules.flip_after_upsert:
            ended = writer._replace(phase="flipped")  # mutants: something is still to be done
    return _with(state, who, ended)


def _after_early_flip(world: World, state: State, who: int) -> State:
    """Mutants only: what belongs before or into the flip comes after it."""
    writer = state.writers[who]
    if not world.rules.flip_after_upsert:
        return _send(world, state, who)
    generation = state.generations[writer.generation - 1]
    ended = _with(state, who, writer._replace(phase="ending", generation=0))
    return _tell(world, ended, Told("completed", generation.key, generation.ord))


def _failed(after: State, before: State, who: int) -> State:
    """A call failed for the writer, whatever became of it: the delivery goes back, the generation is given up."""
    was = before.writers[who]
    failed = was.failed
    if was.phase != "taken" and was.generation in after.pending:
        failed = tuple(sorted({*failed, was.generation}))
    idle = was._replace(phase="idle", message=-1, generation=0, failed=failed)
    return _requeue(_with(after, who, idle), who, was.message)


def _requeue(state: State, who: int, message: int) -> State:
    if message < 0 or state.messages[message] != who + 1:
        return state
    return state._replace(messages=_set(state.messages, message, QUEUED))


# -------------------------------------------------------------------------------------------------------------- index


def _index_moves(world: World, state: State) -> Moves:
    """Requests are applied in any order, also long after their sender is gone; a lost one never is."""
    for number in state.upserts:
        waiting = [who for who in (0, 1) if _waits_for(state, who, number)]
        yield Step("apply", what=number), _apply_upsert(world, state, number, waiting)
    for position, request in enumerate(requests(state)):
        if state.sweeper.phase != "removing" or request != (state.sweeper.key, state.sweeper.generations):
            yield Step("late delete", what=position), _apply_delete(state, request)


def requests(state: State) -> list[tuple[int, frozenset[int]]]:
    """The deletes on their way, in an order that a step can refer to."""
    return sorted(state.deletes, key=lambda request: (request[0], sorted(request[1])))


def _waits_for(state: State, who: int, number: int) -> bool:
    return state.writers[who].phase == "sent" and state.writers[who].generation == number


def _apply_upsert(world: World, state: State, number: int, waiting: list[int]) -> State:
    in_id = world.rules.point_names_generation == "id"
    point = Point(number if in_id else -1 - state.generations[number - 1].key, number)
    kept = frozenset(one for one in state.points if one.id != point.id)
    state = state._replace(upserts=state.upserts - {number}, points=kept | {point})
    for who in waiting:
        state = _with(state, who, state.writers[who]._replace(phase="stored"))
    return state


def _apply_delete(state: State, request: tuple[int, frozenset[int]]) -> State:
    key, doomed = request
    left = frozenset(
        point
        for point in state.points
        if (point.generation not in doomed if doomed else state.generations[point.generation - 1].key != key)
    )
    return state._replace(deletes=state.deletes - {request}, points=left)


# -------------------------------------------------------------------------------------------------------------- taint


def _taint_moves(world: World, state: State, number: int) -> Moves:
    rules = world.rules
    status = state.taints[number]
    if status == "acked":
        return
    if rules.perfect_lease and any(writer.phase != "idle" for writer in state.writers):
        return  # whoever has the lease does one thing after the other
    if status == "queued" and not rules.publish_after_tombstone:
        yield Step("announce", what=number), _announce(world, state, number)
    elif status == "queued" and rules.taint_lists_first:
        if "listed" not in state.taints:
            have = frozenset(one for key in world.scenario.covers[number] for one in _have(state, key))
            yield Step("list first", what=number), _to(state, number, "listed")._replace(snapshot=have)
    elif status == "queued" and world.scenario.wildcard_race and world.scenario.taints[number].tenant_id is None:
        if "begun" not in state.taints:
            yield Step("T1 begins", what=number), _to(state, number, "begun")._replace(snapshot=_existing(state))
    else:
        after = _t1(world, state, number)
        yield Step("T1", what=number), _to(after, number, "acked")
        if state.faults:
            again = _to(after, number, "queued")._replace(faults=state.faults - 1)
            yield Step("T1, comes again", what=number, fault=True), again


def _existing(state: State) -> frozenset[int]:
    return frozenset(key for key, row in enumerate(state.rows) if row is not None)


def _announce(world: World, state: State, number: int) -> State:
    taint = world.scenario.taints[number]
    stone = _covering(taint.claimed or state.clock, own_clock=taint.claimed is None, skew=world.scenario.skew)
    early = Told("invalidated", taint=number, tombstone=stone)
    return _to(state, number, "announced")._replace(published=state.published | {early})


def _t1(world: World, state: State, number: int) -> State:
    scenario, rules = world.scenario, world.rules
    taint = scenario.taints[number]
    own_clock = taint.claimed is None
    at = state.taint_receipts[number]
    if at is None:
        at = state.clock if taint.claimed is None else min(taint.claimed, state.clock)
        if at == state.clock:
            state = state._replace(clock=state.clock + 1)
        state = state._replace(taint_receipts=_set(state.taint_receipts, number, at))
    stone = _covering(at, own_clock=own_clock, skew=scenario.skew)
    listed = state.snapshot if rules.taint_lists_first else frozenset()
    seen = state.snapshot if scenario.wildcard_race and taint.tenant_id is None else _existing(state)
    for key in scenario.covers[number]:
        if taint.tenant_id is None:
            state = state._replace(wildcards=_set(state.wildcards, key, state.wildcards[key].merge(stone)))
            if key not in seen:
                continue
        elif state.rows[key] is None and not rules.taint_covers_unknown:
            continue
        state = _cover(world, state, key, stone)
    if rules.publish_after_tombstone:
        state = _tell(world, state, Told("invalidated", taint=number, tombstone=stone))
    if listed:
        by_key = {state.generations[one - 1].key for one in listed}
        for key in by_key:
            of_key = frozenset(one for one in listed if state.generations[one - 1].key == key)
            state = state._replace(deletes=state.deletes | {(key, of_key)}, doomed=state.doomed | of_key)
    return state._replace(snapshot=frozenset())


def _cover(world: World, state: State, key: int, stone: Stone) -> State:
    row = state.rows[key] or Row()
    # A flag has no time: whatever is there falls.
    bound = Stone(2**62, 2**62, 2**62) if world.rules.taint_is_flag else stone
    raised = row._replace(tombstone=row.tombstone.merge(bound))
    if row.live and stone.covers(row.version, own_clock=row.own_clock):
        if row.version > stone.at:
            state = _hold(world, state, Held(key, row.version, row.content))
        if world.rules.taint_clears_live:
            raised = raised._replace(live=NOBODY, content="")
    state = state._replace(rows=_set(state.rows, key, raised))
    if not world.rules.taint_deletes_pending:
        return state
    fallen = {
        one
        for one in state.pending
        if state.generations[one - 1].key == key
        and stone.covers(state.generations[one - 1].ord, own_clock=state.generations[one - 1].own_clock)
    }
    return state._replace(pending=state.pending - fallen) if fallen else state


def _to(state: State, number: int, status: str) -> State:
    return state._replace(taints=_set(state.taints, number, status))


# ------------------------------------------------------------------------------------------------------ outbox, relay


def _tell(world: World, state: State, event: Told) -> State:
    """Into the outbox, once for each event id.

    Unless the scenario looks closer, what nothing depends on is published at once, and the rest in any order.
    """
    if event in state.sent or event in state.unsent:
        return state
    if world.scenario.fine_relay:
        return state._replace(unsent=(*state.unsent, event))
    if event.kind == "invalidated":
        return state._replace(unsent=tuple(sorted((*state.unsent, event))))
    return state._replace(sent=state.sent | {event}, published=state.published | {event})


def _hold(world: World, state: State, held: Held) -> State:
    if not any(held[:3] == one[:3] for one in state.quarantine):
        state = state._replace(quarantine=state.quarantine | {held})
    return _tell(world, state, Told("quarantined", held.key, held.ord, held.content))


def _relay_moves(world: World, state: State) -> Moves:
    """Claim, publish one event after the other, mark them as sent; in one step, unless the scenario looks closer.

    In one step loses nothing: what is between publishing and marking differs only in what may be published once more.
    """
    relay = state.relay
    ready = state.unsent
    if world.rules.publish_after_delete:
        ready = tuple(one for one in ready if not _has_points(world, state, one))
    if world.scenario.fine_relay:
        if relay.waiting:
            yield Step("publish"), _publish(state, relay)
        elif relay.confirmed:
            yield Step("mark sent"), _marked(state, frozenset(relay.confirmed))
        elif ready:
            yield Step("publish"), _publish(state, Relay(waiting=ready))
        if state.faults and relay != Relay():
            yield Step("relay crashes", fault=True), state._replace(relay=Relay(), faults=state.faults - 1)
    elif ready:
        published = state._replace(published=state.published.union(ready))
        yield Step("relay"), _marked(published, frozenset(ready))
        if state.faults and not state.published.issuperset(ready):
            yield Step("relay, then crash", fault=True), published._replace(faults=state.faults - 1)


def _marked(state: State, sent: frozenset[Told]) -> State:
    left = tuple(one for one in state.unsent if one not in sent)
    return state._replace(relay=Relay(), sent=state.sent | sent, unsent=left)


def _publish(state: State, relay: Relay) -> State:
    first, *rest = relay.waiting
    return state._replace(relay=Relay(tuple(rest), (*relay.confirmed, first)), published=state.published | {first})


def _has_points(world: World, state: State, event: Told) -> bool:
    """Whether the index still has points that a taint covers (what the relay waits for in a variant)."""
    if event.kind != "invalidated":
        return False
    return any(_says_gone(world, state, event, point) for point in state.points)


def is_covered(world: World, event: Told, key: int, version: int, *, own_clock: bool) -> bool:
    """Whether an `embedding.invalidated` says that this version of the artifact is gone."""
    return key in world.scenario.covers[event.taint] and event.tombstone.covers(version, own_clock=own_clock)


def _says_gone(world: World, state: State, event: Told, point: Point) -> bool:
    of = state.generations[point.generation - 1]
    row = state.rows[of.key]
    # The same content may have been approved again since: then it is newer than its generation.
    is_live = row is not None and row.live == point.generation
    version, own_clock = (row.version, row.own_clock) if row and is_live else (of.ord, of.own_clock)
    return is_covered(world, event, of.key, version, own_clock=own_clock)


# -------------------------------------------------------------------------------------------------------------- sweep


def _sweeper_moves(world: World, state: State) -> Moves:
    """Read what the index has, read what to keep, send a delete for the difference, which may be applied much later.

    All in one step, unless the scenario looks closer. That loses nothing as long as I6 holds, which is checked here as
    there: what is dead stays dead, so a delete that comes late does what a later sweep does.
    """
    rules, sweeper = world.rules, state.sweeper
    if sweeper.phase == "removing":
        request = (sweeper.key, sweeper.generations)
        gone = _apply_delete(state, request)._replace(sweeper=Sweeper())
        yield Step("gone", what=sweeper.key), gone._replace(texts=state.texts - _forgettable(state, sweeper.key))
        if state.faults:
            left = state._replace(sweeper=Sweeper(), faults=state.faults - 1)
            yield Step("sweeper crashes", what=sweeper.key, fault=True), left
    elif sweeper.phase == "listed":
        yield (
            Step("keep", what=sweeper.key),
            _delete(world, state, sweeper.key, sweeper.generations - _keep(state, sweeper.key)),
        )
    elif sweeper.phase == "kept":
        yield (
            Step("list", what=sweeper.key),
            _delete(world, state, sweeper.key, _have(state, sweeper.key) - sweeper.generations),
        )
    elif not rules.keep_read_last:
        for key in range(len(state.rows)):
            yield Step("keep", what=key), state._replace(sweeper=Sweeper("kept", key, _keep(state, key)))
    else:
        for key in {state.generations[point.generation - 1].key for point in state.points}:
            have = _have(state, key)
            if world.scenario.fine_sweep:
                yield Step("list", what=key), state._replace(sweeper=Sweeper("listed", key, have))
            elif dead := have - _keep(state, key):
                left = _apply_delete(state, (key, dead))._replace(doomed=state.doomed | dead)
                yield Step("sweep", what=key), left._replace(texts=state.texts - _forgettable(state, key))


def _have(state: State, key: int) -> frozenset[int]:
    return frozenset(point.generation for point in state.points if state.generations[point.generation - 1].key == key)


def _keep(state: State, key: int) -> frozenset[int]:
    row = state.rows[key]
    pending = (one for one in state.pending if state.generations[one - 1].key == key)
    return frozenset([*pending, row.live] if row and row.live else pending)


def _forgettable(state: State, key: int) -> frozenset[int]:
    keep = _keep(state, key)
    return frozenset(
        number
        for number, generation in enumerate(state.generations, start=1)
        if generation.key == key and number not in keep
    )


def _delete(world: World, state: State, key: int, dead: frozenset[int]) -> State:
    if not dead:
        return state._replace(sweeper=Sweeper())
    if not world.rules.delete_names_generations:
        dead = frozenset()  # a request that names no generation means them all
    return state._replace(
        sweeper=Sweeper("removing", key, dead), deletes=state.deletes | {(key, dead)}, doomed=state.doomed | dead
    )


# ------------------------------------------------------------------------------------------------------------- reader


def _reader_moves(world: World, state: State) -> Moves:
    """Q1 and the last look Q3. Q2 looks the same way in between: leaving it out can only show more."""
    reader = state.reader
    if world.rules.guard == "cache":
        live = frozenset(row.live for row in state.rows if row and row.live)
        if live != state.cache:
            yield Step("refresh the copy"), state._replace(cache=live)
    if reader.phase == "none":
        gone = frozenset(one for one in state.published if one.kind == "invalidated")
        # Only a query that starts after something was confirmed as gone, and meets points of it, can break the promise.
        risky = frozenset(point for point in state.points if any(_says_gone(world, state, one, point) for one in gone))
        if risky:
            yield Step("Q1"), state._replace(reader=Reader("searched", gone, risky))
    elif reader.phase == "searched":
        found = _guarded(world, state)
        stale = any(_says_gone(world, state, event, point) for point in found for event in reader.told)
        yield Step("Q3"), state._replace(reader=Reader("done", stale=stale))


def _guarded(world: World, state: State) -> frozenset[Point]:
    rules = world.rules
    if rules.guard == "none":
        return state.reader.points
    if rules.guard == "cache":
        return frozenset(point for point in state.reader.points if point.generation in state.cache)
    visible = {shown(world, state, key) for key in range(len(state.rows))}
    if rules.point_names_generation == "nowhere":
        # All that a point tells is its artifact.
        keys = {state.generations[one - 1].key for one in visible if one}
        return frozenset(p for p in state.reader.points if state.generations[p.generation - 1].key in keys)
    return frozenset(point for point in state.reader.points if point.generation in visible)


def shown(world: World, state: State, key: int) -> int:
    """The generation that the guard lets through for this artifact now, or 0."""
    row = state.rows[key]
    if row is None or not row.live:
        return NOBODY
    if world.rules.guard_sees_wildcards and state.wildcards[key].covers(row.version, own_clock=row.own_clock):
        return NOBODY
    return row.live


# ------------------------------------------------------------------------------------------------------------- pieces


def _with(state: State, who: int, writer: Writer) -> State:
    first, second = state.writers
    return state._replace(writers=(first, writer) if who else (writer, second))


def _set(values: tuple[_T, ...], position: int, value: _T) -> tuple[_T, ...]:
    return (*values[:position], value, *values[position + 1 :])
