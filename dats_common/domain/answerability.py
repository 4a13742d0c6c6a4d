"""Whether sources answer a question at all, before anybody writes an answer. Pure.

Small models answer whatever they are given, so refusing is decided from the sources. What can be told without a model:
that the subject is missing (well), and that a question was turned so that its sources no longer answer it (a little).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, Protocol

from dats_common.domain.facts import MONTHS, NEGATOR, NUMBER, names, unknown_names, unknown_numbers
from dats_common.domain.passages import read_passage
from dats_common.domain.sparse import terms

Expected = Literal["number", "time", "name"]

# How much each sign counts, where the similarity of the best source counts 1.
# Source: chosen on a public set of answerable and unanswerable questions, alike on both halves of it.
MATCH_WEIGHT = 0.5
UNKNOWN_COST = 0.1
MOST_UNKNOWN = 2
DENIAL_COST = 0.2
NO_TYPE_COST = 0.05

HALF_MATCHED_TERMS = 2
"""Terms found together that count half as much as any number of them: the fifth tells less than the second."""


class Source(Protocol):
    """What is looked at in a source."""

    @property
    def text(self) -> str:
        """Of the chunk."""

    @property
    def similarity(self) -> float:
        """Cosine to the question, in [0, 1]."""


def answerability(question: str, sources: Sequence[Source]) -> float:
    """How likely `sources` hold an answer to `question`: 0 (surely not) to 1. An order, not a probability.

    Counts for it: the similarity of the most similar source, and how many of the question's terms two adjoining
    sentences hold. Against it: numbers and names that no source has, a denial ("which are not") that the nearest
    sentence lacks, and no number, date or name in the best place where the question asks for one.

    On the public set it is 0.44 or more for 95 % of the answerable questions, for 4 % of those about something else,
    and for 85 % of those that were written to look answerable: for these it is a hint, not a test.
    """
    asked = frozenset(terms(question))
    single: list[_Place] = []
    pairs: list[_Place] = []
    for source in sources:
        passage = read_passage(source.text)
        found = [asked & sentence.terms for sentence in passage.sentences]
        single += [_Place(len(has), each.text) for has, each in zip(found, passage.sentences, strict=True)]
        pairs += [
            _Place(len(found[at] | found[at + 1]), source.text[one.start : two.end])
            for at, (one, two) in enumerate(pairwise(passage.spans))
        ]
    if not asked or not single:
        return 0.0
    nearest = max(single, key=_Place.matches).text
    best = max(single + pairs, key=_Place.matches)
    matched, place = best.matched, best.text
    context = "\n".join(source.text for source in sources)
    unknown = len(unknown_numbers(question, context)) + len(unknown_names(question, context))
    score = max(source.similarity for source in sources) + MATCH_WEIGHT * matched / (matched + HALF_MATCHED_TERMS)
    score -= UNKNOWN_COST * min(MOST_UNKNOWN, unknown)
    if NEGATOR.search(question) and not NEGATOR.search(nearest):
        score -= DENIAL_COST
    expected = expected_answer(question)
    if expected and not holds_answer(place, expected, question=question):
        score -= NO_TYPE_COST
    return min(1.0, max(0.0, score / (1 + MATCH_WEIGHT)))


class _Place(NamedTuple):
    """One sentence or two, and how many of the question's terms stand there."""

    matched: int
    text: str

    def matches(self) -> int:
        return self.matched


# --------------------------------------------------------------------------------------------------------- answer types

_ASKS: tuple[tuple[Expected, re.Pattern[str]], ...] = (
    (
        "number",
        re.compile(
            r"\bhow (?:many|much|long|old|far|tall|large|big|high|often|fast)\b"
            r"|\bwhat (?:percent|percentage|number|amount|proportion|fraction)\b",
            re.IGNORECASE,
        ),
    ),
    ("time", re.compile(r"\bwhen\b|\b(?:what|which) (?:year|date|day|month|century|decade|time|era)\b", re.IGNORECASE)),
    (
        "name",
        re.compile(
            r"\bwho(?:m|se)?\b|\bwhere\b"
            r"|\b(?:what|which) (?:city|country|state|place|person|company|team|river|island|region|area)\b",
            re.IGNORECASE,
        ),
    ),
)
_TIME = re.compile(
    rf"\b(?:1\d{{3}}|20\d{{2}})s?\b|\b(?:{'|'.join(MONTHS)}|century|decade|today|yesterday|tomorrow)\b"
    r"|\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b|\b\d{1,2}:\d{2}\b",
    re.IGNORECASE,
)


def expected_answer(question: str) -> Expected | None:
    """What kind of words an answer must hold; None where any will do."""
    return next((expected for expected, asks in _ASKS if asks.search(question)), None)


def holds_answer(text: str, expected: Expected, *, question: str) -> bool:
    """Whether `text` has words of the expected kind; names that the question gives are no answer to it."""
    match expected:
        case "number":
            return NUMBER.search(text) is not None
        case "time":
            return _TIME.search(text) is not None
        case "name":
            given = {word.lower() for word in re.findall(r"\w+", question)}
            return any(name.lower() not in given for name in names(text))
