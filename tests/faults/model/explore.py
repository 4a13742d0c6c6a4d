"""Breadth first over everything that can happen: the first way found to a state is a shortest one."""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass

from .invariants import KINDS, STUCK, Kind, broken_by, broken_in, is_at_rest
from .state import State, Step, World, canonical, first_state
from .steps import moves


@dataclass(frozen=True)
class Violation:
    """An invariant that broke, and a shortest way to it."""

    invariant: str
    kind: Kind
    trace: tuple[Step, ...]


@dataclass(frozen=True)
class Explored:
    """What an exploration found.

    Attributes:
        states: how many different ones were reached.
        steps: how many transitions lead to them.
        rests: how many of them are at rest.
        violation: the first one of the kind that was looked for; the exploration ends there.
        seconds: of CPU time that it took.
    """

    states: int
    steps: int
    rests: int
    violation: Violation | None
    seconds: float


class Exploration:
    """One world's reachable states, in the order of their distance from the first one."""

    def __init__(self, world: World) -> None:
        self.world = world
        first = canonical(first_state(world.scenario))
        self.states: list[State] = [first]
        self.parents: list[tuple[int, Step | None]] = [(-1, None)]
        self._numbers: dict[State, int] = {first: 0}
        self._from, self._to = array("l"), array("l")  # steps that are no faults: what rest is reached by
        self._steps = 0
        self._rests = array("l")

    def run(self, *, kind: Kind | None = None, most_states: int | None = None) -> Explored:
        """Explore until a violation of this kind (of any kind without one), or to the end.

        Raises: OverflowError: more than `most_states` were reached; nothing is proved then.
        """
        started = time.process_time()
        violation = self._search(kind, most_states) or self._stuck(kind)
        return Explored(len(self.states), self._steps, len(self._rests), violation, time.process_time() - started)

    def trace_to(self, number: int) -> tuple[Step, ...]:
        """The steps from the first state to that one."""
        steps = []
        while number > 0:
            number, step = self.parents[number]
            if step is not None:
                steps.append(step)
        return tuple(reversed(steps))

    def _search(self, kind: Kind | None, most_states: int | None) -> Violation | None:
        world, numbers, states = self.world, self._numbers, self.states
        number = 0
        while number < len(states):
            state = states[number]
            for step, raw in moves(world, state):
                after = canonical(raw)
                self._steps += 1
                known = numbers.get(after)
                broken = broken_by(state, after)
                if known is None:
                    known = numbers[after] = len(states)
                    states.append(after)
                    self.parents.append((number, step))
                    broken += broken_in(world, after)
                    if is_at_rest(world, after):
                        self._rests.append(known)
                    if most_states is not None and known >= most_states:
                        raise OverflowError(f"{world.scenario.name}: more than {most_states} states")
                if not step.fault:
                    self._from.append(number)
                    self._to.append(known)
                for name in broken:
                    if kind in (None, KINDS[name]):
                        return Violation(name, KINDS[name], (*self.trace_to(number), step))
            number += 1
        return None

    def _stuck(self, kind: Kind | None) -> Violation | None:
        """A shortest way to a state from which rest cannot be reached without a further fault."""
        if kind not in (None, KINDS[STUCK]):
            return None
        arrivals: list[list[int]] = [[] for _ in self.states]
        for source, target in zip(self._from, self._to, strict=True):
            arrivals[target].append(source)
        good = bytearray(len(self.states))
        front = list(self._rests)
        for number in front:
            good[number] = 1
        while front:
            for source in arrivals[front.pop()]:
                if not good[source]:
                    good[source] = 1
                    front.append(source)
        for number, reaches in enumerate(good):
            if not reaches:
                return Violation(STUCK, KINDS[STUCK], self.trace_to(number))
        return None
