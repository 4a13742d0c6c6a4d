from __future__ import annotations

import pytest

from dats_common.domain.settlement import OUTAGE_PAUSE_S, DeadLetter, GiveBack, Retry, Settlement, settle
from dats_common.errors import (
    EncoderUnavailable,
    Fenced,
    Forbidden,
    IndexUnavailable,
    InvalidInput,
    LedgerUnavailable,
    NotFound,
    StorageFailed,
)

TABLE: list[tuple[str, BaseException, int, bool, Settlement]] = [
    # claim, error, attempt, outage, expected (three retries are allowed)
    ("broken input is never tried again", InvalidInput("bad"), 1, False, DeadLetter("bad")),
    ("nor is what the caller may not do", Forbidden("no"), 1, False, DeadLetter("no")),
    ("nor what is not there", NotFound("gone"), 1, False, DeadLetter("gone")),
    ("broken input is to blame even in an outage", InvalidInput("bad"), 1, True, DeadLetter("bad")),
    ("a fenced writer gives back, uncounted", Fenced("epoch 1"), 1, False, GiveBack(OUTAGE_PAUSE_S)),
    ("a fenced writer never gives up", Fenced("epoch 1"), 99, False, GiveBack(OUTAGE_PAUSE_S)),
    ("an outage blames no message", LedgerUnavailable("away"), 1, True, GiveBack(OUTAGE_PAUSE_S)),
    ("an outage never gives up", IndexUnavailable("away"), 99, True, GiveBack(OUTAGE_PAUSE_S)),
    (
        "a full disk blames no message, whatever answers a ping",
        StorageFailed("full"),
        99,
        False,
        GiveBack(OUTAGE_PAUSE_S),
    ),
    ("an unknown error during an outage waits too", RuntimeError("odd"), 99, True, GiveBack(OUTAGE_PAUSE_S)),
    ("the first failure waits a second", EncoderUnavailable("slow"), 1, False, Retry(1.0)),
    ("the second five", EncoderUnavailable("slow"), 2, False, Retry(5.0)),
    ("the third thirty", EncoderUnavailable("slow"), 3, False, Retry(30.0)),
    ("an unknown error is worth a retry", RuntimeError("odd"), 1, False, Retry(1.0)),
    (
        "after the last retry it is a dead letter that says why",
        IndexUnavailable("odd"),
        4,
        False,
        DeadLetter("gave up after 4 attempts: IndexUnavailable: odd"),
    ),
]


@pytest.mark.parametrize(
    ("error", "attempt", "outage", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_settlement(error: BaseException, attempt: int, outage: bool, expected: Settlement) -> None:
    assert settle(error, attempt=attempt, retry_attempts=3, outage=outage) == expected


def test_retries_beyond_the_ladder_keep_its_longest_step() -> None:
    assert settle(RuntimeError(), attempt=7, retry_attempts=9, outage=False) == Retry(30.0)


@pytest.mark.parametrize("attempt", [1, 7, 1000])
def test_what_is_never_given_up_is_tried_again_soon(attempt: int) -> None:
    assert settle(RuntimeError(), attempt=attempt, retry_attempts=None, outage=False) == Retry(1.0)


def test_broken_input_is_given_up_even_where_nothing_else_is() -> None:
    assert settle(InvalidInput("bad"), attempt=1, retry_attempts=None, outage=False) == DeadLetter("bad")


def test_without_retries_the_first_failure_is_a_dead_letter() -> None:
    assert isinstance(settle(RuntimeError("x"), attempt=1, retry_attempts=0, outage=False), DeadLetter)


def test_a_dead_letters_reason_fits_a_header() -> None:
    settled = settle(IndexUnavailable("x" * 10_000), attempt=4, retry_attempts=3, outage=False)
    assert isinstance(settled, DeadLetter)
    assert len(settled.reason) == 500


def test_a_foreign_errors_message_never_reaches_a_reason() -> None:
    decision = settle(ValueError("secret content"), attempt=9, retry_attempts=3, outage=False)
    assert decision == DeadLetter("gave up after 9 attempts: ValueError")
