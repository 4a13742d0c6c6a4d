from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dats_common.domain.model import NEVER, EventTime
from dats_common.domain.taint import (
    ArtifactState,
    FlipVerdict,
    Place,
    QuarantineReason,
    Tombstone,
    Untaint,
    Verdict,
    admit,
    flip,
    place,
    tombstone,
    untaint,
)

S = 1_000_000
SKEW_S = 60
LIVE = ArtifactState(version=100 * S, live_generation=1, content_hash="x")
TAINTED = ArtifactState(tombstone=tombstone(100 * S, own_clock=False, skew_s=SKEW_S))
NEW = ArtifactState()


# ----------------------------------------------------------------------------------------------- the reference fold


@dataclass(frozen=True, slots=True)
class Said:
    """One event as its producer sent it; `claimed_s` None is a bare one."""

    kind: str
    claimed_s: int | None
    content: str = ""
    own_clock: bool = False


@dataclass
class Fold:
    """One artifact's history, the smallest machine that calls the rules in the order of V1, V4 and T1."""

    clock_s: int = 1_000_000
    state: ArtifactState = field(default_factory=ArtifactState)
    visible: str | None = None
    pending: dict[int, tuple[Said, Place]] = field(default_factory=dict)
    receipts: dict[Said, int] = field(default_factory=dict)
    generations: int = 1

    def receive(self, said: Said) -> None:
        """The whole of V1 to V4, or T1."""
        if said.kind == "taint":
            self.taint(said)
        else:
            self.admit(said)
            self.flip_all()

    def taint(self, said: Said) -> None:
        at = self._place(said)
        stone = tombstone(at.ord, own_clock=at.own_clock, skew_s=SKEW_S)
        self.state = replace(self.state, tombstone=self.state.tombstone.merge(stone))
        if self.state.version <= self.state.tombstone.bound(own_clock=self._visible_own_clock):
            self.visible = None
            self.state = replace(self.state, live_generation=None, content_hash=None)
        self.pending = {
            g: item for g, item in self.pending.items() if item[1].ord > stone.bound(own_clock=item[1].own_clock)
        }

    def admit(self, said: Said) -> Verdict:
        seen = said in self.receipts
        at = self._place(said)
        verdict, reason = admit(self.state, at, content_hash=said.content, seen_before=seen)
        if reason is QuarantineReason.BARE_AFTER_TAINT:
            del self.receipts[said]  # it settled nothing
        if verdict is Verdict.EMBED:
            self.generations += 1
            self.pending[self.generations] = (said, at)
        elif verdict is Verdict.UNCHANGED:
            self.state = replace(self.state, version=at.ord)
            self._visible_own_clock = at.own_clock
        return verdict

    def flip_all(self) -> None:
        while self.pending:
            self.flip(next(iter(self.pending)))

    def flip(self, generation: int) -> None:
        said, at = self.pending.pop(generation)
        if flip(self.state, at, content_hash=said.content, pending=True)[0] is FlipVerdict.LIVE:
            self.visible = said.content
            self._visible_own_clock = at.own_clock
            self.state = replace(self.state, version=at.ord, live_generation=generation, content_hash=said.content)

    _visible_own_clock: bool = False

    def _place(self, said: Said) -> Place:
        time = EventTime(None if said.claimed_s is None else said.claimed_s * S, said.own_clock)
        at = place(time, now=self.clock_s * S, first_receipt=self.receipts.get(said))
        self.receipts.setdefault(said, at.ord)
        return at


def newest_beyond_taints(events: list[Said]) -> str | None:
    """The promise in one sentence: the newest validated is visible if and only if no taint reaches it."""
    newest = max(
        (event for event in events if event.kind == "validated"), key=lambda event: event.claimed_s, default=None
    )
    reached = max(
        (
            event.claimed_s + (0 if newest.own_clock and event.own_clock else SKEW_S)
            for event in events
            if event.kind == "taint" and newest
        ),
        default=-1,
    )
    return newest.content if newest and newest.claimed_s > reached else None


def histories(*, validated_own_clock: bool) -> st.SearchStrategy[tuple[list[Said], list[Said]]]:
    """(a set of events, the order in which copies of them arrive)."""
    times = st.lists(st.integers(0, 400), unique=True, max_size=5)
    contents = st.sampled_from("xyz")
    validated = times.flatmap(
        lambda seconds: st.tuples(
            *(contents.map(lambda c, s=s: Said("validated", s, c, validated_own_clock)) for s in seconds)
        )
    )
    taints = st.lists(st.builds(Said, st.just("taint"), st.integers(0, 400), own_clock=st.booleans()), max_size=3)
    return st.tuples(validated, taints).flatmap(
        lambda both: st.tuples(
            st.just([*both[0], *both[1]]),
            st.lists(st.sampled_from([*both[0], *both[1]]), max_size=8).flatmap(
                lambda copies: st.permutations([*both[0], *both[1], *copies])
            )
            if both[0] or both[1]
            else st.just([]),
        )
    )


@pytest.mark.parametrize("own_clock", [False, True], ids=["foreign clock", "own clock"])
def test_any_order_and_any_copies_of_timed_events_give_the_same_visible_state(own_clock: bool) -> None:
    @given(histories(validated_own_clock=own_clock))
    def check(history: tuple[list[Said], list[Said]]) -> None:
        events, arrivals = history
        fold = Fold()
        for said in arrivals:
            fold.receive(said)
        assert fold.visible == newest_beyond_taints(events)

    check()


@given(histories(validated_own_clock=False), st.data())
def test_flips_that_come_late_change_nothing(history: tuple[list[Said], list[Said]], data: st.DataObject) -> None:
    events, arrivals = history
    fold = Fold()
    for said in arrivals:
        if said.kind == "taint":
            fold.taint(said)
        else:
            fold.admit(said)
        while fold.pending and data.draw(st.booleans()):
            fold.flip(data.draw(st.sampled_from(sorted(fold.pending))))
    while fold.pending:
        fold.flip(data.draw(st.sampled_from(sorted(fold.pending))))
    assert fold.visible == newest_beyond_taints(events)


anything = st.one_of(
    st.builds(
        Said,
        st.just("validated"),
        st.none() | st.integers(0, 400),
        st.sampled_from("xy"),
    ),
    st.builds(Said, st.just("taint"), st.none() | st.integers(0, 400)),
)


@given(st.lists(st.tuples(anything, st.integers(0, 90)), max_size=8), st.data())
def test_a_copy_never_changes_what_is_visible_whatever_the_clock(
    arrivals: list[tuple[Said, int]], data: st.DataObject
) -> None:
    # Bare events, and times ahead of a clock that moves on: a copy may find the clock past the claim.
    fold, received = Fold(clock_s=100), []
    for said, waited_s in arrivals:
        if said not in received:
            fold.receive(said)
            received.append(said)
        fold.clock_s += waited_s
        before = fold.visible
        fold.receive(data.draw(st.sampled_from(received)))
        assert fold.visible == before


@given(
    st.lists(
        st.builds(
            Said, st.sampled_from(["validated", "taint"]), st.integers(0, 400), st.sampled_from("xy"), st.booleans()
        ),
        max_size=8,
    )
)
def test_even_with_mixed_clocks_nothing_that_a_taint_reaches_is_visible(arrivals: list[Said]) -> None:
    fold = Fold()
    for said in arrivals:
        fold.receive(said)
        version, own_clock = fold.state.version, fold._visible_own_clock
        if fold.visible is not None:
            assert version > fold.state.tombstone.bound(own_clock=own_clock)
    taints = [said for said in arrivals if said.kind == "taint"]
    assert fold.visible is None or all(fold.state.version > said.claimed_s * S for said in taints)


stones = st.builds(Tombstone, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))


@given(stones, stones, stones)
def test_merged_tombstones_do_not_depend_on_order_or_copies(a: Tombstone, b: Tombstone, c: Tombstone) -> None:
    assert a.merge(b) == b.merge(a)
    assert a.merge(b).merge(c) == a.merge(b.merge(c))
    assert a.merge(a) == a == a.merge(Tombstone())
    assert all(a.merge(b).bound(own_clock=own) >= a.bound(own_clock=own) for own in (True, False))


# -------------------------------------------------------------------------------------------------- tombstones, places


def test_a_taint_covers_the_skew_beyond_its_time() -> None:
    assert tombstone(100 * S, own_clock=False, skew_s=1.5) == Tombstone(100 * S, 101_500_000, 101_500_000)


def test_a_taint_on_the_ledgers_clock_adds_skew_only_for_foreign_versions() -> None:
    stone = tombstone(100 * S, own_clock=True, skew_s=60)
    assert stone.bound(own_clock=True) == 100 * S
    assert stone.bound(own_clock=False) == 160 * S


def test_a_tombstone_stands_once_anything_was_tainted() -> None:
    assert not Tombstone().stands
    assert tombstone(0, own_clock=True, skew_s=0).stands


def test_a_time_behind_the_clock_is_taken_as_it_is() -> None:
    assert place(EventTime(90), now=100, first_receipt=None) == Place(90, own_clock=False)
    assert place(EventTime(90, own_clock=True), now=100, first_receipt=None) == Place(90, own_clock=True)


def test_a_bare_event_stands_where_it_was_first_received() -> None:
    assert place(EventTime(), now=100, first_receipt=None) == Place(100, own_clock=True, bare=True)
    assert place(EventTime(), now=200, first_receipt=100) == Place(100, own_clock=True, bare=True)


def test_a_time_ahead_of_the_clock_is_clamped_and_stays_so() -> None:
    assert place(EventTime(150), now=100, first_receipt=None) == Place(100, own_clock=False, clamped=True)
    assert place(EventTime(150), now=120, first_receipt=100) == Place(100, own_clock=False, clamped=True)
    assert place(EventTime(150), now=200, first_receipt=100) == Place(100, own_clock=False, clamped=True)


def test_the_ledgers_own_time_may_be_ahead_without_being_reported() -> None:
    assert place(EventTime(101, own_clock=True), now=100, first_receipt=None) == Place(100, own_clock=True)


# --------------------------------------------------------------------------------------------------------- V1 and V4

WITHIN, BARE, EQUAL = QuarantineReason.WITHIN_SKEW, QuarantineReason.BARE_AFTER_TAINT, QuarantineReason.EQUAL_TIME
LIVE_BEYOND = replace(TAINTED, version=300 * S, live_generation=1, content_hash="x")


def at_s(seconds: float, *, own_clock: bool = False, bare: bool = False) -> Place:
    return Place(round(seconds * S), own_clock=own_clock, bare=bare)


ADMISSIONS = [
    # claim, state, place, hash, seen before, verdict, reason
    ("a first event is embedded", NEW, at_s(1), "x", False, Verdict.EMBED, None),
    ("newer other content is embedded", LIVE, at_s(101), "y", False, Verdict.EMBED, None),
    ("newer same content moves the version only", LIVE, at_s(101), "x", True, Verdict.UNCHANGED, None),
    ("the same event again is a duplicate", LIVE, at_s(100), "x", True, Verdict.DUPLICATE, None),
    ("older content is superseded", LIVE, at_s(99), "y", False, Verdict.SUPERSEDED, None),
    ("older same content is superseded too", LIVE, at_s(99), "x", True, Verdict.SUPERSEDED, None),
    ("other content at the same time is quarantined", LIVE, at_s(100), "y", False, Verdict.QUARANTINED, EQUAL),
    ("at the taint's time it is suppressed", TAINTED, at_s(100), "x", False, Verdict.SUPPRESSED, None),
    ("before the taint it is suppressed", TAINTED, at_s(1), "x", True, Verdict.SUPPRESSED, None),
    ("just after the taint it is quarantined", TAINTED, at_s(100.1), "x", False, Verdict.QUARANTINED, WITHIN),
    ("at the end of the skew it is quarantined", TAINTED, at_s(160), "x", False, Verdict.QUARANTINED, WITHIN),
    ("beyond the skew it is embedded", TAINTED, at_s(160.1), "x", False, Verdict.EMBED, None),
    ("within the skew but superseded needs nobody", LIVE_BEYOND, at_s(150), "y", False, Verdict.SUPERSEDED, None),
    ("bare after a taint is ambiguous", TAINTED, at_s(900, bare=True), "x", False, Verdict.QUARANTINED, BARE),
    ("also where newer content is live", LIVE_BEYOND, at_s(900, bare=True), "y", False, Verdict.QUARANTINED, BARE),
    ("bare, seen before the taint: suppressed", TAINTED, at_s(90, bare=True), "x", True, Verdict.SUPPRESSED, None),
    ("bare, seen after an older taint: embedded", TAINTED, at_s(170, bare=True), "x", True, Verdict.EMBED, None),
    ("bare and already live is a duplicate", LIVE_BEYOND, at_s(300, bare=True), "x", True, Verdict.DUPLICATE, None),
    ("bare without any taint is embedded", NEW, at_s(5, bare=True), "x", False, Verdict.EMBED, None),
]


@pytest.mark.parametrize(
    ("state", "at", "content_hash", "seen_before", "verdict", "reason"),
    [row[1:] for row in ADMISSIONS],
    ids=[row[0] for row in ADMISSIONS],
)
def test_admission(state, at, content_hash, seen_before, verdict, reason) -> None:
    assert admit(state, at, content_hash=content_hash, seen_before=seen_before) == (verdict, reason)


FLIPS = [
    # claim, state, place, hash, pending, verdict, reason
    ("a first generation goes live", NEW, at_s(1), "x", True, FlipVerdict.LIVE, None),
    ("a newer one replaces the old", LIVE, at_s(101), "y", True, FlipVerdict.LIVE, None),
    ("beyond the skew of a taint it goes live", TAINTED, at_s(160.1), "x", True, FlipVerdict.LIVE, None),
    ("tainted meanwhile it is garbage", TAINTED, at_s(100), "x", True, FlipVerdict.GARBAGE, None),
    ("tainted meanwhile, its pending row gone too", TAINTED, at_s(100), "x", False, FlipVerdict.GARBAGE, None),
    ("within the skew it is quarantined", TAINTED, at_s(160), "x", True, FlipVerdict.QUARANTINED, WITHIN),
    ("within the skew but superseded it is garbage", LIVE_BEYOND, at_s(150), "y", True, FlipVerdict.GARBAGE, None),
    ("an older one is garbage", LIVE, at_s(99), "y", True, FlipVerdict.GARBAGE, None),
    ("one that is live already is garbage", LIVE, at_s(100), "x", True, FlipVerdict.GARBAGE, None),
    ("other content at the live one's time is quarantined", LIVE, at_s(100), "y", True, FlipVerdict.QUARANTINED, EQUAL),
    ("reclaimed it starts again", NEW, at_s(1), "x", False, FlipVerdict.RECLAIMED, None),
    ("reclaimed while an older one is live it starts again", LIVE, at_s(101), "y", False, FlipVerdict.RECLAIMED, None),
]


@pytest.mark.parametrize(
    ("state", "at", "content_hash", "pending", "verdict", "reason"),
    [row[1:] for row in FLIPS],
    ids=[row[0] for row in FLIPS],
)
def test_flip(state, at, content_hash, pending, verdict, reason) -> None:
    assert flip(state, at, content_hash=content_hash, pending=pending) == (verdict, reason)


def test_the_ledgers_own_version_just_after_its_own_taint_needs_no_skew() -> None:
    state = ArtifactState(tombstone=tombstone(100 * S, own_clock=True, skew_s=SKEW_S))
    assert admit(state, at_s(101, own_clock=True), content_hash="x", seen_before=False) == (Verdict.EMBED, None)
    assert flip(state, at_s(101, own_clock=True), content_hash="x", pending=True) == (FlipVerdict.LIVE, None)
    assert admit(state, at_s(101), content_hash="x", seen_before=False) == (Verdict.QUARANTINED, WITHIN)
    assert flip(state, at_s(101), content_hash="x", pending=True) == (FlipVerdict.QUARANTINED, WITHIN)


def test_a_new_artifact_is_neither_live_nor_tainted() -> None:
    assert not NEW.is_live
    assert NEW.version == NEVER
    assert not NEW.tombstone.stands


# ------------------------------------------------------------------------------------------------ taking a taint back


@given(st.integers(0, 400), st.booleans(), st.integers(0, 400), st.integers(0, 600), st.booleans(), st.integers(0, 600))
def test_a_taint_is_taken_back_only_by_name_and_only_behind_all_that_it_covers(
    sent: int, own_clock: bool, named: int, now: int, newer: bool, later: int
) -> None:
    state = ArtifactState(tombstone=tombstone(sent * S, own_clock=own_clock, skew_s=SKEW_S), version=sent * S)
    verdict, at = untaint(state, named=named * S, taints=1, agreed=1, newer=newer, now=now * S)
    if verdict is not Untaint.GRANTED:
        return
    again = Place(at, own_clock=True)
    assert (named, newer) == (sent, False)
    assert at <= now * S
    assert admit(state, again, content_hash="x", seen_before=False) == (Verdict.EMBED, None)
    assert untaint(state, named=named * S, taints=1, agreed=1, newer=False, now=(now + 100) * S)[1] == at  # a copy
    another = tombstone(later * S, own_clock=own_clock, skew_s=SKEW_S)
    if later * S >= at:  # it was on its way: it wins
        both = replace(state, tombstone=state.tombstone.merge(another))
        assert admit(both, again, content_hash="x", seen_before=False)[0] is Verdict.SUPPRESSED
        approved = replace(state, version=later * S + 1, live_generation=1, content_hash="y")
        assert admit(approved, again, content_hash="x", seen_before=False)[0] is Verdict.SUPERSEDED


UNTAINTS = [
    # claim, state, named, newer, now, verdict
    ("what no taint covers is refused", NEW, 0, False, 900, Untaint.NOT_TAINTED),
    ("what is live is refused", LIVE_BEYOND, 100, False, 900, Untaint.NOT_TAINTED),
    ("another taint than the latest is refused", TAINTED, 99, False, 900, Untaint.ANOTHER_TAINT),
    ("a version that waits comes first", TAINTED, 100, True, 900, Untaint.NEWER),
    ("within the skew it is too early", TAINTED, 100, False, 160, Untaint.TOO_EARLY),
    ("behind the skew it is granted", TAINTED, 100, False, 161, Untaint.GRANTED),
]


@pytest.mark.parametrize(
    ("state", "named", "newer", "now", "verdict"), [row[1:] for row in UNTAINTS], ids=[row[0] for row in UNTAINTS]
)
def test_untaint(state: ArtifactState, named: int, newer: bool, now: int, verdict: Untaint) -> None:
    assert untaint(state, named=named * S, taints=1, agreed=1, newer=newer, now=now * S)[0] is verdict


@pytest.mark.parametrize(("taints", "agreed"), [(2, 1), (1, 2), (1, 0)])
def test_a_taint_that_nobody_agreed_to_is_not_taken_back_with_another(taints: int, agreed: int) -> None:
    verdict, _ = untaint(TAINTED, named=100 * S, taints=taints, agreed=agreed, newer=False, now=900 * S)
    assert verdict is Untaint.OTHER_TAINTS
