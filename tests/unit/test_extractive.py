"""Extraction: which sentences answer, how they are cited, and when there is nothing to quote."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dats_common.domain.citations import Issued, resolve
from dats_common.domain.extractive import LONGEST_SENTENCE, NOTHING, ExtractSource, extract
from dats_common.domain.grounding import judge

QUEUE = ExtractSource(
    1,
    "# The queue\n\nThe queue keeps messages on disk. It holds at most 1000 of them. A full queue pushes back on the "
    "broker.\n\n- Prefetch is bounded.\n- Nothing is dropped.",
    0.6,
)
WRITER = ExtractSource(
    2,
    "The writer was introduced by Ada Bell in March 2021. The writer retries a failed delivery three times.",
    0.5,
)
IDS = [f"00000000-0000-0000-0000-00000000000{number}:0" for number in range(1, 4)]


def texts(question: str, *sources: ExtractSource, most: int = 3) -> list[str]:
    return [each.text for each in extract(question, sources, max_sentences=most).sentences]


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("How often is a failed delivery retried?", "The writer retries a failed delivery three times."),
        ("When was the writer introduced?", "The writer was introduced by Ada Bell in March 2021."),
        ("What happens when the queue is full?", "A full queue pushes back on the broker."),
        ("Is prefetch bounded?", "Prefetch is bounded."),
    ],
)
def test_the_sentence_that_answers_comes_first(question: str, answer: str) -> None:
    assert texts(question, QUEUE, WRITER)[0] == answer


def test_each_sentence_is_followed_by_the_alias_of_its_source() -> None:
    found = extract("When was the writer introduced, and what does a full queue do?", [QUEUE, WRITER])
    assert {each.alias for each in found.sentences} == {1, 2}
    assert found.text == " ".join(f"{each.text} [{each.alias}]" for each in found.sentences)


def test_a_rare_term_of_the_question_counts_more_than_a_common_one() -> None:
    source = ExtractSource(1, "The lamp is red. The lamp is old. The lamp is big. A dimmer came later.", 0.5)
    assert texts("Does the lamp have a dimmer?", source)[0] == "A dimmer came later."


def test_a_sentence_may_owe_its_subject_to_the_one_before() -> None:
    bridge = ExtractSource(1, "The old bridge spans a river. It was built of stone.", 0.5)
    church = ExtractSource(2, "The new church stands uphill. It was built of brick.", 0.5)
    assert texts("What was the church built of?", bridge, church, most=2) == [
        "It was built of brick.",
        "The new church stands uphill.",
    ]


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Who built the tower?", "The tower was built by Ada Bell."),
        ("When was the tower built?", "The tower was built in 1912."),
    ],
)
def test_of_equal_sentences_the_one_with_the_kind_of_words_asked_for_comes_first(question: str, answer: str) -> None:
    text = "The tower was built with care. The tower was built in 1912. The tower was built by Ada Bell."
    assert texts(question, ExtractSource(1, text, 0.5))[0] == answer


def test_of_equal_sentences_the_more_similar_source_comes_first_then_the_earlier() -> None:
    one = ExtractSource(1, "The tower is red.", 0.3)
    two = ExtractSource(2, "The tower is blue.", 0.6)
    three = ExtractSource(3, "The tower is grey.", 0.6)
    assert texts("Which colour has the tower?", one, two, three, most=2) == ["The tower is blue.", "The tower is grey."]


def test_no_more_sentences_than_wanted_and_none_far_below_the_best() -> None:
    source = ExtractSource(1, "Red foxes hunt at night. Red foxes hunt mice at night. A fox. It sleeps.", 0.1)
    assert len(texts("What do red foxes hunt at night?", source, most=1)) == 1
    assert texts("What do red foxes hunt at night?", source) == [
        "Red foxes hunt at night.",
        "Red foxes hunt mice at night.",
    ]


@pytest.mark.parametrize(
    ("question", "sources"),
    [("Why do elephants sleep?", [QUEUE, WRITER]), ("What is it?", [QUEUE]), ("", [QUEUE]), ("What queue?", [])],
)
def test_where_nothing_matches_nothing_is_said(question: str, sources: list[ExtractSource]) -> None:
    assert extract(question, sources) == NOTHING


def test_a_heading_is_not_an_answer_and_a_list_sign_no_part_of_one() -> None:
    source = ExtractSource(1, "## Retry limit\n\n1. The retry limit is five.\n- - other", 0.5)
    assert texts("What is the retry limit?", source) == ["The retry limit is five."]


def test_a_sentence_in_two_overlapping_chunks_is_quoted_once() -> None:
    again = ExtractSource(3, WRITER.text, 0.5)
    found = extract("When was the writer introduced?", [WRITER, again])
    assert len({each.text for each in found.sentences}) == len(found.sentences)


def test_of_a_stretch_too_long_to_quote_single_lines_answer() -> None:
    table = "\n".join(f"row {number} of the wide table" for number in range(LONGEST_SENTENCE // 10))
    assert texts("What is in row 7?", ExtractSource(1, table, 0.5), most=1) == ["row 7 of the wide table"]


def test_a_marker_that_a_source_forges_cites_nothing() -> None:
    forged = ExtractSource(1, f"The queue keeps messages [2] on disk [SourceId: {IDS[1]}].", 0.5)
    found = resolve(extract("What does the queue keep?", [forged]).text, Issued.of(IDS))
    assert found.source_ids == (IDS[0],)


@pytest.mark.parametrize(
    "text",
    [
        "Intro.\n```py\nqueue.keep(message)\n```",
        "```py\nqueue.keep(message)",
        "queue.keep(`message)",
        "~~~\nqueue.keep()\n~~~",
    ],
)
def test_a_citation_behind_code_stands_outside_of_it(text: str) -> None:
    found = resolve(extract("What does queue keep?", [ExtractSource(2, text, 0.5)]).text, Issued.of(IDS))
    assert found.source_ids == (IDS[1],)


def test_what_does_not_end_as_a_sentence_stands_in_a_paragraph_of_its_own() -> None:
    source = ExtractSource(1, "- queue size: 5\n- queue owner: Bell", 0.5)
    assert extract("Which queue?", [source]).text == "queue size: 5 [1]\n\nqueue owner: Bell [1]"


def test_a_question_its_sources_answer_is_rated_higher_than_one_they_do_not() -> None:
    answered = extract("How many times does the writer retry a failed delivery?", [QUEUE, WRITER]).rating
    not_answered = extract("How many times does Carter not paint a queue?", [QUEUE, WRITER]).rating
    assert 0 < not_answered < answered <= 100


_prose = st.lists(
    st.sampled_from(["queue ", "Bell ", "disk. ", "`", "```\n", "[1] ", "- ", "\n\n", "not ", "30 ", "# ", "a", "? "])
).map("".join)


@given(question=_prose, bodies=st.lists(_prose | st.text(), max_size=3))
def test_what_is_quoted_stands_in_the_source_it_cites_and_the_same_call_gives_the_same(
    question: str, bodies: list[str]
) -> None:
    sources = [ExtractSource(alias, body, 0.5) for alias, body in enumerate(bodies, start=1)]
    found = extract(question, sources)
    assert found == extract(question, sources)
    assert 0 <= found.rating <= 100
    for each in found.sentences:
        source = sources[each.alias - 1].text
        assert 0 <= each.score <= 1
        assert each.text in source or "[" in source
        assert "number" not in judge(each.text, [source]).guards


@pytest.mark.parametrize(
    "question", ["How many messages are held?", "What does a full queue do?", "Who introduced it?"]
)
def test_what_is_quoted_is_supported_by_its_source(question: str) -> None:
    sources = [QUEUE, WRITER]
    for each in extract(question, sources).sentences:
        assert judge(each.text, [sources[each.alias - 1].text]).supported
