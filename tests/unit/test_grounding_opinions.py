"""What scorers may do to the rule: sway it a little, take support away, and never give it where a guard says no."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dats_common.domain.citations import Issued, resolve
from dats_common.domain.claims import judge_claims, only_supported
from dats_common.domain.grounding import SIMILARITY_WEIGHT, Grounding, Opinions, Pair, judge, shared_words

SOURCE = "Refunds are paid within fourteen days. Invoices are sent on Monday by the finance team."
SAID = Pair("Refunds are paid within fourteen days.", (SOURCE,))
REFUSED = [
    Pair("Refunds are paid within 90 days.", (SOURCE,)),
    Pair("Refunds are paid by Carter within fourteen days.", (SOURCE,)),
    Pair("Refunds are not paid within fourteen days.", (SOURCE,)),
]
SCORES = st.floats(0, 1)


def test_without_opinions_the_rule_decides_alone() -> None:
    for pair in (SAID, *REFUSED):
        assert Grounding().support(pair, Opinions()) == judge(pair.sentence, pair.sources)


@given(pair=st.sampled_from(REFUSED), similarity=SCORES, verdict=SCORES)
@example(pair=REFUSED[0], similarity=1.0, verdict=1.0)
@example(pair=REFUSED[2], similarity=1.0, verdict=1.0)
def test_no_opinion_supports_what_a_guard_refuses(pair: Pair, similarity: float, verdict: float) -> None:
    found = Grounding().support(pair, Opinions({pair: similarity}, {pair: verdict}))
    assert found.guards
    assert not found.supported


@given(
    similarity=SCORES, verdict=st.none() | SCORES, sentence=st.sampled_from([SAID, *REFUSED, Pair("Owls.", (SOURCE,))])
)
@example(similarity=1.0, verdict=1.0, sentence=Pair("Owls.", (SOURCE,)))
def test_a_verdict_takes_support_away_and_never_gives_it(
    similarity: float, verdict: float | None, sentence: Pair
) -> None:
    similarities = {sentence: similarity}
    before = Grounding().support(sentence, Opinions(similarities))
    after = Grounding().support(sentence, Opinions(similarities, {} if verdict is None else {sentence: verdict}))
    assert after.score == before.score
    assert after.supported == (before.supported and verdict is not None and verdict >= 0.5)


def test_where_a_judge_was_asked_a_missing_verdict_is_a_no() -> None:
    assert Grounding().support(SAID, Opinions(verdicts=None)).supported
    assert not Grounding().support(SAID, Opinions(verdicts={})).supported
    assert not Grounding().support(SAID, Opinions(verdicts={REFUSED[0]: 1.0})).supported, (
        "another's verdict is not its own"
    )


@given(similarity=SCORES)
def test_a_cross_encoder_moves_the_score_by_its_weight(similarity: float) -> None:
    alone = Grounding().support(SAID, Opinions()).score
    swayed = Grounding().support(SAID, Opinions({SAID: similarity})).score
    assert swayed == pytest.approx(alone + SIMILARITY_WEIGHT * (similarity - alone))


def test_shared_words_are_the_score_before_any_guard() -> None:
    assert shared_words(SAID) == judge(SAID.sentence, SAID.sources).score == 1.0
    for pair in REFUSED:
        assert shared_words(pair) > judge(pair.sentence, pair.sources).score
    assert shared_words(Pair("Owls hoot.", (SOURCE,))) == 0.0
    assert shared_words(Pair("Owls hoot.", ())) == 0.0


# ------------------------------------------------------------------------------------------------------------- answers

ONE = "550e8400-e29b-41d4-a716-446655440001:0"
TEXTS = {ONE: SOURCE}
ISSUED = Issued.of(TEXTS)


def test_a_claim_says_what_was_judged() -> None:
    [claim] = judge_claims(resolve("Refunds are paid within fourteen days [1].", ISSUED), TEXTS)
    assert claim.pair == SAID


def test_a_claim_without_a_yes_is_left_out_of_a_strict_answer() -> None:
    answer = resolve("Refunds are paid within fourteen days [1]. Invoices are sent on Monday [1].", ISSUED)
    first, second = judge_claims(answer, TEXTS)
    opinions = Opinions(verdicts={first.pair: 0.0, second.pair: 1.0})
    claims = judge_claims(answer, TEXTS, opinions)
    left, kept = only_supported(answer, claims, TEXTS, ISSUED, opinions)
    assert left.text == f"Invoices are sent on Monday [SourceId: {ONE}]."
    assert [claim.supported for claim in kept] == [True]


def test_what_reads_as_another_sentence_once_its_neighbour_is_gone_needs_a_verdict_of_its_own() -> None:
    texts = {ONE: "Refunds are paid in the U.S. Finance sends invoices on Monday."}
    answer = resolve(
        "Refunds are paid [1] in the U.S. The zebras gallop. Finance sends invoices on Monday [1].", ISSUED
    )
    first, _, last = judge_claims(answer, texts)
    opinions = Opinions(verdicts={first.pair: 1.0, last.pair: 1.0})
    claims = judge_claims(answer, texts, opinions)
    assert [claim.supported for claim in claims] == [True, False, True]
    left, kept = only_supported(answer, claims, texts, ISSUED, opinions)
    assert (left.text, kept) == ("", ())


PIECES = st.sampled_from(
    [
        "Refunds are paid within fourteen days [1].",
        "refunds are paid within fourteen days [1]",
        "Invoices are sent on Monday [1]!",
        "Zebras pay double [1].",
        "owls hoot.",
        "e.g. [1]",
        "Dr.",
        "- ",
        "\n\n",
        "\n# Zebras\n",
        "1. ",
        "(by the finance team) [1].",
    ]
)


@given(pieces=st.lists(PIECES, max_size=8), yes=st.sets(st.integers(0, 7)))
@example(pieces=["Dr.", "Zebras pay double [1].", "Refunds are paid within fourteen days [1]."], yes={0, 1, 2})
def test_of_a_strict_answer_nothing_is_left_that_is_not_supported(pieces: list[str], yes: set[int]) -> None:
    answer = resolve(" ".join(pieces), ISSUED)
    asked = [claim.pair for claim in judge_claims(answer, TEXTS)]
    opinions = Opinions(verdicts={pair: 1.0 for place, pair in enumerate(asked) if place in yes})
    left, kept = only_supported(answer, judge_claims(answer, TEXTS, opinions), TEXTS, ISSUED, opinions)
    assert all(claim.supported for claim in kept)
    assert kept == judge_claims(left, TEXTS, opinions), "and it says so of what is really there"
