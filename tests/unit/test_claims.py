"""What an answer claims sentence by sentence, and what of it is supported."""

from __future__ import annotations

from dats_common.domain.citations import Issued, resolve
from dats_common.domain.claims import judge_claims, only_supported
from dats_common.domain.prompt import INSUFFICIENT

ONE, TWO = (f"550e8400-e29b-41d4-a716-44665544000{n}:0" for n in (1, 2))
TEXTS = {ONE: "Refunds are paid within fourteen days.", TWO: "Invoices are sent on Monday by the finance team."}
ISSUED = Issued.of(TEXTS)


def test_a_claim_knows_where_it_stands_and_what_it_cites() -> None:
    answer = resolve("Refunds are paid within fourteen days [1]. Invoices are sent on Monday [2].", ISSUED)
    first, second = judge_claims(answer, TEXTS)
    assert answer.text[first.start : first.end] == first.text
    assert (first.source_ids, second.source_ids) == ((ONE,), (TWO,))
    assert first.supported
    assert second.supported


def test_a_marker_behind_the_full_stop_belongs_to_the_sentence_before_it() -> None:
    answer = resolve("Refunds are paid within fourteen days. [1] Invoices are sent on Monday. [2]", ISSUED)
    assert [claim.source_ids for claim in judge_claims(answer, TEXTS)] == [(ONE,), (TWO,)]


def test_the_wrong_source_supports_nothing() -> None:
    [claim] = judge_claims(resolve("Refunds are paid within fourteen days [2].", ISSUED), TEXTS)
    assert not claim.supported


def test_what_cites_nothing_is_not_supported_though_it_be_true() -> None:
    [claim] = judge_claims(resolve("Refunds are paid within fourteen days.", ISSUED), TEXTS)
    assert (claim.supported, claim.score, claim.source_ids) == (False, 0.0, ())


def test_a_number_or_a_denial_that_the_source_does_not_have_is_not_supported() -> None:
    answer = resolve("Refunds are paid within 90 days [1]. Refunds are not paid within fourteen days [1].", ISSUED)
    assert [claim.supported for claim in judge_claims(answer, TEXTS)] == [False, False]


def test_saying_that_one_cannot_answer_claims_nothing() -> None:
    assert judge_claims(resolve(INSUFFICIENT, ISSUED), TEXTS) == ()


def test_short_sentences_and_other_scripts_claim_something_too() -> None:
    answer = resolve("It is 42 [1]. No [1]. 这是错的 [1]. But why?", ISSUED)
    claims = judge_claims(answer, TEXTS)
    assert len(claims) == 4
    assert not any(claim.supported for claim in claims)


def test_only_what_is_supported_is_left() -> None:
    answer = resolve("Refunds are paid within fourteen days [1]. Zebras pay double [1]. Owls hoot.", ISSUED)
    left, claims = only_supported(answer, judge_claims(answer, TEXTS), TEXTS, ISSUED)
    assert left.text == f"Refunds are paid within fourteen days [SourceId: {ONE}]."
    assert left.source_ids == (ONE,)
    assert [claim.supported for claim in claims] == [True]
