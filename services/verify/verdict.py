"""What was observed of canaries, and what that says of each replica. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

LOOKS_AFTER = 10
"""A replica has shown nothing before it has answered so many looks that began after the acknowledgement."""


@dataclass(frozen=True, slots=True)
class Look:
    """One query. Times are seconds of one monotonic clock.

    Attributes:
        seen: the canaries in the answer; None: there was no answer.
    """

    replica: str
    started_s: float
    ended_s: float
    seen: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class Round:
    """Canaries that were written and withdrawn once, and all looks at them.

    Attributes:
        sent_s: when each canary was sent to be indexed.
        tainted_s: when the taint was sent.
        acknowledged_s: when it was answered: a look that starts from here on must see none.
    """

    sent_s: Mapping[str, float]
    tainted_s: float
    acknowledged_s: float
    looks: Sequence[Look]


@dataclass(frozen=True, slots=True)
class ReplicaFigures:
    """One replica, over one round or several.

    Attributes:
        looks_after: answered looks that began after an acknowledgement.
        stale_hits: canaries in their answers. One is too many.
        unseen: canaries that it never showed before they were withdrawn.
        unproven: rounds in which it answered fewer than `LOOKS_AFTER` of them.
        searchable_s: for each canary, from its sending to the end of the first answer that showed it.
        invisible_s: for each canary, from the sending of the taint to the start of the first look, after the last that
            saw it, that did not: no later than this was it gone. The pause between two looks is its grain.
    """

    replica: str
    looks: int = 0
    unanswered: int = 0
    looks_after: int = 0
    stale_hits: int = 0
    unseen: int = 0
    unproven: int = 0
    searchable_s: tuple[float, ...] = field(default=(), repr=False)
    invisible_s: tuple[float, ...] = field(default=(), repr=False)

    @property
    def is_well(self) -> bool:
        """Whether it kept the promise and was seen to."""
        return not (self.stale_hits or self.unseen or self.unproven)

    def __add__(self, other: ReplicaFigures) -> ReplicaFigures:
        return ReplicaFigures(
            self.replica,
            self.looks + other.looks,
            self.unanswered + other.unanswered,
            self.looks_after + other.looks_after,
            self.stale_hits + other.stale_hits,
            self.unseen + other.unseen,
            self.unproven + other.unproven,
            self.searchable_s + other.searchable_s,
            self.invisible_s + other.invisible_s,
        )


def judge(done: Round, *, replica: str) -> ReplicaFigures:
    """What a round says of one replica."""
    looks = sorted((look for look in done.looks if look.replica == replica), key=lambda look: look.started_s)
    answered = [look for look in looks if look.seen is not None]
    after = [look for look in answered if look.started_s >= done.acknowledged_s]
    first_shown = {name: _first_shown(name, answered) for name in done.sent_s}
    shown = {name: at_s for name, at_s in first_shown.items() if at_s is not None}
    return ReplicaFigures(
        replica,
        looks=len(looks),
        unanswered=len(looks) - len(answered),
        looks_after=len(after),
        stale_hits=sum(len(_seen(look) & {*done.sent_s}) for look in after),
        unseen=len(done.sent_s) - len(shown),
        unproven=int(len(after) < LOOKS_AFTER),
        searchable_s=tuple(shown[name] - done.sent_s[name] for name in shown),
        invisible_s=tuple(_gone_by(name, answered) - done.tainted_s for name in shown),
    )


def _seen(look: Look) -> frozenset[str]:
    return look.seen or frozenset()


def _first_shown(name: str, looks: Iterable[Look]) -> float | None:
    return min((look.ended_s for look in looks if name in _seen(look)), default=None)


def _gone_by(name: str, looks: Sequence[Look]) -> float:
    """Start of the first look after the last one that saw it; of that one, if there is none after it."""
    last = max(look.started_s for look in looks if name in _seen(look))
    return min((look.started_s for look in looks if look.started_s > last), default=last)


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least `share` of them do not exceed (nearest rank); None of nothing."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else None
