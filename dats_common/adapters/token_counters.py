"""Counting a model's tokens here: Ollama has no call for it, and `num_predict: 0` means without end.

Exact where the model's own `tokenizer.json` is at hand, else an estimate whose margin says what it is worth.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dats_common.domain.tokens import EXACT_MARGIN, CountBasis
from dats_common.errors import ConfigurationError
from dats_common.ports import TokenCounter

ESTIMATE_MARGIN = 0.5
"""Between two thirds of the real count and twice of it.

Source: measured with MiniLM's word pieces against SmolLM2's tokenizer, 49,152 entries that are mostly English. In 3,074
passages of up to 1,500 characters from Python's library and this project's documents 99 of 100 estimates were 0.76 to
1.35 times the count (five, box drawings and tables, below two thirds), in 614 prompts of five such passages all were
0.85 to 1.22. Hexadecimal and figures 0.71, logs 0.76, JSON 0.92, Russian 1.19, Korean 0.79. Outside is what that
vocabulary lacks and larger ones have: Chinese and Japanese 0.52 to 0.60, emoji 0.53; at a token for 1.3 to 1.8 Chinese
characters, as others report of Qwen's, it is 1.4 to 1.9. Where a prompt is larger than it seems and does not fit, the
model server refuses it; it is not cut.
"""

# Tokens a character or byte, fitted to those texts. Digits mostly stand alone, letters come in pieces of three or four,
# and the three bytes of a Chinese character are from half a token to two.
_A_LETTER = 1 / 3.5
_A_DIGIT = 0.85
_A_FOREIGN_BYTE = 0.35
_A_LINE_BREAK = 0.5

_RUN = re.compile(r"(.)\1{3,}", re.DOTALL)
_DIGIT, _SPACE, _LINE_BREAKS = (re.compile(pattern) for pattern in (rb"[0-9]", rb"\s", rb"\n+"))


@dataclass(frozen=True, slots=True)
class _Exact:
    """A model's own tokenizer, of the `tokenizers` library."""

    tokenizer: Any
    basis: CountBasis


class LocalTokenCounter:
    """Implements `ports.TokenCounter`; made by `build_token_counter`."""

    def __init__(self, exact: Mapping[str, _Exact], *, estimate: Callable[[str], int]) -> None:
        self._exact = exact
        self._estimate = estimate

    def count(self, text: str, *, model: str) -> int:
        """See `ports.TokenCounter`."""
        text = text.encode(errors="replace").decode()  # a lone surrogate is no text for a tokenizer
        exact = self._exact.get(model)
        if exact is None:
            return _estimated(text, self._estimate)
        return len(exact.tokenizer.encode(text, add_special_tokens=False).ids)

    def basis(self, model: str) -> CountBasis:
        """See `ports.TokenCounter`."""
        exact = self._exact.get(model)
        return CountBasis("estimate", ESTIMATE_MARGIN) if exact is None else exact.basis


def build_token_counter(tokenizers: Mapping[str, Path], *, estimate: Callable[[str], int]) -> TokenCounter:
    """A counter for every model: exact for those with a tokenizer, estimated for all others.

    Args:
        tokenizers: the `tokenizer.json` of a model, by the model's name.
        estimate: word pieces of a text by any tokenizer that is there, such as the encoder's.

    Raises: ConfigurationError: a file that is no tokenizer.
    """
    return LocalTokenCounter({model: _load(model, path) for model, path in tokenizers.items()}, estimate=estimate)


def _estimated(text: str, pieces: Callable[[str], int]) -> int:
    """The larger of two views: an English vocabulary knows words, characters know what is none."""
    text = _RUN.sub(r"\1\1", text)  # rules, indentation and padding are few tokens however long
    ascii_only = text.encode("ascii", "ignore")
    foreign_bytes = len(text.encode()) - len(ascii_only)
    digits, spaces = (len(pattern.findall(ascii_only)) for pattern in (_DIGIT, _SPACE))
    characters = (len(ascii_only) - digits - spaces) * _A_LETTER + digits * _A_DIGIT + foreign_bytes * _A_FOREIGN_BYTE
    return round(max(characters, pieces(text)) + len(_LINE_BREAKS.findall(ascii_only)) * _A_LINE_BREAK)


def _load(model: str, path: Path) -> _Exact:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ConfigurationError(
            f"answers.models: the tokenizer of {model}, {path}, cannot be read: {error}"
        ) from error
    # What the file asks for is meant for training: a text counts whole, and only itself.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return _Exact(tokenizer, CountBasis(path.name, EXACT_MARGIN))
