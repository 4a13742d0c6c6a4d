"""How much of what: the long version, and a fraction of it with every kind of fault at least once."""

from __future__ import annotations

from tests.faults.chaos.plan import FaultKind, Size

LONG = Size(
    events=20_000,
    faults={
        FaultKind.KILL_WRITER: 60,
        FaultKind.KILL_REPLICA: 40,
        FaultKind.PAUSE_WRITER: 20,
        FaultKind.PAUSE_REPLICA: 10,
        FaultKind.KILL_BROKER: 10,
        FaultKind.CLOSE_CONNECTIONS: 20,
        FaultKind.RESTART_POSTGRES: 5,
        FaultKind.KILL_ENGINE: 10,
    },
)
"""100 kills of processes, 30 pauses, and the servers' faults. More than 1,000 taints come before their validated."""


def scaled(events: int, *, all_faults: bool = False) -> Size:
    """The long version's mixture for fewer events. Faults shrink less than events do, or not at all."""
    share = 1.0 if all_faults else min(1.0, events / LONG.events) ** 0.75
    return Size(events, {kind: max(1, round(count * share)) for kind, count in LONG.faults.items()})


BOUNDED = scaled(600)
