"""Answerability: an order of questions by how likely their sources answer them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dats_common.domain.answerability import answerability, expected_answer, holds_answer


@dataclass(frozen=True)
class Passage:
    text: str
    similarity: float = 0.5


SOURCES = [
    Passage(
        "The writer retries a failed delivery three times. Ada Bell introduced the limit in March 2021. "
        "The queue keeps its messages on disk."
    ),
    Passage("Readers never wait for the writer. They read the index alone."),
]


def test_a_question_whose_terms_stand_together_is_more_answerable_than_one_about_something_else() -> None:
    asked = answerability("How many times does the writer retry a failed delivery?", SOURCES)
    partly = answerability("How many times does the writer paint a failed portrait?", SOURCES)
    other = answerability("How many elephants sleep in tall trees?", SOURCES)
    assert asked > partly > other


def test_terms_in_one_place_count_more_than_the_same_terms_apart() -> None:
    filler = "Nothing here matters. " * 5
    together = [Passage(f"{filler}The queue is long. It keeps its messages on disk.")]
    apart = [Passage(f"The queue is long. {filler}It keeps its messages on disk.")]
    question = "Which disk keeps the messages of the queue?"
    assert answerability(question, together) > answerability(question, apart)


@pytest.mark.parametrize(
    ("question", "turned"),
    [
        ("When did Ada Bell introduce the limit?", "When did Eve Bell introduce the limit?"),
        ("Was the limit introduced in 2021?", "Was the limit introduced in 2022?"),
        ("Was it introduced in March by somebody?", "Was it introduced in March by 2022?"),
        ("Did Bell introduce the limit with eve?", "Did Bell introduce the limit with Eve?"),
        ("Who keeps messages on disk?", "Who does not keep messages on disk?"),
        ("Why do readers read the index alone?", "When do readers read the index alone?"),
    ],
)
def test_a_question_turned_so_that_its_sources_do_not_answer_it_is_less_answerable(question: str, turned: str) -> None:
    assert answerability(turned, SOURCES) < answerability(question, SOURCES)


def test_a_denial_that_the_source_makes_too_costs_nothing() -> None:
    denied = answerability("Do readers never wait for the writer?", SOURCES)
    assert denied >= answerability("Do readers wait for the writer?", SOURCES)


def test_the_most_similar_source_counts() -> None:
    question = "How many times does the writer retry?"
    better = [SOURCES[0], Passage(SOURCES[1].text, similarity=0.9)]
    assert answerability(question, better) > answerability(question, SOURCES)


@pytest.mark.parametrize(
    ("question", "sources"), [("", SOURCES), ("What is it?", SOURCES), ("Which queue?", []), ("Which?", [Passage("")])]
)
def test_without_terms_or_sources_nothing_is_answerable(question: str, sources: list[Passage]) -> None:
    assert answerability(question, sources) == 0


@given(
    question=st.text(),
    sources=st.lists(st.builds(Passage, st.text(), st.floats(0, 1)), max_size=3),
)
def test_it_lies_between_0_and_1_whatever_is_asked(question: str, sources: list[Passage]) -> None:
    assert 0 <= answerability(question, sources) <= 1


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("How many retries are there?", "number"),
        ("What percentage is lost?", "number"),
        ("When was it built?", "time"),
        ("In which year did it end?", "time"),
        ("Who wrote it?", "name"),
        ("Where is it?", "name"),
        ("Why does it fail?", None),
        ("How does it work?", None),
    ],
)
def test_a_question_tells_what_kind_of_words_answer_it(question: str, expected: str | None) -> None:
    assert expected_answer(question) == expected


def test_an_answer_holds_words_of_the_kind_asked_for() -> None:
    assert holds_answer("It is tried three times.", "number", question="How many times?")
    assert not holds_answer("It is tried again.", "number", question="How many times?")
    assert holds_answer("It was built in March.", "time", question="When?")
    assert not holds_answer("It was built by 30 people.", "time", question="When?")
    assert holds_answer("It was built by Bell.", "name", question="Who built it?")
    assert not holds_answer("It was built by Bell.", "name", question="Who is Bell?")
