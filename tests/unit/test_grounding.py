"""Grounding: what makes a sentence supported, and what takes its support away."""

from __future__ import annotations

import pytest
from growth import assert_grows_linearly
from hypothesis import given
from hypothesis import strategies as st

from dats_common.domain.grounding import GUARD_PENALTY, SIMILARITY_WEIGHT, judge

SOURCE = (
    "The writer retries a failed delivery three times. Between two tries it waits 30 seconds. "
    "Bob Miller introduced the limit in March 2021. The queue is not durable by default."
)


@pytest.mark.parametrize(
    "sentence",
    [
        "The writer retries a failed delivery three times.",
        "A failed delivery is retried 3 times by the writer.",
        "It waits 30 s between two tries.",
        "The limit was introduced by Miller in March 2021.",
        "By default the queue is not durable.",
    ],
)
def test_what_a_source_says_is_supported_also_in_other_words(sentence: str) -> None:
    found = judge(sentence, ["Something else entirely.", SOURCE])
    assert found.supported
    assert found.guards == ()


def test_what_no_source_says_is_not_supported() -> None:
    found = judge("Elephants sleep in tall trees while humming loudly.", [SOURCE])
    assert not found.supported
    assert found.score < 0.3


@pytest.mark.parametrize(
    ("sentence", "guard"),
    [
        ("The writer retries a failed delivery five times.", "number"),
        ("Between two tries it waits 30 minutes.", "number"),
        ("The limit was introduced by Bob Carter in March 2021.", "name"),
        ("The writer does not retry a failed delivery.", "negation"),
        ("The queue is durable by default.", "negation"),
    ],
)
def test_a_failed_guard_takes_the_support_of_nearly_the_same_words(sentence: str, guard: str) -> None:
    found = judge(sentence, [SOURCE])
    assert found.guards == (guard,)
    assert not found.supported
    assert found.score + GUARD_PENALTY >= 0.6


def test_a_denial_in_another_clause_of_the_source_flips_nothing() -> None:
    source = "This is not about the moon, planets, comets, stars or rings: the writer retries a failed delivery."
    assert judge("The writer retries a failed delivery.", [source]).supported


def test_a_denial_reaches_a_few_words_far() -> None:
    assert judge("Queues are durable.", ["Queues are not by default very durable."]).guards == ("negation",)


def test_of_sentences_about_equally_near_one_is_enough_to_say_it_the_same_way() -> None:
    said, denied = (
        "Red, green, blue and black lamps are sold here.",
        "There are not red, green, blue or black lamps there.",
    )
    assert judge("Red, green, blue and black lamps are sold.", [f"{said} {denied}"]).guards == ()
    assert judge("Red, green, blue and black lamps are not sold.", [f"{said} {denied}"]).guards == ()
    assert judge("Red, green, blue and black lamps are sold.", [denied]).guards == ("negation",)


def test_every_failed_guard_is_named_in_one_order() -> None:
    found = judge("Carter does not retry a failed delivery 7 times for Smith.", [SOURCE])
    assert found.guards == ("number", "name", "negation")


def test_words_scattered_over_a_source_support_less_than_the_same_words_together() -> None:
    together = "Red foxes hunt. They like small mice best. They do it at night."
    filler = "Nothing here matters. Nor does this. Or that. Or those."
    scattered = f"Red foxes rest. {filler} Some hunt small birds. {filler} Two mice sleep at night."
    claim = "Red foxes hunt small mice at night."
    assert judge(claim, [together]).score == pytest.approx(1)
    assert judge(claim, [scattered]).score < 0.8
    assert judge(claim, scattered.split(f" {filler} ")).score < 0.8


def test_similarity_is_blended_in_by_its_weight() -> None:
    claim = "The writer retries a lost delivery."
    alone = judge(claim, [SOURCE]).score
    assert judge(claim, [SOURCE], similarity=1.0).score == pytest.approx(alone + SIMILARITY_WEIGHT * (1 - alone))
    assert judge(claim, [SOURCE], similarity=0.0).score == pytest.approx(alone * (1 - SIMILARITY_WEIGHT))


def test_similarity_does_not_overrule_a_guard() -> None:
    assert not judge("The writer retries a failed delivery five times.", [SOURCE], similarity=1.0).supported


@pytest.mark.parametrize(
    ("sentence", "sources"), [("", [SOURCE]), ("It is so.", []), ("Retry it.", [""]), ("?!", ["?!"])]
)
def test_without_words_or_sources_nothing_is_supported(sentence: str, sources: list[str]) -> None:
    found = judge(sentence, sources)
    assert found.score == 0
    assert not found.supported


@given(sentence=st.text(), sources=st.lists(st.text(), max_size=3), similarity=st.none() | st.floats(0, 1))
def test_a_score_lies_between_0_and_1_whatever_the_text(
    sentence: str, sources: list[str], similarity: float | None
) -> None:
    assert 0 <= judge(sentence, sources, similarity=similarity).score <= 1


_words = st.sampled_from(
    ["writer", "Bob", "not", "never", "30", "ms", "retries", "queue", "without", "the", "API", "5%"]
)


@given(st.lists(_words, min_size=1, max_size=12).map(lambda words: f"Some {' '.join(words)} here."))
def test_a_sentence_supports_itself(sentence: str) -> None:
    found = judge(sentence, [SOURCE, sentence])
    assert found.supported
    assert found.score == pytest.approx(1)


@pytest.mark.parametrize("unit", ["not word ", "a. ", "word ", "1 ", "Bob. "])
def test_time_grows_with_a_text_whatever_it_is(unit: str) -> None:
    assert_grows_linearly(lambda text: judge(text, [text]), (unit * 100_000)[:100_000])
