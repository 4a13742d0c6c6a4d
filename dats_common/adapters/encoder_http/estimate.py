"""Where a model's tokens may lie, without its tokenizer: no server tells that. Rather too many than too few. Pure."""

from __future__ import annotations

import re

LETTERS = 3
"""ASCII letters of one token; every other visible character is a token by itself, or several.

Source: measured with the tokenizers cl100k, o200k, DeepSeek's, Claude's and MiniLM's word pieces on chunks of 500 such
tokens. In 4,869 of Python's library a tokenizer counted .65 to .78 of them on average, and more than all of them in 25
(ROT13, tables of locales, dumps of pickles). This project's pages: .65 to .72, at most .90. Logs and hexadecimal .55
to .82; Chinese, Japanese and Korean .27 to .86, Russian .27 to .96. More than all of them have Greek, Hebrew and
Finnish by some of the tokenizers (1.10 to 1.27), base64 (1.24 to 1.40) and random letters (1.42 to 1.68).
"""

MOST_A_CHARACTER = 3

_TOKEN = re.compile(rf"[A-Za-z]{{1,{LETTERS}}}|[^\sA-Za-z]")


def token_spans(text: str) -> list[tuple[int, int]]:
    """Character spans of the estimated tokens; those of one character share its span.

    A piece of a text that is cut between two of them has the same ones as in the whole text.
    """
    return [match.span() for match in _TOKEN.finditer(text) for _ in range(_tokens(match[0][0]))]


def _tokens(character: str) -> int:
    """Of a stretch that starts with it: of three and four bytes of UTF-8 two and three are believed to be tokens."""
    return 1 if character <= "\u07ff" else 2 if character <= "\uffff" else MOST_A_CHARACTER
