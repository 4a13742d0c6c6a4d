"""The simulated world in Hypothesis' hands: events, faults and time in any order; a failure is shrunk to few steps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from dats_common.domain.model import ArtifactKey
from tests.faults.simulation.faults import POINTS, Fault, Kind, TimedFault, Trouble
from tests.faults.simulation.mutants import MUTANTS, PRODUCTION, Parts
from tests.faults.simulation.run import close, finish
from tests.faults.simulation.scenario import KEYS, SECOND, Event, Scenario, Tainted, Validated
from tests.faults.simulation.series import quiet
from tests.faults.simulation.sqlite import Slots
from tests.faults.simulation.world import REPLICA, WRITERS, World, open_slots

EXAMPLES = settings(
    max_examples=15,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)

_claims = st.sampled_from((-600.0, -60.0, -1.0, 0.0, 30.0))
"""Seconds from the ledger's clock to the producer's time."""

_keys = st.sampled_from(KEYS[:3])
_places = st.sampled_from([(point, kind) for point, kinds in sorted(POINTS.items()) for kind in kinds])
_seconds = st.sampled_from((0.0, 0.01, 0.1, 0.5, 2.0, 12.0))


class Fleet(RuleBasedStateMachine):
    """Two writers and a replica. Every rule is something that the world may do to them."""

    slots: Slots
    parts: Parts = PRODUCTION

    @initialize(seed=st.integers(0, 1000), skew_s=st.sampled_from((0.0, 1.0)), batch_size=st.sampled_from((1, 4)))
    def start(self, seed: int, skew_s: float, batch_size: int) -> None:
        scenario = Scenario(seed, skew_s, batch_size, sweep_interval_s=2.0, events=(), faults=(), troubles=())
        self.world = World(scenario, self.slots, parts=self.parts)
        self.sent: list[Event] = []
        self._run(self.world.open())

    def _run(self, work: object) -> None:
        self.world.loop.run_until_complete(work)  # type: ignore[arg-type]

    def _claimed(self, seconds: float) -> int:
        return self.world.clock() + round(seconds * SECOND)

    def _send(self, event: Event) -> None:
        self.sent.append(event)
        if isinstance(event, Tainted):
            self.world.record.taint_drawn(event)
        self._run(self.world.send_now(event))

    # ------------------------------------------------------------------------------------------------------- events

    @rule(key=_keys, seconds=_claims)
    def validated(self, key: ArtifactKey, seconds: float) -> None:
        number = len(self.sent)
        self._send(Validated(number, (), key, f"report{number}n tide{number}n.", self._claimed(seconds)))

    @rule(key=_keys, seconds=_claims)
    def validated_again(self, key: ArtifactKey, seconds: float) -> None:
        contents = [e.content for e in self.sent if isinstance(e, Validated) and e.key == key and e.claimed is not None]
        if contents:
            self._send(Validated(len(self.sent), (), key, contents[-1], self._claimed(seconds)))

    @rule(key=_keys)
    def validated_without_a_time(self, key: ArtifactKey) -> None:
        number = len(self.sent)
        self._send(Validated(number, (), key, f"report{number}n harbour{number}n.", None))

    @rule(keys=st.lists(_keys, min_size=1, max_size=3, unique=True), seconds=_claims, everywhere=st.booleans())
    def tainted(self, keys: list[ArtifactKey], seconds: float, everywhere: bool) -> None:
        tenant_id = None if everywhere else keys[0].tenant_id
        ids = tuple(sorted({key.artifact_id for key in keys}))
        self._send(Tainted(len(self.sent), (), tenant_id, ids, self._claimed(seconds)))

    @rule(key=_keys)
    def tainted_over_http(self, key: ArtifactKey) -> None:
        self._send(Tainted(len(self.sent), (), key.tenant_id, (key.artifact_id,), None, over_http=True))

    @rule(which=st.integers(0, 30))
    def copied(self, which: int) -> None:
        copies = [event for event in self.sent if not (isinstance(event, Tainted) and event.over_http)]
        if copies:
            self._run(self.world.send_now(copies[which % len(copies)]))

    # ------------------------------------------------------------------------------------------------------- trouble

    @rule(place=_places, visit=st.integers(1, 3), notice_s=_seconds, more_s=_seconds)
    def fault(self, place: tuple[str, Kind], visit: int, notice_s: float, more_s: float) -> None:
        point, kind = place
        self.world.plan(Fault(point, visit, kind, notice_s=notice_s, lasting_s=notice_s + more_s))

    @rule(trouble=st.sampled_from(tuple(Trouble)), process=st.sampled_from((*WRITERS, REPLICA)), seconds=_seconds)
    def trouble(self, trouble: Trouble, process: str, seconds: float) -> None:
        self._run(self.world.trouble(TimedFault(0.0, trouble, process, seconds)))

    @rule(seconds=_seconds)
    def time_passes(self, seconds: float) -> None:
        self._run(asyncio.sleep(seconds))

    # ----------------------------------------------------------------------------------------------------- the promise

    @invariant()
    def nothing_is_wrong(self) -> None:
        if hasattr(self, "world"):
            assert not self.world.record.violations

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            if not self.world.record.violations:
                finish(self.world)
                assert not self.world.record.violations
        finally:
            close(self.world)


@pytest.fixture(scope="module")
def slots() -> Iterator[Slots]:
    with quiet():
        yield open_slots()


@pytest.mark.timeout(900)
def test_no_order_of_events_faults_and_time_breaks_the_promise(slots: Slots) -> None:
    _try(PRODUCTION, slots, EXAMPLES)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutant", ["query guard removed", "sweep not scoped to generations"])
def test_hypothesis_finds_a_step_taken_out(mutant: str, slots: Slots) -> None:
    more = settings(EXAMPLES, max_examples=60, phases=[Phase.generate])
    with pytest.raises(AssertionError, match="violations"):
        _try(MUTANTS[mutant], slots, more)


def _try(parts: Parts, slots: Slots, how: settings) -> None:
    class Tried(Fleet):
        pass

    Tried.slots, Tried.parts = slots, parts
    run_state_machine_as_test(Tried, settings=how)
