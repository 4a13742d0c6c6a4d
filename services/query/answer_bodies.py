"""Answers as HTTP shows them: spec 2's response, its citations and claims."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dats_common.contracts.answers import AnswerResponse, Citation, Claim, ConfidenceScore, RouteTarget
from dats_common.contracts.api import SourceLocation
from dats_common.domain.location import openable, section_of
from dats_common.domain.model import NOWHERE
from dats_common.domain.snippets import snippet, snippet_full
from dats_common.records import Passage
from services.query.engine import Hit
from services.query.happenings import Answer


def response_of(made: Answer) -> AnswerResponse:
    """Spec 2's response."""
    score, route = made.confidence, made.route_to
    return AnswerResponse(
        id=made.answer_id,
        answer=made.text,
        confidence=ConfidenceScore(
            overall=score.overall,
            retrieval_score=round(score.retrieval_score, 6),
            coverage_score=round(score.coverage_score, 6),
            llm_score=score.llm_score,
            llm_rated=score.llm_rated,
            answerability=round(made.answerability, 6),
        ),
        citations=[citation_of(hit) for hit in made.citations],
        action=made.action,
        route_to=None
        if route is None
        else RouteTarget(
            tag=route.tag,
            owner_user_id=route.owner_user_id,
            owner_email=route.owner_email,
            reason=route.reason,
            fallback=route.fallback,
        ),
        model_used=made.model_used,
        context_chunks_used=made.chunks_used,
        context_tokens_used=made.context_tokens,
        generation_time_ms=round(made.generation_ms, 3),
        grounded=made.grounded,
        claims=[
            Claim(
                text=claim.text,
                start=claim.start,
                end=claim.end,
                source_ids=list(claim.source_ids),
                supported=claim.supported,
                score=round(claim.score, 6),
            )
            for claim in made.claims
        ],
    )


def citation_of(hit: Hit) -> Citation:
    """A cited chunk as people see it."""
    passage = hit.passage
    metadata = passage.metadata
    return Citation(
        source_id=passage.ref.source_id,
        document_id=passage.ref.key.document_id,
        document_name=metadata.title or passage.ref.key.artifact_id,
        chunk_index=passage.ref.chunk_index,
        page_number=passage.location.page,
        section=section_of(passage.location),
        relevance_score=round(hit.similarity, 6),
        snippet=snippet(passage.text),
        snippet_full=snippet_full(passage.text),
        artifact_id=passage.ref.key.artifact_id,
        source_uri=metadata.source_uri or None,
        location=location_of(passage),
    )


def location_of(passage: Passage) -> SourceLocation | None:
    """Where a passage stands; None where nothing is known of that."""
    known = passage.location
    if known == NOWHERE:
        return None
    return SourceLocation(
        heading_path=list(known.heading_path),
        line_start=known.line_start,
        line_end=known.line_end,
        page=known.page,
        anchor=known.anchor,
        uri=openable(passage.metadata, known),
    )


def body_of(made: Answer) -> Mapping[str, Any]:
    """The response as the evidence keeps it."""
    return response_of(made).model_dump(mode="json")
