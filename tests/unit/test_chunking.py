import re
from itertools import pairwise

import pytest
from growth import assert_grows_linearly
from hypothesis import given
from hypothesis import strategies as st

from dats_common.domain.chunking import Chunker, within_window
from dats_common.domain.chunking.packing import PIECE, WIDEST_TOKEN, Limits
from dats_common.domain.model import SourceMetadata

STRATEGIES = ["fixed", "sentence", "semantic"]


def words(text):
    """Spans as a word tokenizer gives them: punctuation alone, long words in pieces."""
    return [match.span() for match in re.finditer(r"\w{1,6}|[^\w\s]", text)]


def cut(text, *, max_tokens=8, overlap_tokens=0, strategy="semantic", spans=None):
    chunker = Chunker(
        token_spans=words if spans is None else lambda _: spans,
        window_tokens=max_tokens,
        max_tokens=max_tokens,
        overlap_tokens=overlap_tokens,
        strategy=strategy,
    )
    return chunker.cut(text, SourceMetadata("p"))


def texts(chunks):
    return [each.text for each in chunks]


def uncovered(text, chunks):
    covered = set()
    for each in chunks:
        covered.update(range(each.char_start, each.char_end))
    return [position for position, letter in enumerate(text) if not letter.isspace() and position not in covered]


limits = st.integers(1, 40).flatmap(lambda most: st.tuples(st.just(most), st.integers(0, most // 2)))
prose = st.lists(st.sampled_from([*"ab cd.\n!é語\0😀_(", "\n\n", "word ", "end. "]), max_size=200).map("".join)


@given(text=prose | st.text(), limits=limits, strategy=st.sampled_from(STRATEGIES))
def test_chunks_are_slices_that_cover_every_visible_character_within_the_limit(text, limits, strategy):
    most, overlap = limits
    chunks = cut(text, max_tokens=most, overlap_tokens=overlap, strategy=strategy)
    assert uncovered(text, chunks) == []
    for number, each in enumerate(chunks):
        assert each.index == number
        assert each.text == text[each.char_start : each.char_end] == each.text.strip() != ""
        assert 1 <= each.token_count <= most
    assert chunks == cut(text, max_tokens=most, overlap_tokens=overlap, strategy=strategy)


@given(
    text=st.text(min_size=1),
    marks=st.lists(st.integers(0, 400), max_size=60),
    limits=limits,
    strategy=st.sampled_from(STRATEGIES),
)
def test_any_ordered_spans_lose_nothing_and_end(text, marks, limits, strategy):
    """Tokens that share characters, that are empty, and gaps between them: whatever a tokenizer does."""
    edges = sorted(min(mark, len(text)) for mark in marks)
    spans = [(start, min(start + 3, len(text))) for start in edges]
    most, overlap = limits
    chunks = cut(text, spans=spans, max_tokens=most, overlap_tokens=overlap, strategy=strategy)
    assert uncovered(text, chunks) == []
    assert all(each.text == text[each.char_start : each.char_end] for each in chunks)


@given(text=prose, limits=limits, strategy=st.sampled_from(STRATEGIES))
def test_a_continued_chunk_repeats_no_more_than_the_overlap(text, limits, strategy):
    most, overlap = limits
    spans = words(text)
    chunks = cut(text, max_tokens=most, overlap_tokens=overlap, strategy=strategy)
    for before, after in pairwise(chunks):
        shared = [span for span in spans if after.char_start <= span[0] < before.char_end]
        assert len(shared) <= overlap


def test_overlap_is_as_asked_where_words_allow_it():
    chunks = cut("a b c d e f g h i j k l", max_tokens=6, overlap_tokens=2, strategy="fixed")
    assert texts(chunks) == ["a b c d e f", "e f g h i j", "i j k l"]


def test_a_fixed_chunk_ends_with_a_whole_word():
    assert texts(cut("one two internationalisation six", max_tokens=4, strategy="fixed")) == [
        "one two",
        "internationalisation",
        "six",
    ]


def test_a_word_longer_than_a_chunk_is_cut():
    assert texts(cut("abcdefghijklmnop", max_tokens=1)) == ["abcdef", "ghijkl", "mnop"]


def test_sentences_end_chunks_when_asked():
    text = "It ran well. They said so. (Did it?) Then we went on to see."
    assert texts(cut(text, max_tokens=9, strategy="sentence")) == [
        "It ran well. They said so.",
        "(Did it?)",
        "Then we went on to see.",
    ]


def test_full_width_sentences_end_without_a_space():
    text = "語語語。語語語語語語"
    spans = [(position, position + 1) for position in range(len(text))]
    assert texts(cut(text, spans=spans, max_tokens=8, strategy="sentence"))[0] == "語語語。"


def test_a_semantic_chunk_prefers_a_blank_line_to_a_line_to_a_sentence():
    assert texts(cut("a b c.\n\nd e.\nf g. h i", max_tokens=10))[0] == "a b c."
    assert texts(cut("a b c. d e\nf g. h i j", max_tokens=10))[0] == "a b c. d e"
    assert texts(cut("a b c. d e f g. h i", max_tokens=10))[0] == "a b c. d e f g."


def test_a_blank_line_too_early_does_not_make_a_sliver():
    text = "x\n\n" + " ".join("abcdefghijklmnopqrstuvw")
    first, *_ = cut(text, max_tokens=16)
    assert first.token_count >= 4


def test_a_text_that_fits_is_one_chunk():
    assert texts(cut("  a b\n\nc d.  \n", max_tokens=8)) == ["a b\n\nc d."]


@pytest.mark.parametrize("text", ["", " ", "\n\t\r\n\u3000"])
def test_a_text_without_visible_characters_has_no_chunks(text):
    assert cut(text) == []


@pytest.mark.parametrize("text", ["😀", " \u0301 ", "\0", "\u200b"])
def test_visible_characters_without_tokens_make_one_chunk(text):
    assert len(cut(text, spans=[])) == 1


def test_a_token_of_a_thousand_characters_counts_as_many():
    text = "x" * 1000
    chunks = cut(text, spans=[(0, 1000)], max_tokens=100)
    assert [each.char_end for each in chunks] == [400, 800, 1000]
    assert 1000 > WIDEST_TOKEN > PIECE


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("unit", ["a", "word ", "\n", "a.\n\n", "語", "\0", "😀 "])
def test_time_grows_with_the_text_and_chunks_stay_short_whatever_it_is(unit, strategy):
    longest = []

    def chunked(text):
        chunks = cut(text, max_tokens=254, overlap_tokens=50, strategy=strategy)
        longest.append(max((len(each.text) for each in chunks), default=0))

    assert_grows_linearly(chunked, (unit * 1_000_000)[:1_000_000])
    assert max(longest) <= 254 * WIDEST_TOKEN


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ((0, 0), "cannot cut"),
        ((8, -1), "cannot cut"),
        ((8, 5), "cannot cut"),
        ((8, 4, 9), "the least is above the most"),
        ((8, 4, 8, 5), "the least is above the most"),
    ],
)
def test_impossible_limits_are_refused(limits, why):
    with pytest.raises(ValueError, match=why):
        Limits(*limits)


@pytest.mark.parametrize(
    ("size", "overlap", "window", "expected"),
    [
        (500, 50, 254, (254, 25)),  # both shrink alike
        (200, 20, 254, (200, 20)),  # what fits stays
        (500, 499, 100, (100, 50)),  # never more than half
        (500, 0, 254, (254, 0)),
    ],
)
def test_a_small_window_shrinks_chunk_and_overlap_alike(
    size: int, overlap: int, window: int, expected: tuple[int, int]
) -> None:
    assert within_window(max_tokens=size, overlap_tokens=overlap, window_tokens=window) == expected
