"""The order of an artifact's history, as pure rules: what a validated event or a taint may change.

Source: docs/architecture.md, "The promise"; the steps V1, V4 and T1 call these functions inside their transactions.
An ORD is microseconds since 1970 UTC on one axis for both kinds of event. live <=> version > bound of its tombstone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dats_common.domain.model import NEVER, EventTime

MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Tombstone:
    """How far taints cover an artifact. `merge` takes the maximum, so any order and any copies give the same value.

    Attributes:
        at: the latest time a taint was sent.
        through: up to where versions from a foreign clock are covered: sent + skew.
        through_own: the same for versions stamped by the ledger's clock; a taint stamped by it too adds no skew.
    """

    at: int = NEVER
    through: int = NEVER
    through_own: int = NEVER

    @property
    def stands(self) -> bool:
        """Whether any taint ever covered the artifact."""
        return self.through > NEVER

    def bound(self, *, own_clock: bool) -> int:
        """The last ORD that is covered."""
        return self.through_own if own_clock else self.through

    def merge(self, other: Tombstone) -> Tombstone:
        """Both taints hold."""
        return Tombstone(
            at=max(self.at, other.at),
            through=max(self.through, other.through),
            through_own=max(self.through_own, other.through_own),
        )


def tombstone(sent: int, *, own_clock: bool, skew_s: float) -> Tombstone:
    """A taint sent at ORD `sent` covers everything up to `sent + skew`: clocks lie, and over-invalidating is safe."""
    through = sent + round(skew_s * MICROSECONDS)
    return Tombstone(at=sent, through=through, through_own=sent if own_clock else through)


@dataclass(frozen=True, slots=True)
class Place:
    """An event's resolved place in its artifact's history.

    Attributes:
        ord: microseconds since 1970 UTC, never ahead of the ledger's clock at first receipt.
        own_clock: it was read off the ledger's clock.
        bare: the producer gave no time.
        clamped: the producer's time was ahead of the ledger's clock.
    """

    ord: int
    own_clock: bool
    bare: bool = False
    clamped: bool = False


def place(time: EventTime, *, now: int, first_receipt: int | None) -> Place:
    """Resolve a claimed time against the ledger's clock `now`.

    A bare or clamped event keeps the place of its first receipt: a copy of it that arrives later, also one that arrives
    once the clock has passed the claim, must not count as newer than a taint that came in between.

    Args:
        first_receipt: where a copy with the same claim was placed before, if one was.
    """
    if time.claimed is None:
        return Place(now if first_receipt is None else first_receipt, own_clock=True, bare=True)
    at = min(time.claimed, now) if first_receipt is None else first_receipt
    return Place(at, own_clock=time.own_clock, clamped=at < time.claimed and not time.own_clock)


@dataclass(frozen=True, slots=True)
class ArtifactState:
    """The row that decides: what is live, and how far taints reach."""

    tombstone: Tombstone = Tombstone()
    version: int = NEVER
    live_generation: int | None = None
    content_hash: str | None = None

    @property
    def is_live(self) -> bool:
        """Whether a reader sees this artifact."""
        return self.live_generation is not None


class Verdict(StrEnum):
    """What V1 makes of a validated event."""

    EMBED = "embed"
    UNCHANGED = "unchanged"  # same content under a newer time: the version moves, nothing is written
    DUPLICATE = "duplicate"
    SUPERSEDED = "superseded"
    SUPPRESSED = "suppressed"  # tainted at or after this version
    QUARANTINED = "quarantined"  # cannot be ordered safely: stored, not visible, reported


class QuarantineReason(StrEnum):
    """Why a validated event is kept out of sight until an operator or a later validated event readmits it."""

    WITHIN_SKEW = "its time lies within the clock skew of a taint"
    BARE_AFTER_TAINT = "it carries no time and the artifact was tainted: late or new cannot be told"
    EQUAL_TIME = "another content was validated at the very same time"


def admit(
    state: ArtifactState, at: Place, *, content_hash: str, seen_before: bool
) -> tuple[Verdict, QuarantineReason | None]:
    """V1: what to do with a validated event placed at `at`.

    Args:
        seen_before: this very content was received earlier and could be placed then; a bare event stands at that
            first receipt, so it can be ordered against taints like any other.
    """
    if at.bare and state.tombstone.stands and not seen_before:
        return Verdict.QUARANTINED, QuarantineReason.BARE_AFTER_TAINT
    if at.ord <= state.tombstone.bound(own_clock=at.own_clock):
        if at.ord <= state.tombstone.at:
            return Verdict.SUPPRESSED, None
        if state.is_live and at.ord < state.version:
            return Verdict.SUPERSEDED, None  # nothing to readmit: its successor is live
        return Verdict.QUARANTINED, QuarantineReason.WITHIN_SKEW
    if at.ord < state.version:
        return Verdict.SUPERSEDED, None  # also when its successor has fallen: versions never decrease
    if not state.is_live:
        return Verdict.EMBED, None
    if state.content_hash == content_hash:
        return (Verdict.DUPLICATE if at.ord == state.version else Verdict.UNCHANGED), None
    if at.ord == state.version:
        return Verdict.QUARANTINED, QuarantineReason.EQUAL_TIME
    return Verdict.EMBED, None


class FlipVerdict(StrEnum):
    """What V4 makes of a generation whose points are in the index."""

    LIVE = "live"
    GARBAGE = "garbage"  # a taint or a newer version came first; acknowledge
    QUARANTINED = "quarantined"
    RECLAIMED = "reclaimed"  # the pending row was taken away: start again at V1, never acknowledge


def flip(
    state: ArtifactState, at: Place, *, content_hash: str, pending: bool
) -> tuple[FlipVerdict, QuarantineReason | None]:
    """V4: whether the generation written for `at` becomes the visible one. Judged under the row's lock."""
    if at.ord <= state.tombstone.bound(own_clock=at.own_clock):
        if at.ord <= state.tombstone.at or (state.is_live and at.ord < state.version):
            return FlipVerdict.GARBAGE, None
        return FlipVerdict.QUARANTINED, QuarantineReason.WITHIN_SKEW
    if state.is_live and state.version == at.ord and state.content_hash != content_hash:
        return FlipVerdict.QUARANTINED, QuarantineReason.EQUAL_TIME
    if state.version > at.ord or (state.is_live and state.version == at.ord):
        return FlipVerdict.GARBAGE, None
    return (FlipVerdict.LIVE if pending else FlipVerdict.RECLAIMED), None


class Readmission(StrEnum):
    """Whether an operator may show a quarantined version again, as of now."""

    GRANTED = "granted"
    TAINTED = "a taint that was sent after it covers it: have the content approved again"
    TOO_EARLY = "a taint from another clock still covers the present: try again once its skew is over"


def readmit(state: ArtifactState, *, version: int, now: int) -> Readmission:
    """An operator settles what could not be ordered; a taint that was surely later is not his to overrule.

    So a taint that comes between his look at the list and his decision wins: it was sent after the version.
    """
    if version <= state.tombstone.at:
        return Readmission.TAINTED
    return Readmission.GRANTED if now > state.tombstone.bound(own_clock=True) else Readmission.TOO_EARLY


class Untaint(StrEnum):
    """Whether an operator may show again what a taint took away, by naming the taint that was wrong."""

    GRANTED = "granted"
    NOT_TAINTED = "nothing is withdrawn: it is live, or no taint ever covered it"
    ANOTHER_TAINT = "the latest taint is not the one that was named: look again"
    OTHER_TAINTS = "not as many taints took it away as were agreed to: look again, each of them would be taken back"
    NEWER = "a version of it is being written, or waits in quarantine: see to that one"
    TOO_EARLY = "a taint from another clock still covers the present: try again once its skew is over"


def untaint(
    state: ArtifactState, *, named: int, taints: int, agreed: int, newer: bool, now: int
) -> tuple[Untaint, int]:
    """Whether the kept source may come back, and at which place.

    The place is right behind what the taint covers, and not the present: whatever was approved or tainted after that
    and is still on its way is newer, and wins. The same word twice is the same place, so a repeat is a duplicate.

    Args:
        named: when the taint that is taken back was sent. A later one, which the operator did not see, stands.
        taints: how many took it away. All of them lose their hold on it, so one that was sent before `named` and came
            after the operator looked must not go unseen.
        agreed: how many of them the operator knows of.
        newer: a version no older than the kept one is known, and not shown yet.
    """
    at = state.tombstone.bound(own_clock=True) + 1
    if state.is_live or not state.tombstone.stands:
        return Untaint.NOT_TAINTED, at
    if named != state.tombstone.at:
        return Untaint.ANOTHER_TAINT, at
    if taints != agreed:
        return Untaint.OTHER_TAINTS, at
    if newer:
        return Untaint.NEWER, at
    return (Untaint.GRANTED if at <= now else Untaint.TOO_EARLY), at
