"""What looks at canaries say of a replica."""

from __future__ import annotations

import pytest

from services.verify.verdict import LOOKS_AFTER, Look, ReplicaFigures, Round, judge, percentile

BOTH = frozenset({"a", "b"})
NONE: frozenset[str] = frozenset()


def round_of(*looks: Look) -> Round:
    """Canaries sent at 0 s, their taint sent at 10 s and acknowledged at 11 s."""
    return Round({"a": 0.0, "b": 0.0}, tainted_s=10.0, acknowledged_s=11.0, looks=looks)


def look(started_s: float, seen: frozenset[str] | None, *, took_s: float = 0.1, replica: str = "one") -> Look:
    return Look(replica, started_s, started_s + took_s, seen)


def judged(*looks: Look) -> ReplicaFigures:
    return judge(round_of(*looks), replica="one")


ENOUGH = tuple(look(12.0 + number, NONE) for number in range(LOOKS_AFTER))


def test_canaries_that_were_found_and_are_gone_are_well() -> None:
    figures = judged(look(1.0, NONE), look(2.0, BOTH), look(10.5, NONE), *ENOUGH)
    assert figures.is_well
    assert figures.searchable_s == (2.1, 2.1)
    assert figures.invisible_s == (0.5, 0.5)
    assert figures.looks_after == LOOKS_AFTER


def test_an_answer_to_a_look_that_began_after_the_acknowledgement_may_show_none() -> None:
    figures = judged(look(2.0, BOTH), look(11.0, BOTH), look(11.5, frozenset({"a"})), *ENOUGH)
    assert figures.stale_hits == 3
    assert not figures.is_well


def test_a_look_that_began_before_the_acknowledgement_may_still_show_them() -> None:
    figures = judged(look(10.99, BOTH, took_s=5.0), *ENOUGH)
    assert figures.stale_hits == 0
    assert figures.is_well


def test_a_canary_that_was_never_shown_is_not_well() -> None:
    figures = judged(look(2.0, frozenset({"a"})), *ENOUGH)
    assert (figures.unseen, figures.is_well) == (1, False)
    assert len(figures.searchable_s) == len(figures.invisible_s) == 1


def test_a_replica_that_does_not_answer_afterwards_has_proven_nothing() -> None:
    silent = tuple(look(each.started_s, None) for each in ENOUGH)
    figures = judged(look(2.0, BOTH), *silent)
    assert (figures.unproven, figures.unanswered, figures.is_well) == (1, LOOKS_AFTER, False)


def test_each_replica_is_judged_by_its_own_looks() -> None:
    done = round_of(look(2.0, BOTH), *ENOUGH, look(12.0, BOTH, replica="two"))
    assert judge(done, replica="one").stale_hits == 0
    assert judge(done, replica="two").stale_hits == 2


def test_a_canary_that_comes_back_was_not_gone() -> None:
    figures = judged(look(2.0, BOTH), look(10.2, NONE), look(10.6, BOTH), *ENOUGH)
    assert figures.invisible_s == (2.0, 2.0)


def test_rounds_add_up() -> None:
    well, stale = judged(look(2.0, BOTH), *ENOUGH), judged(look(2.0, BOTH), look(11.5, BOTH), *ENOUGH)
    both = well + stale
    assert (both.stale_hits, both.looks_after) == (2, 2 * LOOKS_AFTER + 1)
    assert len(both.invisible_s) == 4


@pytest.mark.parametrize(("share", "value"), [(0.5, 2.0), (0.99, 4.0), (1.0, 4.0), (0.25, 1.0)])
def test_a_percentile_is_a_value_that_was_measured(share: float, value: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], share) == value


def test_of_nothing_there_is_no_percentile() -> None:
    assert percentile([], 0.99) is None
