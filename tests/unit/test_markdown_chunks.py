import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.chunks import check_slices, cut, paths

limits = st.integers(1, 40).flatmap(lambda most: st.tuples(st.just(most), st.integers(0, most // 2)))
LINES = [
    "# One",
    "## Two `x`",
    "### Three #",
    "Under",
    "===",
    "---",
    "```",
    "~~~ python",
    "# in a fence",
    "    # indented",
    "> # quoted",
    "- item",
    "- # in an item",
    "| a | b |",
    "|---|---|",
    "some words of a paragraph, and more of them.",
    "<div id='x'>",
    "",
    "\f",
    "\r",
    "é語😀 \0",
]
documents = st.lists(st.sampled_from(LINES), max_size=40).map("\n".join)


@settings(deadline=None)  # The first example waits for the parser to be loaded.
@given(text=documents | st.text(), limits=limits, doc_type=st.sampled_from(["markdown", "help-article", "adr"]))
@example(text="\ufeff# A\n\n## B", limits=(1, 0), doc_type="markdown")
def test_markdown_is_cut_without_loss_within_the_window(text, limits, doc_type):
    most, overlap = limits
    asked = {"max_tokens": most, "overlap_tokens": overlap, "doc_type": doc_type, "source_uri": "a.md"}
    chunks = cut(text, **asked)
    check_slices(text, chunks, window_tokens=most)
    assert chunks == cut(text, **asked)


GUIDE = """\
# Guide

Read it all, from here to the end.

## Install

Run the command that your system has for it, then wait.

### Linux

apt install guide and all that belongs to it too.

## Use

```sh
# not a heading
guide --help
```
"""


def test_a_section_is_a_chunk_with_its_headings_and_lines():
    chunks = cut(GUIDE, max_tokens=20, source_uri="docs/guide.md")
    assert paths(chunks) == ["Guide", "Guide > Install", "Guide > Install > Linux", "Guide > Use"]
    lines = [(each.location.line_start, each.location.line_end) for each in chunks]
    assert lines == [(1, 3), (5, 7), (9, 11), (13, 18)]
    assert chunks[2].text == "### Linux\n\napt install guide and all that belongs to it too."


def test_a_section_that_fits_stays_whole_with_those_under_it():
    chunks = cut(GUIDE, max_tokens=36, source_uri="docs/guide.md")
    assert paths(chunks) == ["Guide", "Guide > Install", "Guide > Use"]
    assert chunks[1].text.startswith("## Install")
    assert chunks[1].text.endswith("belongs to it too.")


def test_a_document_that_fits_is_one_chunk():
    assert [each.text for each in cut(GUIDE, max_tokens=200, source_uri="docs/guide.md")] == [GUIDE.strip()]


def test_a_heading_without_text_goes_to_its_first_section():
    text = "# Title\n\n## First\n\n" + "words go on " * 6 + "\n\n## Second\n\n" + "words go on " * 6
    chunks = cut(text, max_tokens=24, source_uri="a.md")
    assert paths(chunks) == ["Title > First", "Title > Second"]
    assert chunks[0].text.startswith("# Title\n\n## First")


def test_a_short_section_stays_apart_from_the_next_one():
    text = "# A\n\nshort\n\n# B\n\n" + "words go on " * 5 + "\n\n# C\n\nend"
    chunks = cut(text, max_tokens=22, source_uri="a.md")
    assert paths(chunks) == ["A", "B", "C"]


def test_what_stands_under_most_of_a_chunk_names_it():
    title, words = "# Title\n\n", "words go on " * 8
    assert paths(cut(f"{title}## A\n\n{words}", max_tokens=90, source_uri="a.md")) == ["Title > A"]
    assert paths(cut(f"{title}## A\n\n{words}\n\n## B\n\n{words}", max_tokens=90, source_uri="a.md")) == ["Title"]
    assert paths(cut(f"# A\n\n{words}\n\n# B\n\n{words}", max_tokens=90, source_uri="a.md")) == [""]


@pytest.mark.parametrize(
    ("heading", "name"),
    [
        ("## The `run` *command*", "The run command"),
        ("## [Link](http://x) &amp; more ##", "Link & more"),
        ("Underlined\n---", "Underlined"),
        ("## <a id='x'></a>Name", "Name"),
        ("##   spaces \t in it", "spaces in it"),
    ],
)
def test_a_heading_is_named_without_its_markup(heading, name):
    (only,) = cut(f"{heading}\n\ntext", max_tokens=50, source_uri="a.md")
    assert only.location.heading_path == (name,)


@pytest.mark.parametrize(
    "text",
    [
        "```\n# a\n## b\n```",
        "~~~\n# a\n~~~~",
        "    # a",
        "> # a",
        "- # a",
        "#a",
        "---\ntitle: a\n---\n\ntext",
        "<!--\n# a\n-->",
    ],
)
def test_what_only_looks_like_a_heading_is_none(text):
    assert paths(cut(text, max_tokens=50, source_uri="a.md")) == [""]


def test_a_byte_order_mark_hides_no_heading():
    text = "\ufeff# One\n\nwords of it\n\n# Two\n\nwords"
    chunks = cut(text, max_tokens=6, source_uri="a.md")
    assert paths(chunks) == ["One", "Two"]
    check_slices(text, chunks, window_tokens=6)


def test_an_empty_heading_is_no_part_of_a_path():
    text = "# One\n\nwords of it\n\n##\n\nmore words here now\n\n### Three\n\nwords and so on"
    assert paths(cut(text, max_tokens=8, source_uri="a.md")) == ["One", "One", "One > Three"]


def test_headings_behind_front_matter_are_found():
    chunks = cut("---\ntitle: x\n---\n# Real\n\n" + "text " * 30, max_tokens=50, source_uri="a.md")
    assert paths(chunks) == ["Real"]


def test_a_long_section_is_cut_between_blocks_rather_than_within_one():
    code = "```\na b c\n\nd e f\n```"
    text = f"# T\n\none two three four five.\n\n{code}\n\nsix seven eight nine ten."
    first, second, *_ = cut(text, max_tokens=19, source_uri="a.md")
    assert first.text.endswith("five.")
    assert second.text.startswith("```\na b c\n\nd e f\n```")


def test_plain_text_knows_no_headings():
    assert paths(cut(GUIDE, max_tokens=200)) == [""]


@pytest.mark.parametrize("strategy", ["fixed", "sentence"])
def test_other_strategies_cut_across_headings(strategy):
    first, *_ = cut(GUIDE, max_tokens=20, source_uri="a.md", strategy=strategy)
    assert "## Install" in first.text


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "unit", ["# a\n", "- a\n", "> ", "[", "```\n", "- " * 5, "* a\n  ", "|a|b|\n|-|-|\n", "<div>\n", "a\n---\n", "1. "]
)
def test_a_large_document_takes_seconds_at_most(unit):
    text = (unit * 200_000)[:200_000]
    assert cut(text, max_tokens=254, overlap_tokens=25, source_uri="a.md")


def test_pages_are_parted_by_form_feeds():
    chunks = cut("one two\fthree four\ffive six", max_tokens=2)
    assert [(each.text, each.location.page) for each in chunks] == [
        ("one two", 1),
        ("three four", 2),
        ("five six", 3),
    ]
    assert [each.location.page for each in cut("one two three", max_tokens=2)] == [None, None]
