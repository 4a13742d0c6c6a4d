"""No chunk is longer than the model reads, by the model's own tokenizer over the chunk alone."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import BertWordPieceTokenizer

from dats_common.adapters.encoder_openvino.encoder import VOCABULARY
from dats_common.adapters.encoder_openvino.spans import Spans
from dats_common.domain.chunking import Chunker, Strategy
from dats_common.domain.model import SourceMetadata

Tokenize = Callable[[str], Spans]

_UNBROKEN = st.text(alphabet="abcdefghXYZ0123456789+/=_", min_size=60, max_size=400)
_PARTS = st.lists(
    st.one_of(_UNBROKEN, st.text(max_size=30), st.sampled_from(["word ", "\n\n", "你好", "é", "end. ", "x" * 99])),
    max_size=60,
)


@pytest.fixture(scope="module")
def tokenize() -> Tokenize:
    tokenizer = BertWordPieceTokenizer(str(VOCABULARY), lowercase=True)
    return lambda text: tuple(tokenizer.encode(text, add_special_tokens=False).offsets)


def longest(text: str, tokenize: Tokenize, *, window: int, overlap: int, strategy: Strategy = "semantic") -> int:
    """Tokens; every chunk says at least what it has."""
    chunker = Chunker(tokenize, window, max_tokens=window, overlap_tokens=overlap, strategy=strategy)
    most = 0
    for chunk in chunker.cut(text, SourceMetadata("p")):
        found = len(tokenize(chunk.text))
        assert found <= chunk.token_count
        most = max(most, found)
    return most


@given(
    text=_PARTS.map("".join),
    sizes=st.integers(4, 60).flatmap(lambda most: st.tuples(st.just(most), st.integers(0, most // 2))),
    strategy=st.sampled_from(["fixed", "sentence", "semantic"]),
)
@settings(max_examples=300, deadline=None)
def test_no_chunk_is_longer_than_the_window(
    tokenize: Tokenize, text: str, sizes: tuple[int, int], strategy: Strategy
) -> None:
    window, overlap = sizes
    assert longest(text, tokenize, window=window, overlap=overlap, strategy=strategy) <= window


def test_unbroken_lines_of_any_alphabet_fit_the_window(tokenize: Tokenize) -> None:
    noise = random.Random(7)
    encoded = base64.b64encode(noise.randbytes(60_000)).decode()
    digits = "".join(noise.choice("0123456789abcdef") for _ in range(40_000))
    lines = "\n".join(encoded[start : start + 95] for start in range(0, len(encoded), 95))
    for text in (encoded, encoded.replace("+", "A").replace("/", "B"), digits, lines, "a" * 30_000, "語" * 3_000):
        assert longest(text, tokenize, window=254, overlap=25) <= 254
