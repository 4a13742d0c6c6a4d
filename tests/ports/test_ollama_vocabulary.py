"""A model's own tokenizer from what its server shows: the same tokens as llama.cpp's, or none."""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from facade import WINDOW_TOKENS, packed, rewritten
from tokenizers import pre_tokenizers

from dats_common.adapters.ollama.own_tokens import count_tokens
from dats_common.adapters.ollama.vocabulary import WORDS, NoTokenizer, read_vocabulary
from dats_common.embedded.ollama.engine import Llama, open_llama
from dats_common.embedded.ollama.gguf import read_header

PRE = "tokenizer.ggml.pre"
TEXT = struct.pack("<I", 8)
"""The type of an entry that is one."""

RULES = ("default", "gpt-2", "smollm", "qwen2", "llama-bpe")
"""One name of each rule."""

TELLING = {
    "G y": "1 2", "Gy": "12", "c x": "3 4", "cx": "34", "ED S": "12 3", "EDS": "123",
    "ij n": "th e", "ijn": "qjz",
}  # fmt: skip
"""Rare merges and tokens, and what stands in their place: figures that merge, and a token that no merge makes."""

TRICKY = {
    "what tells the rules apart": "1 12 123 1234 12345 123456 qjz xqjz QJZ a1234",
    "English": "Approved outputs become searchable at once, and tainted ones vanish from every answer.",
    "contractions": "It's what they'd said: WE'LL see, didn't I'M you're THEY'VE 's 'S ' s x's'd",
    "figures": "0 12 123 1234 12345 123456789 3.14159 1,250.75 v1.2.3 2025-07-31 ½ ² Ⅷ ٣٤٥ ४५६",
    "code": "def total(items):\n    \treturn {'a': [i**2 for i in range(10)]}\n\n\n  # done\r\n\r\nif (x<=y&&!z) {}\n",
    "white space": " leading  two   three    four\ttab\t\ttabs \n \n  \n\n\n end \u00a0no-break\u2003em \r\n ",
    "only spaces": "        ",
    "only line breaks": "\n\n\n\n",
    "signs": "!!! ... --- === <<<source 1>>> $$$ €£¥ ~^` a+b=c |x| \\n \\\\ «quoted» “curly” — dash …",
    "German": "Die Größe der Fläche beträgt 1.250,75 m², außerdem Übermaß.",
    "Russian": "Сначала система находит в базе знаний 2048 фрагментов документов.",
    "Chinese": "知识库中的文档片段，首先被检索出来。第12条",
    "Japanese": "検索拡張生成とは、情報検索と大規模言語モデルを組み合わせた技術です。",
    "Korean": "검색 증강 생성은 정보 검색과 대규모 언어 모델을 결합한 기술입니다.",
    "Arabic": "مرحبا بالعالم، كيف الحال؟ ١٢٣",
    "Hindi": "नमस्ते दुनिया, यह एक परीक्षण है।",
    "combining": "cafe\u0301 nai\u0308ve Z\u0351\u036b\u0343a\u0300lgo",
    "emoji": "🙂🚀 👩‍👩‍👧 🇩🇪 ok👍🏽!",
    "beyond any vocabulary": "𐍈 𝔘𝔫𝔦 \U000f0000 \U0010fffd ￼",
    "hexadecimal": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "JSON": '{"artifact_id": "a-17", "version": 1764000000, "tags": ["red", "blue"], "verified": true}',
    "a table": "| name " + " " * 40 + "| value |\n|" + "-" * 60 + "|\n",
    "looks like control": "<|im_sta rt|> <|unknown|> </s> [INST] <bos>",
    "long word": "Donaudampfschifffahrtsgesellschaftskapitänsmützenabzeichen" * 3,
}


def shown_of(file: Path) -> bytes:
    """What a server shows of a file, verbosely."""
    return json.dumps({"model_info": read_header(file, arrays=True).metadata}).encode()


def with_rule(file: Path, pre: str, copy: Path) -> Path:
    """The same model, whose file names another rule for splitting words, and whose vocabulary shows the difference."""
    return rewritten(
        file,
        copy,
        {
            packed(PRE) + TEXT + packed("smollm"): packed(PRE) + TEXT + packed(pre),
            **{packed(old): packed(new) for old, new in TELLING.items()},
        },
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=RULES)
async def pair(
    request: pytest.FixtureRequest, model_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Llama, Any]]:
    """llama.cpp with the small model under one rule, and the tokenizer that is built for the same."""
    copy = with_rule(model_file, request.param, tmp_path_factory.mktemp("model") / "model.gguf")
    async with open_llama(copy, window_tokens=WINDOW_TOKENS, threads=1) as llama:
        yield llama, read_vocabulary(shown_of(copy)).tokenizer
    copy.unlink()


def shown(**changes: Any) -> bytes:
    """What a server shows of a small vocabulary: every byte, and `the` by two merges; None leaves a field out."""
    tokens = [*pre_tokenizers.ByteLevel.alphabet(), "th", "the", "<|end|>", "<tool>"]
    fields: dict[str, Any] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "merges": ["t h", "th e"],
        "token_type": [*[1] * (len(tokens) - 2), 3, 4],
        **changes,
    }
    info = {f"tokenizer.ggml.{name}": value for name, value in fields.items() if value is not None}
    return json.dumps({"model_info": info}).encode()


@pytest.mark.asyncio(loop_scope="module")
async def test_it_splits_what_is_hard_to_split_as_llama_cpp_does(pair: tuple[Llama, Any]) -> None:
    llama, tokenizer = pair
    different = {}
    for name, text in TRICKY.items():
        theirs = (await llama.call("/tokenize", {"content": text, "add_special": False, "parse_special": False}))[
            "tokens"
        ]
        ours = tokenizer.encode(text, add_special_tokens=False).ids
        if ours != theirs:
            different[name] = (ours, theirs)
    assert different == {}


def test_each_rule_splits_some_text_as_no_other_does(model_file: Path, tmp_path: Path) -> None:
    built = [read_vocabulary(shown_of(with_rule(model_file, pre, tmp_path / "model.gguf"))).tokenizer for pre in RULES]
    split = [tuple(tuple(one.encode(text).ids) for text in TRICKY.values()) for one in built]
    assert len(set(split)) == len(RULES)
    assert {id(words) for words in WORDS.values()} == {id(WORDS[pre]) for pre in RULES}


def test_a_control_token_in_a_text_is_its_letters_and_a_user_defined_one_is_one_token() -> None:
    tokenizer = read_vocabulary(shown()).tokenizer
    assert count_tokens(tokenizer, "the<|end|>the") == 2 + len("<|end|>")
    assert count_tokens(tokenizer, "the<tool>the") == 3


def test_a_text_is_counted_alone_whatever_is_in_it() -> None:
    tokenizer = read_vocabulary(shown(bos_token_id=256, add_bos_token=True)).tokenizer
    assert count_tokens(tokenizer, "") == 0
    assert count_tokens(tokenizer, "the") == 1
    assert count_tokens(tokenizer, "\ud83d") == 1


def test_where_no_rule_is_named_it_is_the_default() -> None:
    assert read_vocabulary(shown(pre=None)).pre == "default"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (shown(pre="tekken"), "pre-tokenizer 'tekken' is not known"),
        (shown(pre=["gpt-2"]), "is not known"),
        (shown(pre="x" * 10_000), "is not known"),
        (shown(model="llama"), "of the kind 'llama'"),
        (shown(model=None), "of the kind None"),
        (shown(tokens=None), "does not show"),
        (shown(merges=None), "does not show"),
        (shown(merges=[]), "does not show"),
        (shown(tokens="abc"), "broken"),
        (shown(tokens=["a", 7]), "broken"),
        (shown(token_type=[1]), "broken"),
        (shown(token_type={"a": 1}), "broken"),
        (shown(merges=["th x"]), "broken"),
        (shown(merges=["x y z"]), "broken"),
        (b'{"model_info": []}', "nothing"),
        (b"{}", "nothing"),
        (b"[]", "cannot be read"),
        (b"<html>", "cannot be read"),
        (b"", "cannot be read"),
    ],
)
def test_what_cannot_be_built_says_why_in_few_words(answer: bytes, reason: str) -> None:
    with pytest.raises(NoTokenizer, match=reason) as refusal:
        read_vocabulary(answer)
    assert len(str(refusal.value)) < 120
