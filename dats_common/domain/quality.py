"""Which of the retrieved chunks are good enough to answer from. Pure.

Source: spec 2, "Retrieval Quality Controls".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

OVER_FETCH = 3


@dataclass(frozen=True, slots=True)
class QualityRules:
    """Bounds on the context of an answer.

    Attributes:
        min_similarity: least cosine to the question.
        duplicate_above: Jaccard similarity of words beyond which two chunks say the same.
        max_per_document: so that one source does not crowd out the others.
        most_candidates: bounds the comparisons, which grow with the square.
    """

    min_similarity: float = 0.3
    duplicate_above: float = 0.9
    max_per_document: int = 3
    most_candidates: int = 15

    def candidates(self, wanted: int) -> int:
        """How many to retrieve, so that `wanted` are left after the cuts; never fewer than are wanted."""
        return max(wanted, min(OVER_FETCH * wanted, self.most_candidates))


class Scored(Protocol):
    """What these rules look at."""

    @property
    def similarity(self) -> float:
        """Cosine to the question, in [0, 1]."""

    @property
    def document_id(self) -> str:
        """Of the chunk's document."""

    @property
    def text(self) -> str:
        """Of the chunk."""


R = TypeVar("R", bound=Scored)


def select(retrieved: Sequence[R], *, rules: QualityRules, wanted: int) -> list[R]:
    """The best `wanted` of what was retrieved, in its order: similar, different, of several documents."""
    candidates = retrieved[: rules.candidates(wanted)]
    similar = [chunk for chunk in candidates if chunk.similarity >= rules.min_similarity]
    distinct = without_duplicates(similar, above=rules.duplicate_above)
    return limit_per_document(distinct, most=rules.max_per_document)[:wanted]


def without_duplicates(chunks: Iterable[R], *, above: float) -> list[R]:
    """Of chunks that say nearly the same, the first."""
    kept: list[tuple[R, frozenset[str]]] = []
    for chunk in chunks:
        words = frozenset(chunk.text.lower().split())
        if not any(_may_exceed(words, others, above) and jaccard(words, others) > above for _, others in kept):
            kept.append((chunk, words))
    return [chunk for chunk, _ in kept]


def _may_exceed(one: frozenset[str], other: frozenset[str], above: float) -> bool:
    """Sets of very different size cannot share that much."""
    return min(len(one), len(other)) > above * max(len(one), len(other))


def jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    """Shared words as a part of all words; 0 where there are none."""
    shared = len(one & other)
    return shared / (len(one) + len(other) - shared) if shared else 0.0


def limit_per_document(chunks: Iterable[R], *, most: int) -> list[R]:
    """The first `most` chunks of each document."""
    count: Counter[str] = Counter()
    kept = []
    for chunk in chunks:
        count[chunk.document_id] += 1
        if count[chunk.document_id] <= most:
            kept.append(chunk)
    return kept
