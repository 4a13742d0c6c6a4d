"""What must be true of an artifact, from the events that were sent of it and nothing else.

Written again from the promise, not with the service's own rules: what is wrong there must not be right here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

NOW = math.inf
"""The place of what carries no time: the present, after every time that a producer gives."""

MOST_UNRESOLVED = 6


class Fate(StrEnum):
    """What became of a version."""

    LIVE = "live"
    SUPERSEDED = "superseded"
    TAINTED = "tainted"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True)
class Version:
    """A version as it was sent; `at`: the producer's time, or `NOW`."""

    number: int
    at: float


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint as it was sent; `at`: the producer's time, or `NOW` for calls and for messages without a time."""

    at: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """The fate of each version. A version that came without a time is one of an artifact with no other."""

    fates: dict[int, Fate]

    @property
    def live(self) -> int | None:
        """Number of the version that every reader must see."""
        return next((number for number, fate in self.fates.items() if fate is Fate.LIVE), None)

    @property
    def held(self) -> set[int]:
        """Versions that must lie in the quarantine."""
        return {number for number, fate in self.fates.items() if fate is Fate.QUARANTINED}


def outcome(versions: Iterable[Version], taints: Sequence[Taint], *, skew: float) -> Outcome:
    """What the order of events cannot change."""
    ordered = sorted(versions, key=lambda version: version.at)
    sent = max((taint.at for taint in taints), default=-math.inf)
    fates = {version.number: _fate(version, sent, skew) for version in ordered}
    for version in ordered[:-1]:
        if fates[version.number] is Fate.LIVE:
            fates[version.number] = Fate.SUPERSEDED
    newest = fates.get(ordered[-1].number) if ordered else None
    if newest is Fate.LIVE:
        # Whether an older one was held first and then resolved, or came too late, depends on the order: both are gone.
        fates |= {number: Fate.SUPERSEDED for number, fate in fates.items() if fate is Fate.QUARANTINED}
    return Outcome(fates)


def _fate(version: Version, sent: float, skew: float) -> Fate:
    if version.at <= sent:
        return Fate.TAINTED
    return Fate.QUARANTINED if version.at <= sent + skew else Fate.LIVE


def outcomes(
    versions: Sequence[Version],
    taints: Sequence[Taint],
    *,
    unresolved: Sequence[Version | Taint],
    skew: float,
) -> Iterator[Outcome]:
    """One for each way in which the sends that nobody confirmed may have gone."""
    doubtful = unresolved[:MOST_UNRESOLVED]
    for arrived in itertools.product((False, True), repeat=len(doubtful)):
        came = [item for item, did in zip(doubtful, arrived, strict=True) if did]
        yield outcome(
            [*versions, *(item for item in came if isinstance(item, Version))],
            [*taints, *(item for item in came if isinstance(item, Taint))],
            skew=skew,
        )
