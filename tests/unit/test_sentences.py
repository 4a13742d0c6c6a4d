"""Sentences: where prose and Markdown end one, and that nothing is lost between them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from growth import assert_grows_linearly
from hypothesis import given
from hypothesis import strategies as st

from dats_common.domain.sentences import sentences


def cut(text: str) -> list[str]:
    return [text[start:end] for start, end in sentences(text)]


_PIECES = [*"ab.!?\n`~#|-*[]()1 。\u2028\0", "Dr. ", "e.g. ", "\n\n", "```\n", "- ", "[1] ", "word ", "End. ", "... "]
prose = st.lists(st.sampled_from(_PIECES), max_size=80).map("".join)


@given(prose | st.text())
def test_sentences_lie_in_order_and_hold_every_visible_character_once(text: str) -> None:
    spans = sentences(text)
    for start, end in spans:
        assert start < end
        assert text[start:end] == text[start:end].strip()
    assert all(before.end <= after.start for before, after in pairwise(spans))
    edges = [0, *(edge for span in spans for edge in span), len(text)]
    assert all(not text[edges[i] : edges[i + 1]].strip() for i in range(0, len(edges), 2))


@given(prose | st.text())
def test_no_sentence_is_without_a_letter_or_digit_unless_the_text_is(text: str) -> None:
    found = cut(text)
    assert len(found) <= 1 or all(any(char.isalnum() or char == "_" for char in each) for each in found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It ran. They said so! Did it? Yes.", ["It ran.", "They said so!", "Did it?", "Yes."]),
        ("lower case is fine. it splits too.", ["lower case is fine.", "it splits too."]),
        ("語語語。語語？語", ["語語語。", "語語？", "語"]),
        ('He left. "She stayed." (They slept.) So.', ["He left.", '"She stayed."', "(They slept.)", "So."]),
        ("A wrapped\nline ends. Here.", ["A wrapped\nline ends.", "Here."]),
        ("One paragraph\n\nanother one", ["One paragraph", "another one"]),
    ],
)
def test_prose_is_cut_at_its_ends(text: str, expected: list[str]) -> None:
    assert cut(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "Dr. Ada met Prof. Bell and Mrs. Cray.",
        "J. R. R. Tolkien and J. A. Hobson wrote.",
        "It costs $3.50, not 1,000.5 or .5 in v1.2.3.",
        "See https://example.org/a.b?c=d now, or call file.py and np.array here.",
        "Use tools, e.g. Vim, i.e. Editors, cf. Emacs.",
        "He served in the U.S. Navy under Smith et al. Brown.",
        "It is shown in Fig. 3 and No. 5 of Vol. 2.",
        "John Kennedy Jr. Bros.",
        "Well... perhaps it is.",
        '"Why?" he asked, "now!" and left.',
        "The meeting of Jan. 5 is off.",
    ],
)
def test_a_full_stop_within_a_sentence_does_not_end_it(text: str) -> None:
    assert cut(text) == [text]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Take plan B. Then go.", ["Take plan B.", "Then go."]),
        ("It came at 5 p.m. The end.", ["It came at 5 p.m.", "The end."]),
        ("They sold pens, etc. This went on.", ["They sold pens, etc.", "This went on."]),
        ("Is it so? No. It is not.", ["Is it so?", "No.", "It is not."]),
        ("He waited... Then he left.", ["He waited...", "Then he left."]),
    ],
)
def test_an_abbreviation_ends_a_sentence_where_the_next_word_opens_one(text: str, expected: list[str]) -> None:
    assert cut(text) == expected


def test_a_citation_behind_the_full_stop_belongs_to_the_sentence_before_it() -> None:
    source_id = "[SourceId: 00000000-0000-0000-0000-000000000001:3]"
    assert cut(f"It is so. [1] It was.[2][3] Both {source_id}. Last. {source_id} End") == [
        "It is so. [1]",
        "It was.[2][3]",
        f"Both {source_id}.",
        f"Last. {source_id}",
        "End",
    ]


def test_list_items_headings_and_table_rows_stand_alone() -> None:
    text = "# Title. One\nIntro:\n- first item\n- second. And more\n1. Start. Go\n2) b\n| a | b |\n| 1 | 2. 3 |\nafter"
    assert cut(text) == [
        "# Title. One",
        "Intro:",
        "- first item",
        "- second.",
        "And more",
        "1. Start.",
        "Go",
        "2) b",
        "| a | b |",
        "| 1 | 2. 3 |",
        "after",
    ]


def test_rules_and_lines_under_table_heads_belong_to_what_is_above_them() -> None:
    assert cut("| a |\n|---|\n| 1 |\n\n---\n\nText.") == ["| a |\n|---|", "| 1 |\n\n---", "Text."]
    assert cut("Title\n===\nText.\n***\nEnd.") == ["Title\n===", "Text.\n***", "End."]


def test_a_fenced_block_is_one_sentence_to_its_own_end() -> None:
    block = "```py\nx = 1. + f()\n\n# A. B\n~~~\n```"
    assert cut(f"Before it.\n{block}\nAfter. Done.") == ["Before it.", block, "After.", "Done."]
    assert cut("~~~~\na. B.\n~~~\nc. D.") == ["~~~~\na. B.\n~~~\nc. D."]


@pytest.mark.parametrize("text", ["", " ", "\n\t\r\n\u3000"])
def test_a_text_without_visible_characters_has_no_sentences(text: str) -> None:
    assert sentences(text) == []


@pytest.mark.parametrize(
    "unit", [".", "a.", "A. ", "\n", "- ", "```\n", "|", "[1] ", ". [1", "。", "e.g. ", "a\n", "--- x"]
)
def test_time_grows_with_a_text_whatever_it_is(unit: str) -> None:
    assert_grows_linearly(sentences, (unit * 1_000_000)[:1_000_000])
