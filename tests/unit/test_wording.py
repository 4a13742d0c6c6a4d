"""The name of a language tells nothing where every document is in it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dats_common.domain.wording import without_language


@pytest.mark.parametrize(
    ("domain", "question", "left"),
    [
        ("code-python", "zip lists in python", "zip lists"),
        ("code-python", "Python, running commands in parallel", "running commands in parallel"),
        ("code-python", "python: order of a dict", "order of a dict"),
        ("code-python", "How do I sort (in Python) a list?", "How do I sort a list?"),
        ("code-python", "How to read a file in Python 3.11?", "How to read a file?"),
        ("code-python", "python -c with a newline", "-c with a newline"),
        ("code-python", "how in python do I zip?", "how do I zip?"),
        ("code-python", "write a python function that zips", "write a function that zips"),
        ("code-python", "Python 2.7: order of a dict", "order of a dict"),
        ("code-python", "Pandas (python): add a column", "Pandas: add a column"),
        ("code-python", "zip two lists, python", "zip two lists,"),
        ("code-python", "how do I call super().__init__() in Python", "how do I call super().__init__()"),
        ("code-python", "replace ( ) and , with  blank\nusing python3", "replace ( ) and , with  blank"),
        ("code-py", "zip lists in python3", "zip lists"),
        ("Code_JavaScript", "sort an array with JS", "sort an array"),
        ("code-go", "read a file in Go", "read a file"),
        ("code-golang", "golang channels", "channels"),
        ("code-postgresql", "upsert in SQL", "upsert"),
        ("code-rust", "own a string in Rust", "own a string"),
    ],
)
def test_the_language_of_the_domain_is_left_out(domain: str, question: str, left: str) -> None:
    assert without_language(question, domain=domain) == left


@pytest.mark.parametrize(
    ("domain", "question"),
    [
        (None, "zip lists in python"),
        ("docs", "zip lists in python"),
        ("code", "zip lists in python"),
        ("code-general", "general zip"),
        ("code-go", "zip lists in python"),
        ("code-go", "where does a packet go"),
        ("code-java", "javascript in java-like syntax"),
        ("code-python", "find 'python' in a string"),
        ("code-python", "find the phrase 'sort in python' and print"),
        ("code-python", 'search for "sort in python"'),
        ("code-python", "search for “sort in python”"),
        ("code-python", "what is the difference between Python 2 and Python 3"),
        ("code-python", "convert Python 2 to Python 3"),
        ("code-python", "is this Python 2 or 3?"),
        ("code-python", "is this python?"),
        ("code-python", "embed Python in C"),
        ("code-python", "which Python version is running"),
        ("code-python", "python version of a virtual environment"),
        ("code-python", "convert javascript to python"),
        ("code-python", "what is Python's way to zip"),
        ("code-sql", "how to prevent SQL injection"),
        ("code-mysql", "SQL Server linked table"),
        ("code-swift", "taps in swift succession"),
        ("code-java", "java script engine"),
        ("code-python", "run /usr/bin/python with arguments"),
        ("code-python", "install python-dateutil"),
        ("code-python", "call python.exe"),
        ("code-python", "the most pythonic way"),
        ("code-python", "  two  blanks "),
        ("code-python", "Python"),
        ("code-python", "in Python?"),
    ],
)
def test_a_question_that_tells_otherwise_stays_as_it_is(domain: str | None, question: str) -> None:
    assert without_language(question, domain=domain) == question


@given(
    question=st.lists(
        st.sampled_from(["python", "in", "Python", "sort", ",", "?", "(", ")", "'", "-", ":", " ", "\n", "3"])
    ).map("".join)
)
def test_what_is_left_holds_a_word(question: str) -> None:
    left = without_language(question, domain="code-python")
    assert left == question or any(letter.isalnum() for letter in left)
    assert len(left) <= len(question)
