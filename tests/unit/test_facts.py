"""Numbers, names and denials, and when another text has them too."""

from __future__ import annotations

import pytest
from growth import assert_grows_linearly
from hypothesis import given
from hypothesis import strategies as st

from dats_common.domain.facts import NEGATOR, names, unknown_names, unknown_numbers


@pytest.mark.parametrize(
    ("said", "context"),
    [
        ("1,200.50", "it was 1200.5"),
        ("3.5 million", "3,500,000 of them"),
        ("3,500,000", "some 3.5 million"),
        ("3.5 million", "from 3.5 to 4 million"),
        ("3.5 to 4 million", "3.5 million to 4 million"),
        ("twenty-five", "25 of them"),
        ("12", "twelve bars"),
        ("two hundred", "200 rows"),
        ("1", "only one"),
        ("20 percent", "it is 20%"),
        ("5 minutes", "for 5 min"),
        ("5%", "5-10%"),
        ("March 5, 2024", "on 2024-03-05"),
        ("the 19th", "in the 19th century"),
        ("12:30", "at 12:30"),
    ],
)
def test_a_number_is_known_however_it_is_written(said: str, context: str) -> None:
    assert unknown_numbers(said, context) == []


@pytest.mark.parametrize(
    ("said", "context", "expected"),
    [
        ("in 1974", "in 1973", ["1974"]),
        ("1.5 of 15", "15", ["1.5"]),
        ("took 5 s", "took 5 ms", ["5"]),
        ("$12", "€12", ["$12"]),
        ("4 million", "4 thousand", ["4 million"]),
        ("fourteen", "forty", ["fourteen"]),
        ("12:30", "12 and 30", ["12:30"]),
    ],
)
def test_a_number_with_another_value_or_unit_is_unknown(said: str, context: str, expected: list[str]) -> None:
    assert unknown_numbers(said, context) == expected


def test_one_and_the_digits_of_a_name_are_no_numbers() -> None:
    assert unknown_numbers("One may use H2O and v1.2.3", "") == []


def test_names_are_capitals_within_a_sentence_acronyms_and_identifiers() -> None:
    text = "Yesterday Bob asked NASA's Eve about get_user, parseJson, os.path and IL6. Then he left."
    assert names(text) == ["Bob", "NASA", "Eve", "get_user", "parseJson", "os.path", "IL6"]


@pytest.mark.parametrize("text", ["How To Write A Good Headline", "I think it's The Way", "all in small letters", ""])
def test_titles_and_small_words_are_no_names(text: str) -> None:
    assert set(names(text)) <= {"Way"}


@pytest.mark.parametrize(
    ("said", "context"),
    [
        ("the German plan", "a plan of Germany"),
        ("the Chinese plan", "a plan of China"),
        ("by Canada", "a Canadian plan"),
        ("their APIs", "an API"),
        ("by Obama's", "obama said"),
        ("getUserId", "call get_user_id"),
        ("get_user_id", "the user's id: get user id"),
        ("in the US", "in the United States"),
        ("chronic kidney disease (CKD)", "of kidneys"),
        ("on March 5", "on 2024-03-05"),
    ],
)
def test_a_name_is_known_in_its_other_forms(said: str, context: str) -> None:
    assert unknown_names(said, context) == []


@pytest.mark.parametrize(
    ("said", "context", "expected"),
    [
        ("It was Bob.", "It was Alice.", ["Bob"]),
        ("by Christina", "by Christian", ["Christina"]),
        ("call get_user_name", "call get_user_id", ["get_user_name"]),
        ("of the UK", "of a united, kind people", ["UK"]),
        ("in NLRP4", "in NLRP3", ["NLRP4"]),
        ("It was NASA", "It was ESA", ["NASA"]),
    ],
)
def test_another_name_is_unknown(said: str, context: str, expected: list[str]) -> None:
    assert unknown_names(said, context) == expected


@pytest.mark.parametrize("text", ["is not", "isn't", "isn’t", "without", "never", "cannot", "no retry"])
def test_denials_are_found(text: str) -> None:
    assert NEGATOR.search(text)


@pytest.mark.parametrize("text", ["not only this", "a patient plant", "noted", "no more than five", "nothingness"])
def test_what_only_looks_like_a_denial_is_none(text: str) -> None:
    assert not NEGATOR.search(text)


@given(st.text() | st.lists(st.sampled_from(["Ab", "a.b", "5", "%", " ", "IL-6", "'s", "1,000", "X"])).map("".join))
def test_a_text_knows_all_that_it_says_itself(text: str) -> None:
    assert unknown_numbers(text, text) == []
    assert unknown_names(text, text) == []


@pytest.mark.parametrize("unit", ["1", "1,", "A", "A.", "a_", "Ab ", "'", "not ", "n't", "five ", "$ ", "A'"])
def test_time_grows_with_a_text_whatever_it_is(unit: str) -> None:
    def looked_at(text: str) -> None:
        unknown_numbers(text, text)
        unknown_names(text, text)
        NEGATOR.search(text)

    assert_grows_linearly(looked_at, (unit * 100_000)[:100_000])
