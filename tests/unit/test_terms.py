"""Key terms: spec 2's rule, to the letter, since coverage is defined by it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dats_common.domain.terms import STOPWORDS, key_terms


def test_terms_are_the_longer_words_in_lower_case_without_stop_words() -> None:
    assert key_terms("The retry LIMIT of a queue is 25 or 300, in v2") == {"retry", "limit", "queue", "300"}


def test_the_stop_words_are_those_of_the_specification() -> None:
    assert len(STOPWORDS) == 106
    assert {"dare", "shall", "hers", "nor", "myself"} <= STOPWORDS
    assert not {"what", "which", "who", "and/or"} & STOPWORDS


@pytest.mark.parametrize("text", ["", " \n", "is it so?", "a1 b2", "!?#"])
def test_a_text_without_key_terms_gives_the_empty_set(text: str) -> None:
    assert key_terms(text) == set()


def test_an_underscore_joins_and_a_hyphen_parts() -> None:
    assert key_terms("get_user_id well-known") == {"well", "known"}


@given(st.text())
def test_terms_do_not_depend_on_case_and_are_plain_words(text: str) -> None:
    found = key_terms(text)
    assert found == key_terms(text.lower())
    assert all(re.fullmatch("[a-z0-9]{3,}", term) for term in found)
    assert not found & STOPWORDS
