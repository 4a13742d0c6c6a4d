"""Whether a sentence is supported by the passages it stands on. Pure.

Two questions, asked apart: do the passages say these words close together (a score), and does the sentence say
anything that a passage must then say too: a number, a name, a "not" (guards). Source: spec 5, A2.

Scorers may be asked besides (`ports.SupportScorer`). A cross-encoder's score is blended into ours; a judge's verdict
can only take support away. Neither is heard where a guard has failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Literal

from dats_common.domain.facts import NEGATOR, unknown_names, unknown_numbers
from dats_common.domain.passages import Passage, Reading, read_passage, read_sentence
from dats_common.domain.sparse import terms

Guard = Literal["number", "name", "negation"]

SUPPORTED_FROM = 0.6
"""Source: the best mean of the balanced accuracies on two public sets of judged claims, .77; from .55 to .65 it changes
by less than .01. Short replies alone ask for .65, scientific claims, which rephrase more, for .5."""

SIMILARITY_WEIGHT = 0.2
"""Source: as `SUPPORTED_FROM`, with the cosine of all-MiniLM-L6-v2: alone it ranks worse than shared words on both
sets, and more of it gains on the one no more than it loses on the other."""

GUARD_PENALTY = 0.15
"""What a failed guard costs in the score. Source: as `SUPPORTED_FROM`; flat from .1 to .2."""

UPHELD_FROM = 0.5
"""A judge that says yes or no scores 1 or 0."""

_NEAR_BEST = 0.8
"""Sentences that share this much of what the best one shares may be the one that is meant."""
_SCOPE_TERMS, _SCOPE_CHARS = 4, 100
"""So many terms behind a "not" are what it denies, looked for in so many characters."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A sentence, without citation markers, and the texts of the passages that it is said to stand on."""

    sentence: str
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Opinions:
    """What scorers said of sentences, besides what is judged here.

    Attributes:
        similarities: a cross-encoder's scores, in [0, 1]; a pair that has none is judged without.
        verdicts: a judge's scores, in [0, 1]; None: no judge was asked. A pair that has none was not upheld.
    """

    similarities: Mapping[Pair, float] = field(default_factory=dict)
    verdicts: Mapping[Pair, float] | None = None

    def upheld(self, pair: Pair) -> bool:
        """Whether no judge stands in its way."""
        return self.verdicts is None or self.verdicts.get(pair, 0.0) >= UPHELD_FROM


@dataclass(frozen=True, slots=True)
class Support:
    """What was found.

    Attributes:
        score: 0 (nothing of it is in the sources) to 1 (all of it is, in one place).
        guards: those that failed; any of them makes the sentence unsupported, whatever its score.
        upheld: false where a judge was asked and did not say yes; that makes it unsupported too.
    """

    score: float
    guards: tuple[Guard, ...]
    upheld: bool = True

    @property
    def supported(self) -> bool:
        """Whether a reader will find it in the sources."""
        return not self.guards and self.upheld and self.score >= SUPPORTED_FROM


def judge(sentence: str, sources: Sequence[str], *, similarity: float | None = None) -> Support:
    """Whether `sources` support `sentence`.

    The score is the share of its words, and of its terms, that stand within a few sentences of one source
    (`passages.WINDOW_SENTENCES`; the mean of the two shares: small words tell a quotation from a list of the same
    terms), blended with `similarity` where there is one, less a penalty for each failed guard. A sentence without words
    is not supported.

    Args:
        sentence: without citation markers, whose numbers would be taken for its own.
        sources: the texts of the passages.
        similarity: of the sentence to the source sentence nearest in meaning, in [0, 1]: a cosine of their vectors or a
            cross-encoder's score.
    """
    return _support(
        _compare(read_sentence(sentence), [read_passage(source) for source in sources]), similarity=similarity
    )


class Grounding:
    """Judges the sentences of one answer. Sources and sentences are read once, however often opinions change."""

    def __init__(self) -> None:
        self._compared: dict[Pair, _Compared] = {}

    def support(self, pair: Pair, opinions: Opinions) -> Support:
        """Whether the pair's sources support its sentence, by our own reading (`judge`) and all opinions there are."""
        found = self._compared.get(pair)
        if found is None:
            passages = [read_passage(source) for source in pair.sources]
            found = self._compared[pair] = _compare(read_sentence(pair.sentence), passages)
        support = _support(found, similarity=opinions.similarities.get(pair))
        return replace(support, upheld=opinions.upheld(pair))


def shared_words(pair: Pair) -> float:
    """The score that `judge` begins with, in [0, 1]: words alone, without guards."""
    return _closest(read_sentence(pair.sentence), [read_passage(source) for source in pair.sources])


@dataclass(frozen=True, slots=True)
class _Compared:
    """What a sentence and its sources say of each other, before any opinion."""

    score: float
    guards: tuple[Guard, ...]


def _compare(said: Reading, passages: Sequence[Passage]) -> _Compared:
    return _Compared(_closest(said, passages), tuple(_failed(said, passages)))


def _support(found: _Compared, *, similarity: float | None) -> Support:
    score = found.score
    if similarity is not None:
        score += SIMILARITY_WEIGHT * (similarity - score)
    return Support(max(0.0, score - GUARD_PENALTY * len(found.guards)), found.guards)


def _closest(said: Reading, passages: Sequence[Passage]) -> float:
    return max((_share(said, window) for passage in passages for window in passage.windows), default=0.0)


def _failed(said: Reading, passages: Sequence[Passage]) -> Iterator[Guard]:
    context = "\n".join(passage.text for passage in passages)
    if unknown_numbers(said.text, context):
        yield "number"
    if unknown_names(said.text, context):
        yield "name"
    if _is_flipped(said, list(chain.from_iterable(passage.sentences for passage in passages))):
        yield "negation"


# ---------------------------------------------------------------------------------------------------------------- words


def _share(said: Reading, source: Reading) -> float:
    if not said.words:
        return 0.0
    of_words = len(said.words & source.words) / len(said.words)
    return (of_words + len(said.terms & source.terms) / len(said.terms)) / 2 if said.terms else of_words


# ------------------------------------------------------------------------------------------------------------- negation


def _is_flipped(said: Reading, source_sentences: Sequence[Reading]) -> bool:
    """Whether the sentence denies what its nearest source sentences say without denial, or the other way round."""
    shared = [len(said.terms & each.terms) for each in source_sentences]
    most = max(shared, default=0)
    if not most:
        return False
    nearest = [each for each, count in zip(source_sentences, shared, strict=True) if count >= _NEAR_BEST * most]
    if NEGATOR.search(said.text):
        return not any(NEGATOR.search(each.text) for each in nearest)
    return all(_denies(each.text, said.terms) for each in nearest)


def _denies(text: str, said: frozenset[str]) -> bool:
    for negator in NEGATOR.finditer(text):
        behind = terms(text[negator.end() : negator.end() + _SCOPE_CHARS])
        if said.intersection(islice(behind, _SCOPE_TERMS)):
            return True
    return False
