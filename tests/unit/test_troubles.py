from __future__ import annotations

from dataclasses import replace

import pytest
from drills.runbook import headings

from dats_common.domain.troubles import WHEN_AWAY, Standing, troubles

WELL = Standing(
    live_chunks=100,
    points=120,  # a sweep is always a little behind
    unsent_events=3,
    oldest_unsent_s=2.0,
    quarantined=0,
    dead_letters=0,
    active_writers=("one",),
    free_bytes=50,
    disk_bytes=100,
    clock_offset_s=0.4,
)


def test_a_service_that_is_well_or_of_which_nothing_is_known_has_no_troubles() -> None:
    assert troubles(WELL) == []
    assert troubles(Standing()) == []


TROUBLES = [
    (replace(WELL, dead_letters=2), "dead letters", "2 messages were given up: `dats-rag dlq list`"),
    (replace(WELL, quarantined=1), "quarantine", "`dats-rag quarantine list`"),
    (replace(WELL, oldest_unsent_s=31.0), "outbox", "31 s"),
    (replace(WELL, points=90), "drift", "lacks 10 of 100 live chunks"),
    (replace(WELL, points=5000), "drift", "another ledger"),
    (replace(WELL, active_writers=("one", "two")), "writers", "one and two"),
    (replace(WELL, free_bytes=9), "disk", "left"),
    (replace(WELL, clock_offset_s=6.0), "clock", "6 s ahead of the ledger's"),
    (replace(WELL, clock_offset_s=-6.0), "clock", "6 s behind the ledger's"),
]


@pytest.mark.parametrize(("standing", "what", "says"), TROUBLES, ids=[row[2] for row in TROUBLES])
def test_each_trouble_says_what_to_do_and_where_the_runbook_says_more(standing: Standing, what: str, says: str) -> None:
    [trouble] = troubles(standing)
    assert trouble.what == what
    assert says in trouble.detail
    assert trouble.runbook in headings()


def test_what_is_away_has_a_heading_too() -> None:
    assert set(WHEN_AWAY.values()) <= headings()
