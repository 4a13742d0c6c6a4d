"""What of a question's words says nothing among the documents that it is asked of. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from dats_common.domain.chunking.profiles import language_of

_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "python": "python|py",
        "javascript": "javascript|js",
        "typescript": "typescript|ts",
        "tsx": "typescript|tsx",
        "go": "golang|go",
        **{name: name for name in ("rust", "java", "sql", "bash", "kotlin", "php", "ruby", "scala", "swift")},
    }
)
"""What a language is called in a question, as a pattern for lower case."""

_VERSION = r"(?: ?\d(?:\.\d{1,2})?)?"
_WORDS_TOO = frozenset({"go", "rust", "swift"})
"""Words of English as well: they mean the language only behind a preposition, at the end of a clause."""
_OTHERS = r"and|or|vs\.?|versus|than"
_ABOUT_IT = (
    rf"(?:\d|(?:{_OTHERS}|to|versions?|interpreter|shell|console|prompt|executable|installation|environment|path|"
    r"script|server|injection)\b)"
)
"""Behind the name: the language itself is asked about."""
_MEANT = rf"{_OTHERS}|to|from|of|for|is|the|an?|this|that|into|between|like|as|about|install|embed|run|call|learn"
"""Before the name, likewise."""
_THINGS = (
    "arrays?|class(?:es)?|code|dataframes?|datetimes?|dict(?:s|ionary|ionaries)?|functions?|generators?|lists?|"
    "methods?|modules?|objects?|programs?|sets?|strings?|tuples?"
)
"""Behind the name, as in `a Python list`: whatever is found is the language's anyway."""
_QUOTED = re.compile(r"`[^`]*`|\"[^\"]*\"|(?<!\w)'[^']*'(?!\w)|“[^”]*”|‘[^’]*’")


def without_language(question: str, *, domain: str | None) -> str:
    """The question without the name of the language that all documents of its domain are in (`code-python`).

    Among them the name tells nothing, while to an encoder it is as good a word as any: it draws the question to the
    documents that are about the language itself (docs/retrieval.md). It is left out only where it says what the
    question is asked about: `... in Python`, `Python: ...`, `a Python list`. A question about the language itself stays
    as it is (two names, a name beside `and` or `version`, one in the middle), and so does whatever is quoted.
    """
    names = _names_of(language_of(domain or ""))
    if names is None or len(names.mention.findall(question)) != 1:
        return question
    found = next(filter(None, (place.search(question) for place in names.places)), None)
    if found is None or found.groupdict().get("meant") or _is_quoted(question, found):
        return question
    rest = _joined(question[: found.start()], question[found.end() :])
    return rest if re.search(r"\w", rest) else question


def _is_quoted(question: str, found: re.Match[str]) -> bool:
    return any(quoted.start() < found.end() and found.start() < quoted.end() for quoted in _QUOTED.finditer(question))


def _joined(before: str, after: str) -> str:
    """The two sides of what was left out, without the punctuation and the blank that only it needed."""
    if before.endswith("(") and after.startswith(")"):
        before, after = before[:-1], after[1:]
    before, after = before.rstrip(), after.lstrip()
    if not before:
        return re.sub(r"^[-,:;]\s+", "", after)
    if not after or re.match(r"[?!.,:;)](?!\S)", after) or before.endswith("("):
        return before + after
    return f"{before} {after}"


class _Names(NamedTuple):
    """Where a language is named, and where that only says what is asked about."""

    mention: re.Pattern[str]
    places: tuple[re.Pattern[str], ...]


@lru_cache(maxsize=64)  # the domain is the caller's: without a bound its names would be kept for good
def _names_of(language: str) -> _Names | None:
    if language not in _NAMES:
        return None
    apart = r"(?<![\w./\\`'\"@#+-])"  # neither part of a longer name nor quoted
    end = r"(?![\w/\\`'\"@#+-]|\.\w)"
    names = _NAMES[language].split("|")
    name = rf"{apart}(?:{'|'.join(names)})"
    # Of a word of English too, only a longer name is left for these places, or none: then nothing matches.
    alone = rf"{apart}(?:{'|'.join(each for each in names if each not in _WORDS_TOO) or '(?!)'})"
    closed = r"(?=\s*(?:[?!.,;:)]|$))" if language in _WORDS_TOO else rf"(?!\s+(?:{_OTHERS}|\d))"
    places = (
        rf"{apart}(?:in|with|using)\s+{name}{_VERSION}{end}{closed}",
        rf"^\s*{alone}{end}(?!\s+{_ABOUT_IT})|^\s*{alone}{_VERSION}(?=\s*:)",
        rf"(?<=\(){alone}{_VERSION}(?=\))",
        rf"{alone}{end}(?=\s+(?:{_THINGS})\b)",
        rf"(?P<meant>\b(?:{_MEANT})\s+)?{alone}{end}(?=\s*[?!.]*\s*$)",
    )
    return _Names(
        re.compile(name + _VERSION + end, re.IGNORECASE),
        tuple(re.compile(place, re.IGNORECASE) for place in places),
    )
