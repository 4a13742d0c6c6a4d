"""How a delivery ends: a pure decision that the consumer's loop acts on."""

from __future__ import annotations

from dataclasses import dataclass

from dats_common.errors import DatsError, Fenced, Refused, StorageFailed

# Short enough for a hiccup, long enough for a restart; the broker keeps one waiting queue for each step.
RETRY_LADDER_S = (1.0, 5.0, 30.0)
OUTAGE_PAUSE_S = 2.0


@dataclass(frozen=True, slots=True)
class Retry:
    """Again later, counted."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Again, not counted, after the consumer has paused."""

    pause_s: float


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Never again by itself; an operator reads the reason."""

    reason: str


Settlement = Retry | GiveBack | DeadLetter


def settle(error: BaseException, *, attempt: int, retry_attempts: int | None, outage: bool) -> Settlement:
    """What to do with a delivery whose handling raised `error`.

    Args:
        attempt: 1 for the first try.
        retry_attempts: tries beyond the first before it is dead-lettered. None never gives up and never waits for long:
            what is urgent.
        outage: something every message needs is away; then no message is to blame and none may be given up.
    """
    if isinstance(error, Refused):
        return DeadLetter(str(error))
    if isinstance(error, Fenced | StorageFailed) or outage:
        return GiveBack(OUTAGE_PAUSE_S)
    if retry_attempts is None:
        return Retry(RETRY_LADDER_S[0])
    if attempt <= retry_attempts:
        return Retry(RETRY_LADDER_S[min(attempt, len(RETRY_LADDER_S)) - 1])
    return DeadLetter(f"gave up after {attempt} attempts: {describe(error)}"[:500])


def describe(error: BaseException) -> str:
    """What may be said of an error in headers, events and logs: a foreign one's message may quote content."""
    name = type(error).__name__
    return f"{name}: {error}" if isinstance(error, DatsError) else name
