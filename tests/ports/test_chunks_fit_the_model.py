"""No chunk is longer than the model reads, by the model's own tokenizer over the chunk alone."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable
from hashlib import sha512

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import BertWordPieceTokenizer

from dats_common.adapters.encoder_openvino.encoder import VOCABULARY
from dats_common.adapters.encoder_openvino.spans import Spans
from dats_common.domain.chunking import Chunker, Strategy
from dats_common.domain.model import Chunk, SourceMetadata

Tokenize = Callable[[str], Spans]

_UNBROKEN = st.text(alphabet="abcdefghXYZ0123456789+/=_", min_size=60, max_size=400)
_PARTS = st.lists(
    st.one_of(
        _UNBROKEN,
        st.text(max_size=30),
        st.sampled_from(["word ", "\n\n", "你好", "é", "end. ", "x" * 99, " " * 150, f"{'0a9f' * 32}\n"]),
    ),
    max_size=60,
)


@pytest.fixture(scope="module")
def tokenize() -> Tokenize:
    tokenizer = BertWordPieceTokenizer(str(VOCABULARY), lowercase=True)
    return lambda text: tuple(tokenizer.encode(text, add_special_tokens=False).offsets)


def cut(
    text: str, tokenize: Tokenize, *, window: int, overlap: int, strategy: Strategy = "semantic"
) -> tuple[Chunk, ...]:
    """Every chunk within the window, and saying at least what it has."""
    chunker = Chunker(tokenize, window, max_tokens=window, overlap_tokens=overlap, strategy=strategy)
    chunks = tuple(chunker.cut(text, SourceMetadata("p")))
    for chunk in chunks:
        assert len(tokenize(chunk.text)) <= chunk.token_count <= window, chunk.text
    return chunks


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
    chunks = cut(text, tokenize, window=window, overlap=overlap, strategy=strategy)
    assert len(chunks) <= 2 + 8 * len(text) / window  # a token has a character at least


def test_unbroken_lines_of_any_alphabet_fit_the_window(tokenize: Tokenize) -> None:
    noise = random.Random(7)
    encoded = base64.b64encode(noise.randbytes(60_000)).decode()
    digits = "".join(noise.choice("0123456789abcdef") for _ in range(40_000))
    lines = "\n".join(encoded[start : start + 95] for start in range(0, len(encoded), 95))
    for text in (encoded, encoded.replace("+", "A").replace("/", "B"), digits, lines, "a" * 30_000, "語" * 3_000):
        assert cut(text, tokenize, window=254, overlap=25)


@pytest.mark.parametrize("window", [16, 24, 32, 48, 254])
def test_lines_without_a_blank_are_no_more_chunks_than_they_need(tokenize: Tokenize, window: int) -> None:
    lines = "\n".join(sha512(str(number).encode()).hexdigest() for number in range(100))
    chunks = cut(lines, tokenize, window=window, overlap=window // 10)
    assert len(chunks) <= 2 * len(lines) / window


def test_prose_beside_unbroken_words_is_cut_between_words(tokenize: Tokenize) -> None:
    noise = random.Random(11)
    words = ["approved", "reimbursements", "settle", "invoices", "before", "travellers", "depart"]
    sentences = []
    for _ in range(400):
        sentence = noise.choices(words, k=12)
        if noise.random() < 0.3:
            sentence.insert(6, "".join(noise.choices("0123456789abcdef", k=noise.randint(101, 300))))
        sentences.append(" ".join(sentence) + ".")
    text = " ".join(sentences)
    for chunk in cut(text, tokenize, window=254, overlap=25):
        for end, beyond in ((chunk.char_start, chunk.char_start - 1), (chunk.char_end - 1, chunk.char_end)):
            if 0 <= beyond < len(text):
                assert not (text[end] in "lmopstuv" and text[beyond] in "lmopstuv"), chunk.text
