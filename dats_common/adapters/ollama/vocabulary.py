"""From what `/api/show` says of a model's vocabulary to its tokenizer. Pure.

Byte-level BPE only: what is in the answer fixes it, but for the rule that splits text into words, which is known by
name. Control tokens are left out: they are the template's, and a text that spells one is counted as its letters.

Source: llama.cpp, src/llama-vocab.cpp: the rules by the name in `tokenizer.ggml.pre`, and which kinds of tokens are
looked for in text; the GGUF specification for the names of the fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dats_common.adapters.ollama.wire import read_object
from dats_common.errors import LLMConnectionError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MOST_TOKENS = 1_000_000
"""The largest vocabularies have 300,000, and twice as many merges."""

_BYTE_LEVEL_BPE = "gpt2"
_USER_DEFINED = 4
"""Looked for in any text. Source: llama.cpp, `llama_token_type`; control tokens are 3."""

_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_ANY_CASE = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS_AND_SPACES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class _Words:
    """How text is split before merging.

    Attributes:
        patterns: applied in turn, each to what those before it left in one piece.
        whole_words: a word that is a token is that token, whatever the merges make of it.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False


_DEFAULT = _Words((r"[\p{P}\$\+<=>\^~\|]+", _GPT_2, r"\p{N}+", r"[0-9][0-9][0-9]"))
_OF_GPT_2 = _Words((_GPT_2,))
_OF_SMOLLM = _Words((r"\p{N}", _GPT_2))
_OF_QWEN_2 = _Words((rf"{_ANY_CASE}|\p{{N}}|{_SIGNS_AND_SPACES}",))
_OF_LLAMA_3 = _Words((rf"{_ANY_CASE}|\p{{N}}{{1,3}}|{_SIGNS_AND_SPACES}",), whole_words=True)

WORDS: Mapping[str, _Words] = {
    "default": _DEFAULT,
    "gpt-2": _OF_GPT_2, "phi-2": _OF_GPT_2, "mpt": _OF_GPT_2, "olmo": _OF_GPT_2, "jais": _OF_GPT_2,
    "smollm": _OF_SMOLLM, "starcoder": _OF_SMOLLM, "refact": _OF_SMOLLM, "command-r": _OF_SMOLLM,
    "codeshell": _OF_SMOLLM, "exaone": _OF_SMOLLM,
    "qwen2": _OF_QWEN_2, "deepseek-r1-qwen": _OF_QWEN_2, "stablelm2": _OF_QWEN_2,
    "llama-bpe": _OF_LLAMA_3, "llama3": _OF_LLAMA_3, "llama-v3": _OF_LLAMA_3, "falcon3": _OF_LLAMA_3,
}  # fmt: skip
"""By `tokenizer.ggml.pre`."""


class NoTokenizer(Exception):
    """The model's own tokenizer cannot be had; the message says why, and stays so for this version of the model."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A model's own tokenizer, and the name of the rule by which it splits words."""

    tokenizer: Tokenizer
    pre: str


def read_vocabulary(shown: bytes) -> Vocabulary:
    """The tokenizer that a verbose answer of `/api/show` describes. Takes about a second of a core.

    Raises: NoTokenizer.
    """
    try:
        info = read_object(shown).get("model_info")
    except LLMConnectionError:
        raise NoTokenizer("what the model server shows of the model cannot be read") from None
    if not isinstance(info, dict):
        raise NoTokenizer("the model server shows nothing of the model's vocabulary")
    kind, pre = (info.get(f"tokenizer.ggml.{name}") for name in ("model", "pre"))
    if kind != _BYTE_LEVEL_BPE:
        raise NoTokenizer(f"a tokenizer of the kind {_named(kind)} is not built here")
    pre = "default" if pre is None else pre
    if not isinstance(pre, str) or pre not in WORDS:
        raise NoTokenizer(f"the pre-tokenizer {_named(pre)} is not known")
    tokens, merges = _texts(info, "tokens"), _texts(info, "merges")
    kinds = info.get("tokenizer.ggml.token_type") or []
    if not isinstance(kinds, list) or len(kinds) not in (0, len(tokens)):
        raise NoTokenizer("the vocabulary is broken: it has not one type for each token")
    user_defined = [token for token, kind in zip(tokens, kinds, strict=False) if kind == _USER_DEFINED]
    return Vocabulary(_build(tokens, merges, user_defined, WORDS[pre]), pre)


def _texts(info: Mapping[str, Any], name: str) -> list[str]:
    values = info.get(f"tokenizer.ggml.{name}")
    if not values:  # an old server does not know `verbose`, and says null
        raise NoTokenizer("the model server does not show the model's vocabulary")
    if not isinstance(values, list) or len(values) > MOST_TOKENS or not all(type(each) is str for each in values):
        raise NoTokenizer(f"the vocabulary is broken: its {name} cannot be read")
    return values


def _build(tokens: list[str], merges: list[str], user_defined: list[str], words: _Words) -> Tokenizer:
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

    pairs = [(merge[:split], merge[split + 1 :]) for merge in merges if (split := merge.find(" ", 1)) > 0]
    try:
        model = models.BPE(
            vocab={token: number for number, token in enumerate(tokens)},
            merges=pairs,
            ignore_merges=words.whole_words,
        )
    except Exception:  # the library raises nothing narrower; its words hold the token
        raise NoTokenizer("the vocabulary is broken: a merge makes what is no token") from None
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in words.patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in user_defined if token])
    return tokenizer


def _named(value: object) -> str:
    """A server's word in ours: short, and nothing in it that a log or a column could stumble over."""
    return ascii(value)[:40]
