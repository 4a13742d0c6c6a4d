"""Token spans that are put together word by word, against the tokenizer over the whole text."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import BertWordPieceTokenizer

from dats_common.adapters.encoder_openvino.encoder import VOCABULARY
from dats_common.adapters.encoder_openvino.spans import Spans, WordSpans

_WORDS = st.sampled_from(
    ["get_user_id", "Größe", "don't", "[SEP]", "x" * 70, "x" * 101, "\u4f60\u597d", "e\u0301", "\U0001f600"]
)
_TEXTS = st.lists(st.one_of(st.text(max_size=12), _WORDS, st.sampled_from([" ", "\n", "\t", "\u00a0", "\u2028", "\0"])))


@pytest.fixture(scope="module")
def whole() -> Callable[[str], Spans]:
    """The library, over all of a text at once."""
    tokenizer = BertWordPieceTokenizer(str(VOCABULARY), lowercase=True)
    return lambda text: tuple(tokenizer.encode(text, add_special_tokens=False).offsets)


@given(parts=_TEXTS, joint=st.sampled_from(["", " ", "\r\n"]))
@example(parts=["\u0301", "a", "\u0301"], joint=" ")
@settings(max_examples=500, deadline=None)
def test_the_words_together_have_the_spans_of_the_text(
    whole: Callable[[str], Spans], parts: list[str], joint: str
) -> None:
    text = joint.join(parts).encode(errors="replace").decode()
    spans = WordSpans(whole)
    for _ in range(2):  # asked again, every word is known
        assert spans.of(text) == list(whole(text))


def test_a_word_is_given_to_the_tokenizer_once(whole: Callable[[str], Spans]) -> None:
    asked: list[str] = []

    def count(text: str) -> Spans:
        asked.append(text)
        return whole(text)

    spans = WordSpans(count)
    assert len(spans.of("one two one")) == len(spans.of("two two one")) == 3
    assert sorted(asked) == ["one", "two"]


def test_what_is_kept_is_bounded(whole: Callable[[str], Spans], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dats_common.adapters.encoder_openvino.spans._MOST_WORDS", 3)
    asked: list[str] = []

    def count(text: str) -> Spans:
        asked.append(text)
        return whole(text)

    spans = WordSpans(count)
    long = "x" * 1000
    assert spans.of(f"a b c d {long} {long} d") == list(whole(f"a b c d {long} {long} d"))
    assert asked == ["a", "b", "c", "d", long, long]
