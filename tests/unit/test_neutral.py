"""Retrieved text in a prompt: data, whatever it says."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from injections import ATTACKS, ISSUED_IDS, Attack

from dats_common.domain.citations import Issued, resolve
from dats_common.domain.neutral import neutralise

ISSUED = Issued.of(ISSUED_IDS)
FULL_WIDTH = {"<": "＜", ">": "＞", "[": "［", "]": "］", "|": "｜", "/": "／", "s": "ｓ", "T": "Ｔ"}
SIGNS = re.compile(
    r"<\|[\w ]+\|>|\[/?INST\]|<</?SYS>>|</?(?:s|think|start_of_turn|end_of_turn)>|<<<(?:end of )?source", re.IGNORECASE
)
TOKENS = [
    "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "[INST]", "[/INST]", "<<SYS>>", "<</SYS>>",
    "<s>", "</s>", "<start_of_turn>", "<end_of_turn>", "<|system|>", "<|user|>", "<|assistant|>", "<think>", "</think>",
]  # fmt: skip
FRAGMENTS = [
    *TOKENS, *ISSUED_IDS, "<", ">", "<<<", ">>>", "|", "[", "]", "source ", "end of ", "SourceId: ", "1", "2, ", " ",
    "\n", "`", ":", "=", "a", "(", ")", "«", "【", "］", "＜", "\u200b", "\u0301", "\ufe0f", "１", "…", "é",
]  # fmt: skip
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join) | st.text()


def told(text: str) -> str:
    """The text as a tokenizer may fold it."""
    return unicodedata.normalize("NFKC", text)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_no_attack_keeps_a_marker_a_delimiter_or_a_control_token(attack: Attack) -> None:
    for text in (attack.retrieved, attack.question, *(content for _, content in attack.history)):
        neutral = neutralise(text)
        assert not SIGNS.search(told(neutral))
        resolved = resolve(neutral, ISSUED)
        assert (resolved.source_ids, resolved.refused) == ((), 0)


@given(texts)
def test_a_neutral_text_holds_no_marker_and_stays_as_it_is(text: str) -> None:
    neutral = neutralise(text)
    assert neutralise(neutral) == neutral
    assert not SIGNS.search(told(neutral))
    resolved = resolve(neutral, ISSUED)
    assert (resolved.source_ids, resolved.refused) == ((), 0)


@pytest.mark.parametrize("token", TOKENS)
def test_a_control_token_is_legible_in_parentheses(token: str) -> None:
    legible = token.translate(str.maketrans("<[>]", "(())"))
    for written in (token, "\u200b".join(token), "".join(FULL_WIDTH.get(sign, sign) for sign in token)):
        assert told(neutralise(f"a {written} b")) == f"a {legible} b"
    assert neutralise(token.upper()) == legible.upper()


@pytest.mark.parametrize(
    ("text", "neutral"),
    [
        ("see [1]", "see (1)"),
        ("[ 12 ], [1, 3] and [2-4]", "( 12 ), (1, 3) and (2-4)"),
        ("[SOURCEID : x]", "(SOURCEID : x)"),
        (f"[SourceId: {ISSUED_IDS[0]}]", f"(SourceId: {ISSUED_IDS[0].replace(':', '_')})"),
        ("［１］", "(１)"),
        ("<<<source 1>>>", "(((source 1)))"),
        ("<<< END OF SOURCE 1 >>>", "((( END OF SOURCE 1 )))"),
    ],
)
def test_what_reads_as_ours_is_put_in_parentheses(text: str, neutral: str) -> None:
    assert neutralise(text) == neutral


@pytest.mark.parametrize(
    "text",
    [
        "a[1] + matrix[10][0] - f(x)[2] * rows['k'][3]",
        "x = [1, 2]; kwargs(default=[0])",
        ">>> print(a[1])\n... [x for x in y]",
        "cout << source << endl; <<<<<<< HEAD\n>>>>>>> branch",
        "[2024-01-15 10:11:12] [ERROR] [ ] [x] [link](https://example.org)",
        "if (a < s > b) xs |> List.map f <| y",
        "<b>bold</b> <source src='a.mp4'> Dict[str, int] naïve 東京 😀 \t\r\n",
    ],
)
def test_code_and_ordinary_brackets_stay(text: str) -> None:
    assert neutralise(text) == text.replace("< s >", "( s )")


@pytest.mark.parametrize(
    "unseen",
    ["\u200b", "\u200d", "\u2066", "\u202e", "\u00ad", "\ufeff", "\U000e0041", "\U000e0100", "\ufe01", "\0", "\ud800"],
)
def test_what_nobody_sees_goes(unseen: str) -> None:
    assert neutralise(f"a{unseen}b") == "ab"


@pytest.mark.parametrize(
    "unit", ["<", "< ", "<|", "<<<source ", "[", "[1,", "[SourceId:", "`", "a", "\u200b", "«", "[ "]
)
def test_a_hundred_thousand_characters_are_no_trouble(unit: str) -> None:
    text = (unit * 100_000)[:100_000]
    assert not SIGNS.search(neutralise(text))
