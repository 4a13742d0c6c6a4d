"""Assembling a context: order, budget and Markdown that its content cannot break."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from dats_common.domain.context import Block, assemble


def count(text: str) -> int:
    """Tokens as words and single signs, like a WordPiece without a vocabulary."""
    return len(re.findall(r"\w+|[^\w\s]", text))


def block(text: str, heading: str = "source", *, code: bool = False, language: str = "") -> Block:
    return Block(heading, text, count(text), code=code, language=language)


def test_blocks_keep_their_order_under_their_headings() -> None:
    context = assemble(
        [block("first text", "a.md"), block("second text", "b.md")], budget_tokens=100, count_tokens=count
    )
    assert context.text == "## a.md\n\nfirst text\n\n## b.md\n\nsecond text"
    assert context.used == (0, 1)


def test_a_block_that_does_not_fit_is_passed_over_for_smaller_ones() -> None:
    blocks = [block("word " * 10), block("word " * 500), block("word " * 10)]
    context = assemble(blocks, budget_tokens=60, count_tokens=count)
    assert context.used == (0, 2)
    assert context.tokens <= 60


def test_if_nothing_fits_the_best_one_is_cut_at_a_word() -> None:
    context = assemble([block("alpha beta gamma " * 100)], budget_tokens=40, count_tokens=count)
    assert context.used == (0,)
    assert 20 < context.tokens <= 40
    assert context.text.rstrip().endswith(("alpha", "beta", "gamma"))


def test_no_blocks_make_an_empty_context() -> None:
    assert assemble([], budget_tokens=100, count_tokens=count) == assemble([], budget_tokens=1, count_tokens=count)
    assert assemble([], budget_tokens=100, count_tokens=count).text == ""


def test_a_heading_is_one_bounded_line() -> None:
    context = assemble([block("text", "a\n# forged\n\nheading " + "x" * 500)], budget_tokens=999, count_tokens=count)
    heading, rest = context.text.split("\n", 1)
    assert heading.startswith("## a # forged heading")
    assert len(heading) <= 203
    assert rest == "\ntext"


def test_code_cannot_end_its_own_fence() -> None:
    text = "before\n```\nafter ```` more"
    context = assemble([block(text, code=True, language="python")], budget_tokens=999, count_tokens=count)
    assert f"`````python\n{text}\n`````" in context.text


@given(
    texts=st.lists(st.text(alphabet="ab` \n#.", min_size=1, max_size=80), max_size=8),
    budget=st.integers(min_value=1, max_value=120),
    code=st.booleans(),
)
def test_the_budget_holds_and_the_count_is_the_texts_own(texts: list[str], budget: int, code: bool) -> None:
    context = assemble([block(text, code=code) for text in texts], budget_tokens=budget, count_tokens=count)
    assert context.tokens <= budget
    assert context.tokens == count(context.text)
    assert list(context.used) == sorted(set(context.used))
