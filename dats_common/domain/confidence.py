"""How far an answer can be relied on, and what follows from it. Pure. Source: spec 2, "Confidence Scoring (Hybrid)"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dats_common.domain.citations import strip_markers
from dats_common.domain.terms import key_terms

RETRIEVAL_WEIGHT, COVERAGE_WEIGHT, LLM_WEIGHT = 30, 40, 30  # Source: spec 2, "Calculation"

Action = Literal["CITE", "ROUTE"]


@dataclass(frozen=True, slots=True)
class Confidence:
    """The score and its parts.

    Attributes:
        overall: 0 to 100.
        retrieval_score: mean similarity of the sources, in [0, 1].
        coverage_score: share of the answer's terms that the sources have, in [0, 1].
        llm_score: the generator's own rating, 0 to 100.
        llm_rated: whether it gave one; where it gave none its score is 0.
    """

    overall: int
    retrieval_score: float
    coverage_score: float
    llm_score: int
    llm_rated: bool


NO_CONFIDENCE = Confidence(overall=0, retrieval_score=0.0, coverage_score=0.0, llm_score=0, llm_rated=False)


def coverage(answer: str, context: str) -> float:
    """Share of the answer's key terms that the context has; 0 for an answer without any.

    Citation markers are not part of what the answer says: counted, they would lower every honest answer.
    """
    said = key_terms(strip_markers(answer))
    return len(said & key_terms(context)) / len(said) if said else 0.0


def confidence(similarities: Sequence[float], *, answer: str, context: str, rating: int | None) -> Confidence:
    """Three signals weighed together; without sources there is no confidence, whatever a model says.

    Args:
        similarities: of the sources that the answer was made from, each in [0, 1].
        context: the text of these sources.
        rating: the generator's own, 0 to 100; None: it gave none.
    """
    if not similarities:
        return NO_CONFIDENCE
    retrieval = sum(similarities) / len(similarities)
    covered = coverage(answer, context)
    rated = min(100, max(0, rating or 0))
    overall = int(retrieval * RETRIEVAL_WEIGHT + covered * COVERAGE_WEIGHT + rated / 100 * LLM_WEIGHT)
    return Confidence(
        overall=min(100, max(0, overall)),
        retrieval_score=retrieval,
        coverage_score=covered,
        llm_score=rated,
        llm_rated=rating is not None,
    )


def action_for(confidence: Confidence, *, threshold: float) -> Action:
    """CITE from the threshold on, in percent; below it the question goes to somebody who knows."""
    return "CITE" if confidence.overall >= threshold else "ROUTE"
