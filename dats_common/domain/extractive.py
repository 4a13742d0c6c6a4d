"""Answers without a model: the sentences of the sources that answer best, each with its citation. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dats_common.domain.answerability import answerability, expected_answer, holds_answer
from dats_common.domain.citations import defuse_markers
from dats_common.domain.sentences import sentences
from dats_common.domain.sparse import terms

MODEL = "extractive"
"""What answers say of who wrote them."""

# How much each sign counts, where the share of the question's terms counts 1.
# Source: 800 answerable questions of a public set with the five best of its paragraphs. Alike on both halves of them,
# and flat: half or twice a weight changes by at most .01 how often the best sentence holds the answer.
SOURCE_WEIGHT = 0.6
TYPE_WEIGHT = 0.1

NEIGHBOUR_SHARE = 0.3
"""What a term counts that stands in the sentence before: "It was founded in 1912" needs it. Source: as the weights."""

LEAST_PART_OF_BEST = 0.7
"""Sentences that score less than this part of the best one are left out: more text, seldom more answer.

Source: as the weights. On average two of three are left, with 86 of 100 answers; at 0.5 it is 2.7, with 88.
"""

LONGEST_SENTENCE = 600
"""Characters. Longer stretches are tables, logs or code, of which single lines answer."""


@dataclass(frozen=True, slots=True)
class ExtractSource:
    """A passage to quote from.

    Attributes:
        alias: its number in the prompt, from 1.
        similarity: cosine to the question, in [0, 1].
    """

    alias: int
    text: str
    similarity: float


@dataclass(frozen=True, slots=True)
class Extracted:
    """A sentence of the source with this alias, as it stands there but for what looks like a citation marker.

    Attributes:
        score: 0 to 1, to compare within one question.
    """

    text: str
    alias: int
    score: float


@dataclass(frozen=True, slots=True)
class Extract:
    """The answer: the best sentence first.

    Attributes:
        text: the sentences, each followed by its ` [alias]`; "" where nothing matches.
        rating: how likely it answers the question, 0 to 100.
    """

    sentences: tuple[Extracted, ...]
    text: str
    rating: int


NOTHING = Extract((), "", 0)


@dataclass(frozen=True, slots=True)
class _Candidate:
    text: str
    source: ExtractSource
    terms: frozenset[str]
    before: frozenset[str]


def extract(
    question: str,
    sources: Sequence[ExtractSource],
    *,
    max_sentences: int = 3,
) -> Extract:
    """At most `max_sentences` sentences that answer `question`; `NOTHING` where none has a term of it.

    A sentence counts by the question's terms in it (the rarer among all sentences, the more) and in the one before it,
    by its source's similarity, and by whether it has the number, date or name that is asked for. Of equal ones the
    earlier source's, then the earlier sentence comes first.

    Args:
        sources: in ranked order.
    """
    asked = frozenset(terms(question))
    found = _candidates(sources)
    rarity = _rarity(asked, found)
    scored = [
        (_score(question, rarity, candidate), candidate) for candidate in found if not asked.isdisjoint(candidate.terms)
    ]
    if not scored:
        return NOTHING
    scored.sort(key=lambda each: -each[0])
    least = LEAST_PART_OF_BEST * scored[0][0]
    chosen = [
        Extracted(defuse_markers(candidate.text), candidate.source.alias, score)
        for score, candidate in scored[:max_sentences]
        if score >= least
    ]
    return Extract(tuple(chosen), _cited(chosen), round(100 * answerability(question, sources)))


def _rarity(asked: frozenset[str], found: Sequence[_Candidate]) -> dict[str, float]:
    """Weights of the question's terms, which add up to 1."""
    holders = {term: sum(term in candidate.terms for candidate in found) for term in sorted(asked)}
    weights = {term: math.log(1 + len(found) / (count + 0.5)) for term, count in holders.items()}
    total = sum(weights.values())
    return {term: weight / total for term, weight in weights.items()} if total else {}


def _score(question: str, rarity: Mapping[str, float], candidate: _Candidate) -> float:
    score = sum(
        weight if term in candidate.terms else weight * NEIGHBOUR_SHARE if term in candidate.before else 0.0
        for term, weight in rarity.items()
    )
    score += SOURCE_WEIGHT * candidate.source.similarity
    expected = expected_answer(question)
    if expected and holds_answer(candidate.text, expected, question=question):
        score += TYPE_WEIGHT
    return score / (1 + SOURCE_WEIGHT + TYPE_WEIGHT)


# ------------------------------------------------------------------------------------------------------------ sentences

_HEADING = re.compile(r" {0,3}#{1,6}\s")
_LEAD = re.compile(r"\A(?:[-*+•–>]\s+|\d{1,3}[.)]\s+)+")
_ENDED = re.compile(r"[.!?…。！？][\"')\]}»”’*_]*$")
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})", re.MULTILINE)


def _candidates(sources: Sequence[ExtractSource]) -> list[_Candidate]:
    """Sentences with terms, of the first source that has them: chunks overlap. Headings answer nothing."""
    found: dict[str, _Candidate] = {}
    for source in sources:
        before: frozenset[str] = frozenset()
        for text in _stretches(source.text):
            has = frozenset(terms(text))
            if has and not _HEADING.match(text):
                found.setdefault(text, _Candidate(text, source, has, before))
            before = has
    return list(found.values())


def _stretches(text: str) -> list[str]:
    """Sentences without the signs that lead a list item; long ones line by line."""
    found = []
    for start, end in sentences(text):
        sentence = text[start:end]
        parts = [sentence] if len(sentence) <= LONGEST_SENTENCE else sentence.splitlines()
        found += [_LEAD.sub("", part.strip()) for part in parts if len(part) <= LONGEST_SENTENCE]
    return found


def _cited(chosen: Sequence[Extracted]) -> str:
    """Each sentence before its marker; a marker never stands in code, where it would be none.

    What does not end as a sentence does stands in a paragraph of its own, so that it is read as one.
    """
    paragraphs: list[str] = []
    open_ended = False
    for each in chosen:
        fences = _FENCE.findall(each.text)
        body = f"{each.text}\n{fences[0]}" if len(fences) % 2 else each.text
        in_code = bool(fences) or body.count("`") % 2 == 1
        shown = f"{body}\n[{each.alias}]" if in_code else f"{body} [{each.alias}]"
        is_sentence = not in_code and _ENDED.search(body) is not None
        if open_ended and is_sentence:
            paragraphs[-1] += f" {shown}"
        else:
            paragraphs.append(shown)
        open_ended = is_sentence
    return "\n\n".join(paragraphs)
