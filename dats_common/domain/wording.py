"""What of a question's words says nothing among the documents that it is asked of. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from dats_common.domain.chunking.profiles import language_of

_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "python": r"python(?: ?[23](?:\.\d{1,2})?)?|py",
        "javascript": "javascript|js",
        "typescript": "typescript|ts",
        "tsx": "typescript|tsx",
        "go": "golang|go",
        **{name: name for name in ("rust", "java", "sql", "bash", "kotlin", "php", "ruby", "scala", "swift")},
    }
)
"""What a language is called in a question, as a pattern for lower case."""
_WORDS_TOO = r"go\b|swift\b|rust\b"
"""Names that are words of English: they mean the language only behind a preposition."""
_BEHIND = "(?:in|with|using|via|from)"
_PUNCTUATION_LEFT = re.compile(r" ?\( ?\)|^ ?(?:[-,:;] )+| (?=[?!.,:;)](?!\S))")


def without_language(question: str, *, domain: str | None) -> str:
    """The question without the name of the language that all documents of its domain are in (`code-python`).

    Among them the name tells nothing, while to an encoder it is as good a word as any: it draws the question to the
    documents that are about the language itself (docs/retrieval.md has what that costs). Names in quotes, in paths and
    in names of packages stay, and so does a question that has no other word.
    """
    pattern = _language_pattern(language_of(domain or ""))
    if pattern is None or not pattern.search(question):
        return question
    blanked = re.sub(r"\s+", " ", pattern.sub(" ", question))
    rest = _PUNCTUATION_LEFT.sub("", blanked).strip()
    return rest if re.search(r"\w", rest) else question


@lru_cache(maxsize=64)  # the domain is the caller's: without a bound its names would be kept for good
def _language_pattern(language: str) -> re.Pattern[str] | None:
    if language not in _NAMES:
        return None
    apart = r"(?<![\w./\\`'\"@#+-])"  # neither part of a longer name nor quoted
    name = rf"(?:{_NAMES[language]})(?:'s)?(?![\w/\\`'\"@#+-]|\.\w)"
    return re.compile(rf"(?i:{apart}{_BEHIND}\s{name}|{apart}(?!{_WORDS_TOO}){name})")
