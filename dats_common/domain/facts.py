"""What a text commits itself to: its numbers, its names, its denials; and which of them another text lacks. Pure.

English, by spelling alone. Each rule was kept only where it fires on few supported claims of public judged sets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from dats_common.domain.sparse import STOP_WORDS

# Not "not only": that asserts. Words that deny by their meaning (`fails to`, `lacks`) are too many to list.
NEGATOR = re.compile(
    r"\b(?:not|no|never|neither|nor|none|nobody|nothing|without|cannot|\w+n['’]t)\b"
    r"(?!\s+(?:only|just|merely|less|more|later)\b)",
    re.IGNORECASE,
)

# -------------------------------------------------------------------------------------------------------------- numbers

_ONES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_TEENS = (
    *("ten", "eleven", "twelve", "thirteen", "fourteen"),
    *("fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_WORTH = {word: value for value, word in enumerate(_ONES + _TEENS)} | {
    word: 10 * value for value, word in enumerate(_TENS, 2)
}
_AMBIGUOUS = frozenset({"one", "zero"})
"""Seldom a count where they are said ("one may"), yet they answer for a digit where a source says them."""

_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "bn": 9, "trillion": 12}  # powers of ten

_UNITS = {
    spelling: names.split()[0]
    for names in (
        "% percent",
        "$ usd dollar dollars",
        "€ eur euro euros",
        "£ gbp",
        "ms millisecond milliseconds",
        "s sec secs second seconds",
        "min mins minute minutes",
        "h hr hrs hour hours",
        "day days",
        "week weeks",
        "month months",
        "year years",
        "b byte bytes",
        "kb kib kilobyte kilobytes",
        "mb mib megabyte megabytes",
        "gb gib gigabyte gigabytes",
        "tb tib terabyte terabytes",
        "mg milligram milligrams",
        "g gram grams",
        "kg kilogram kilograms",
        "mm millimetre millimetres millimeter millimeters",
        "cm centimetre centimetres centimeter centimeters",
        "m metre metres meter meters",
        "km kilometre kilometres kilometer kilometers",
        "mile miles",
        "foot feet ft",
    )
    for spelling in names.split()
}
NUMBER = re.compile(
    r"(?P<currency>[$€£])?[ ]?"
    r"(?:(?<![^\W_])(?<!\w[.,:])(?P<digits>\d+(?:[.,:]\d+)*)"
    rf"|\b(?:(?P<tens>{'|'.join(_TENS)})(?:[ -](?P<ones>{'|'.join(_ONES[1:])}))?"
    rf"|(?P<word>{'|'.join(_ONES + _TEENS)}))\b)"
    rf"(?:[ -]?(?P<scale>{'|'.join(_SCALES)})\b)?"
    r"(?=[ -]?(?P<unit>%|[a-z]+))?",
    re.IGNORECASE,
)
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_ISO_DATE = re.compile(r"\b\d{4}-(\d{2})-\d{2}")
MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)


@dataclass(frozen=True, slots=True)
class _Number:
    """Its value as decimal digits, how it reads without its scale, and its unit ("" if none is known)."""

    said: str
    value: str
    unscaled: str
    scale: str
    unit: str


def _numbers(text: str) -> Iterator[_Number]:
    for found in NUMBER.finditer(text):
        digits, tens, ones, word, scale = (
            (found[part] or "").lower() for part in ("digits", "tens", "ones", "word", "scale")
        )
        unscaled = _decimal(digits) if digits else str(sum(_WORTH.get(part, 0) for part in (tens, ones, word)))
        unit = _UNITS.get((found["currency"] or found["unit"] or "").lower(), "")
        yield _Number(found.group().strip(), _scaled(unscaled, _SCALES.get(scale, 0)), unscaled, scale, unit)


def _decimal(digits: str) -> str:
    """One spelling for equal numbers: `1,200.50` and `1200.5`, `05` and `5`. Versions and times stay as they are."""
    if _GROUPED.fullmatch(digits):
        digits = digits.replace(",", "")
    whole, point, fraction = digits.partition(".")
    if not whole.isdecimal() or (point and not fraction.isdecimal()):
        return digits
    fraction = fraction.rstrip("0")
    return (whole.lstrip("0") or "0") + ("." + fraction if fraction else "")


def _scaled(value: str, power: int) -> str:
    whole, _, fraction = value.partition(".")
    if not power or not (whole + fraction).isdecimal():
        return value
    return _decimal(whole + fraction[:power].ljust(power, "0") + "." + (fraction[power:] or "0"))


def unknown_numbers(text: str, context: str) -> list[str]:
    """Numbers of `text` that `context` does not have, or has only with another unit, as they are written."""
    said = [number for number in _numbers(text) if number.said.lower() not in _AMBIGUOUS]
    known = _known_numbers(context) if said else {}
    return [number.said for number in said if not _has(number, known, context)]


@lru_cache(maxsize=16)  # The statements of an answer are held against the same few contexts.
def _known_numbers(context: str) -> Mapping[str, set[str]]:
    """The units that each number is said with."""
    known: dict[str, set[str]] = {}
    for number in _numbers(context):
        for value in (number.value, number.unscaled):
            known.setdefault(value, set()).add(number.unit)
    return known


def _has(number: _Number, known: Mapping[str, set[str]], context: str) -> bool:
    units = known.get(number.value)
    if units is None and number.scale and number.scale in context.lower():
        units = known.get(number.unscaled)  # A scale may be said once for several numbers: `3.5 to 4 million`.
    return units is not None and (not number.unit or "" in units or number.unit in units)


# ---------------------------------------------------------------------------------------------------------------- names

_WORD = re.compile(r"\w+")
_TOKEN = re.compile(r"[^\W_](?:[\w.:'’&]*\w)?")
_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z]|[^a-zA-Z]|$)|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+|[A-Z]")
_CONTRACTED = re.compile(r"['’]\w{0,2}$")
_OPENS_SENTENCE = re.compile(r"(?:^|[.!?:\n])[\s\"'“‘(\[*_`#>|•-]*$")
_IDENTIFIER = re.compile(r"\w_\w|[a-z][A-Z]|\w[.:]+[^\W\d]|[A-Za-z]\d")
_ACRONYM = re.compile(r"[A-Z][A-Z0-9]+s?")
# One name in two forms: Germany and German, China and Chinese, Canada and Canadian, API and APIs.
_NAME_ENDINGS = frozenset(["", "a", "e", "y", "n", "an", "ian", "ean", "ia", "ese", "ish", "i", "s", "es"])
_LEAST_NAME_STEM = 3
_SMALL_IN_TITLES = frozenset(["a", "an", "and", "as", "at", "by", "for", "from", "in", "of", "on", "or", "the", "to"])
_LEAST_TITLE_WORDS = 4
_LOOK_BACK_CHARS = 12
_LEAST_INITIALS = 3
"""Shorter ones stand for names only (UK), longer ones also for plain words (CKD): any two letters meet somewhere."""


def names(text: str) -> list[str]:
    """Capitalised words that do not open a sentence, acronyms and identifiers, in order, as they are written.

    A text with a capital on each of its longer words is a title: its capitals say nothing.
    """
    tokens = _tokens(text)
    is_title = _is_title(_TOKEN.findall(text))
    found = []
    for start, token in tokens:
        is_coined = _IDENTIFIER.search(token) or (_ACRONYM.fullmatch(token) and not text.isupper())
        is_capitalised = token[0].isupper() and len(token) > 1 and not is_title
        if is_coined or (is_capitalised and not _OPENS_SENTENCE.search(text[max(0, start - _LOOK_BACK_CHARS) : start])):
            found.append(token)
    return found


def _is_title(words: Sequence[str]) -> bool:
    return len(words) >= _LEAST_TITLE_WORDS and all(
        word[0].isupper() or word[0].isdigit() or word in _SMALL_IN_TITLES for word in words
    )


def _tokens(text: str) -> list[tuple[int, str]]:
    """Words with what joins them in identifiers, where each starts; no stop words but those in capitals (US, IT)."""
    bare = ((match.start(), _CONTRACTED.sub("", match.group())) for match in _TOKEN.finditer(text))
    return [(start, token) for start, token in bare if token.lower() not in STOP_WORDS or _ACRONYM.fullmatch(token)]


def unknown_names(text: str, context: str) -> list[str]:
    """Names of `text` that `context` does not have in any form, as they are written."""
    said = names(text)
    if not said:
        return []
    known = _known_names(context)
    initials = known.initials + _initials(_tokens(text))  # A sentence may explain its own acronym.

    def is_known(name: str) -> bool:
        folded = name.casefold()
        forms = known.by_stem.get(folded[:_LEAST_NAME_STEM], ())
        return (
            _spelt(name) in known.spelt
            or any(folded == form or _are_forms(folded, form) for form in forms)
            or _is_spelt_by(name, initials)
        )

    return [name for name in said if not is_known(name)]


class _KnownNames(NamedTuple):
    """The forms that a context has by how they begin, all of its letters in a row, and its words' first ones."""

    by_stem: Mapping[str, set[str]]
    spelt: str
    initials: str


@lru_cache(maxsize=16)  # As for numbers.
def _known_names(context: str) -> _KnownNames:
    tokens = _tokens(context)
    pieces = {part.casefold() for _, token in tokens for part in (token, *_WORD.findall(token))}
    pieces.update(MONTHS[int(month) - 1] for month in _ISO_DATE.findall(context) if 1 <= int(month) <= len(MONTHS))
    by_stem: dict[str, set[str]] = {}
    for piece in pieces:
        by_stem.setdefault(piece[:_LEAST_NAME_STEM], set()).add(piece)
    return _KnownNames(by_stem, _spelt(context), _initials(tokens))


def _initials(tokens: Sequence[tuple[int, str]]) -> str:
    """First letters of the words in order, capitals kept."""
    return "".join(token[0] for _, token in tokens) + " "


def _is_spelt_by(name: str, initials: str) -> bool:
    letters = name.removesuffix("s")
    return letters.isupper() and (
        letters in initials or (len(letters) >= _LEAST_INITIALS and letters in initials.upper())
    )


def _spelt(text: str) -> str:
    """Parts between spaces, so that `getUserId`, `get_user_id` and "get user ID" read alike."""
    return f" {' '.join(_PART.findall(text))} ".casefold()


def _are_forms(one: str, other: str) -> bool:
    shared = 0
    while shared < min(len(one), len(other)) and one[shared] == other[shared]:
        shared += 1
    return any(one[cut:] in _NAME_ENDINGS and other[cut:] in _NAME_ENDINGS for cut in (shared, shared - 1))
