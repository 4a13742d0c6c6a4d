"""HTTP to engine and ledger, and back. What a route decides is in the domain; here it is only translated."""

from __future__ import annotations

import asyncio
import uuid
from time import perf_counter
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError

from dats_common.contracts.api import (
    BatchInvalidateRequest,
    BatchInvalidateResponse,
    EmbedRequest,
    EmbedResponse,
    EmbedStatus,
    HealthResponse,
    InvalidateResponse,
    ProbeResponse,
    QueryRequest,
    QueryResponse,
    SourceReference,
)
from dats_common.contracts.events import build_embed_command
from dats_common.contracts.fields import ArtifactId, TenantId
from dats_common.contracts.topology import COMMANDS_QUEUE
from dats_common.domain.access import Principal
from dats_common.domain.model import ArtifactKey, EventTime, Scope, Taint
from dats_common.domain.snippets import snippet
from dats_common.errors import Forbidden, QueueFull
from dats_common.maintenance.recall import recalled
from dats_common.records import ArtifactOutcome, SearchFilter, TaintReceipt
from dats_common.telemetry.logs import log
from services.query.answer_bodies import location_of
from services.query.engine import Hit, Question, Retrieved
from services.query.gauges import refresh_gauges
from services.query.health import health_of, readiness_of, without_details
from services.query.requests import PROBLEMS, Asking, Services, StrictJsonRoute, WithDetails, within
from services.query.services import QueryServices

_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.02, 0.25


router = APIRouter(prefix="/api/v1", route_class=StrictJsonRoute, responses=PROBLEMS)


# ----------------------------------------------------------------------------------------------------------- query


@router.post("/query", summary="Context for a task, with its sources")
async def query(request: QueryRequest, services: Services, caller: Asking) -> QueryResponse:
    """Ranked passages that the caller may see, assembled as Markdown within `max_tokens`.

    A query that starts after a taint was acknowledged never returns the artifact.
    """
    started = perf_counter()
    principal = caller.on_behalf_of(
        tenant_id=request.tenant_id,
        user_id=request.user_id,
        user_tags=None if request.user_tags is None else frozenset(request.user_tags),
    )
    principal.require("reader", "service")
    request = services.defaults.fill(request)
    mode = request.search_mode.value
    with services.metrics.timed(services.metrics.query_latency, mode=mode):
        async with within(services.limits.deadline_s):
            found = await services.engine.retrieve(
                Question(
                    text=request.query,
                    mode=mode,
                    where=_filter(request, principal),
                    top_k=request.top_k,
                    budget_tokens=request.max_tokens,
                    rerank=request.rerank,
                )
            )
    services.metrics.searched(
        mode=mode,
        project_id=request.project_id,
        tokens=found.context.tokens,
        top_k=request.top_k,
        relevant_from=services.engine.min_similarity,
        sources=[(hit.similarity, hit.passage.version) for hit in found.hits],
    )
    return QueryResponse(
        id=f"query-{uuid.uuid4()}",
        query=request.query,
        context=found.context.text,
        sources=[_source(hit) for hit in found.hits],
        tokens_used=found.context.tokens,
        search_mode=request.search_mode,
        metadata=_query_metadata(found, latency_ms=(perf_counter() - started) * 1e3),
        reranked=found.reranked,
        rerank_reason=found.rerank_reason,
    )


def _filter(request: QueryRequest, principal: Principal) -> SearchFilter:
    filters = request.filters
    return SearchFilter(
        principal=principal,
        project_id=request.project_id,
        domain=request.domain,
        doc_types=None if filters.doc_type is None else tuple(filters.doc_type),
        tags=None if filters.tags is None else tuple(filters.tags),
        artifact_ids=None if filters.artifact_ids is None else tuple(filters.artifact_ids),
        verified_only=filters.verified_only,
    )


def _source(hit: Hit) -> SourceReference:
    passage = hit.passage
    return SourceReference(
        artifact_id=passage.ref.key.artifact_id,
        provenance_id=passage.metadata.provenance_id,
        relevance_score=round(hit.similarity, 6),
        snippet=snippet(passage.text),
        source_id=passage.ref.source_id,
        chunk_index=passage.ref.chunk_index,
        title=passage.metadata.title or None,
        source_uri=passage.metadata.source_uri or None,
        location=location_of(passage),
    )


def _query_metadata(found: Retrieved, *, latency_ms: float) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "vector_results": sum(hit.from_dense for hit in found.hits),
        "keyword_results": sum(hit.sparse_score is not None for hit in found.hits),
        "latency_ms": round(latency_ms, 3),
        "stages_ms": dict(found.timings_ms),
    }
    if found.reason is not None:
        metadata |= {"no_context": True, "reason": found.reason}
    return metadata


# ----------------------------------------------------------------------------------------------------------- embed


@router.post(
    "/embed",
    summary="Index content for future retrieval",
    responses={202: {"model": EmbedResponse, "description": "Accepted and durable; the writer will index it"}},
)
async def embed(request: EmbedRequest, services: Services, caller: Asking, response: Response) -> EmbedResponse:
    """Hands the content to the writer and waits for it to become visible; 202 when that takes too long."""
    started = perf_counter()
    metadata = request.metadata
    principal = caller.on_behalf_of(tenant_id=metadata.tenant_id)
    principal.require("ingest")
    if metadata.scope == Scope.PUBLIC:
        principal.require("admin")
    if principal.project_ids is not None and metadata.project_id not in principal.project_ids:
        raise Forbidden("metadata.project_id: is not one of yours")
    tenant_id = principal.tenant_id
    if await services.bus.depth(COMMANDS_QUEUE) >= services.limits.queue_max_size:
        raise QueueFull(f"{services.limits.queue_max_size} requests wait for embedding already")
    at = await services.ledger.now()
    command_id = f"emb-{uuid.uuid4()}"
    await services.bus.command(
        build_embed_command(
            event_id=command_id,
            at=at,
            artifact_id=metadata.artifact_id,
            content=request.content,
            metadata=metadata,
            tenant_id=tenant_id,
        ),
        event_id=command_id,
    )
    outcome = await _await_outcome(services, ArtifactKey(tenant_id, metadata.artifact_id), at=at)
    if outcome.status == "pending":
        response.status_code = 202
    return EmbedResponse(
        id=command_id,
        artifact_id=metadata.artifact_id,
        status=EmbedStatus.QUEUED if outcome.status == "pending" else EmbedStatus(outcome.status),
        chunks=outcome.chunks,
        tokens=outcome.tokens,
        latency_ms=round((perf_counter() - started) * 1e3),
    )


async def _await_outcome(services: QueryServices, key: ArtifactKey, *, at: int) -> ArtifactOutcome:
    """Watch the ledger, ever less often, until the event is decided or the wait is over. The ledger, not a reply
    queue: it tells the truth also after this replica or the writer was restarted."""
    pause_s = _FIRST_LOOK_S
    give_up_at = perf_counter() + services.limits.embed_wait_s
    while True:
        outcome = await services.ledger.outcome(key, at=at)
        if outcome.status != "pending" or perf_counter() >= give_up_at:
            return outcome
        await asyncio.sleep(pause_s)
        pause_s = min(_LONGEST_LOOK_S, pause_s * 1.5)


# ------------------------------------------------------------------------------------------------------ invalidate


@router.delete("/embeddings/{artifact_id:path}", summary="Invalidate an artifact")
async def invalidate(
    artifact_id: Annotated[str, Path(description="percent-encoded; may hold slashes")],
    services: Services,
    caller: Asking,
    tenant_id: Annotated[TenantId | None, Query(description="for credentials that have several")] = None,
) -> InvalidateResponse:
    """The tombstone is committed before the answer, with broker, writer and index up or not; also for unknown ids."""
    principal = caller.on_behalf_of(tenant_id=tenant_id)
    principal.require("ingest")
    try:
        TypeAdapter(ArtifactId).validate_python(artifact_id)
    except ValidationError as error:
        raise RequestValidationError(
            [{**each, "loc": ("artifact_id",)} for each in error.errors(include_input=False)]
        ) from None
    taint = Taint(principal.tenant_id, (artifact_id,), EventTime(), reason="invalidated over HTTP", actor=caller.actor)
    removed = await _commit(services, taint, reason="api")
    return InvalidateResponse(artifact_id=artifact_id, removed_chunks=removed)


@router.post("/embeddings/batch-invalidate", summary="Invalidate several artifacts in one step")
async def batch_invalidate(
    request: BatchInvalidateRequest, services: Services, caller: Asking
) -> BatchInvalidateResponse:
    """As one taint: all of them or none."""
    principal = caller.on_behalf_of(tenant_id=request.tenant_id)
    principal.require("ingest")
    taint = Taint(
        principal.tenant_id,
        tuple(request.artifact_ids),
        EventTime(),
        cascade_id=request.cascade_id,
        reason=request.reason,
        actor=caller.actor,
    )
    removed = await _commit(services, taint, reason="batch")
    return BatchInvalidateResponse(
        invalidated=len(request.artifact_ids), chunks_removed=removed, cascade_id=request.cascade_id
    )


async def _commit(services: QueryServices, taint: Taint, *, reason: str) -> int:
    """T1 here and now; publishing and sweeping follow behind the answer."""
    started = perf_counter()
    async with within(services.limits.deadline_s):
        receipt = await services.ledger.taint(taint, skew_s=services.limits.skew_s)
    waited_s = perf_counter() - started
    removed = sum(receipt.chunks_removed.values())
    log("query").info(
        "artifacts_tainted",
        actor=taint.actor,
        tenant_id=taint.tenant_id,
        cascade_id=taint.cascade_id,
        artifact_count=len(taint.artifact_ids),
        chunks=removed,
    )
    services.metrics.tainted(reason=reason, chunks=removed, claimed=taint.time.claimed, waited_s=waited_s)
    services.errands.run("relay", services.relay.drain)
    services.errands.run("recall", lambda: _recall(services, receipt))
    services.errands.run("sweep", lambda: services.sweeper.sweep(receipt.fallen))
    return removed


async def _recall(services: QueryServices, receipt: TaintReceipt) -> None:
    if receipt.fallen:
        async for part in recalled(services.evidence, receipt.fallen, cascade_id=receipt.cascade_id):
            services.metrics.answers_recalled.inc(part)
            if part:
                await services.relay.drain()


# ---------------------------------------------------------------------------------------------------------- health


@router.get("/health", summary="The service and what it stands on")
async def health(services: Services, with_details: WithDetails) -> HealthResponse:
    """Always 200; `status` says healthy, degraded or unhealthy, and `components` says why: to strangers in a word."""
    found = await health_of(services)
    return found if with_details else without_details(found)


@router.get("/health/live", summary="The process answers")
async def live() -> ProbeResponse:
    """For a liveness probe."""
    return ProbeResponse(status="ok")


@router.get(
    "/health/ready",
    summary="Queries can be answered",
    responses={503: {"model": ProbeResponse, "description": "Ledger or index away"}},
)
async def ready(services: Services, response: Response) -> ProbeResponse:
    """For a readiness probe: ledger and index answer."""
    probe = await readiness_of(services)
    if probe.status != "ok":
        response.status_code = 503
    return probe


@router.get("/metrics", summary="Prometheus metrics", response_class=Response)
async def metrics(services: Services, http: Request) -> Response:
    """The text format, or OpenMetrics for whoever accepts it; also served at /metrics."""
    await refresh_gauges(services)
    body, content_type = services.metrics.exposition(http.headers.get("accept", ""))
    return Response(body, headers={"Content-Type": content_type})
