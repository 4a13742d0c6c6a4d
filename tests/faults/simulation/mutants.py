"""The same parts with one line of the algorithm taken out, by putting another port under the production code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.faults.simulation.ports import SimBus, SimIndex, SimLedger


@dataclass(frozen=True, slots=True)
class Parts:
    """What a simulated process puts under the production code."""

    ledger: Callable[..., SimLedger] = SimLedger
    index: Callable[..., SimIndex] = SimIndex
    bus: Callable[..., SimBus] = SimBus


PRODUCTION = Parts()
