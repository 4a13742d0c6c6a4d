"""The composition root of a query replica."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from dats_common.contracts.api import SearchMode
from dats_common.domain.budget import BudgetRules, ModelLimits
from dats_common.domain.fusion import FusionRules, LegWeights
from dats_common.domain.quality import QualityRules
from dats_common.errors import ConfigurationError
from dats_common.maintenance.relay import Relay
from dats_common.maintenance.sweep import Sweeper
from dats_common.ports import Generator, Reranker, SupportScorer, TokenCounter
from dats_common.records import Assignment
from dats_common.settings import Settings
from dats_common.telemetry.guard import MeasuredEvidence, MeasuredGuard
from dats_common.telemetry.logs import log
from dats_common.telemetry.memory import resident_bytes
from dats_common.telemetry.metrics import disk_of
from dats_common.telemetry.replica_metrics import QueryMetrics
from dats_common.telemetry.reranking import MeasuredReranker
from dats_common.telemetry.support import MeasuredScorer
from services.backends import (
    build_fallback,
    build_token_counter,
    build_token_verifier,
    open_bus_in_background,
    open_encoder,
    open_evidence,
    open_generator,
    open_index,
    open_key_store,
    open_ledger,
    open_owners,
    open_tracing,
    prepare_index,
)
from services.query.answer_bodies import body_of
from services.query.answering import AnswerEngine, Answering, AnswerRules
from services.query.engine import QueryEngine, Retrieval
from services.query.identity import Authenticator, Credentials, Everyone
from services.query.ports import QueryPorts
from services.query.reranking import RerankRules
from services.query.services import Errands, QueryDefaults, QueryLimits, QueryServices
from services.query.streams import Streams

if TYPE_CHECKING:
    from dats_common.telemetry.tracing.spans import Tracing
    from services.query.tracing import QueryTracing

_ERRANDS_END_S = 5.0


@asynccontextmanager
async def open_query_services(settings: Settings) -> AsyncIterator[QueryServices]:
    """Everything one replica stands on.

    Raises: ConfigurationError: a setting is wrong, or the collection was written by another model.
    """
    metrics = QueryMetrics()
    metrics.watch_disk(settings.data_dir)
    async with open_tracing(settings, role="query") as spans, open_query_ports(settings, metrics) as opened:
        tracing = query_tracing(spans, settings)
        ports = tracing.ports(opened) if tracing else opened
        ledger, encoder, index, bus, generator = ports.ledger, ports.encoder, ports.index, ports.bus, ports.generator
        errands = Errands()
        guard = MeasuredGuard(ledger, metrics)
        evidence = MeasuredEvidence(ports.evidence, metrics)
        engine: Retrieval = QueryEngine(
            encoder=encoder,
            index=index,
            ledger=guard,
            min_similarity=settings.query.min_similarity,
            least_candidates=settings.query.candidates,
            fusion=fusion_rules(settings),
            reranker=ports.reranker,
            rerank=rerank_rules(settings),
        )
        engine = tracing.retrieval(engine) if tracing else engine
        rules = answer_rules(settings)
        counter = count_as_served(opened.generator, rules, otherwise=build_token_counter(settings, encoder))
        answers: Answering = AnswerEngine(
            retrieval=engine,
            generator=generator,
            fallback=generator if settings.answers.generator == "extractive" else ports.fallback,
            counter=counter,
            ledger=guard,
            evidence=evidence,
            owners=ports.owners,
            rules=rules,
            body_of=body_of,
            scorer=ports.scorer,
            judge_for=build_judge(settings, metrics, generator=generator, counter=counter),
        )
        answers = tracing.answers(answers) if tracing else answers
        answer_deadline_s = answer_deadline(settings)
        streams = Streams(engine=answers, ledger=guard, deadline_s=answer_deadline_s)
        window_tokens = rules.models[rules.default_model].context_window

        async def warm_up() -> None:
            await generator.warm_up(rules.default_model, window_tokens=window_tokens)
            counter.basis(rules.default_model)  # the first to ask has it learned, before the first answer needs it

        errands.run("warm_up", warm_up)
        try:
            yield QueryServices(
                engine=engine,
                answers=answers,
                streams=streams,
                generator=generator,
                model=settings.answers.chat_model if settings.answers.generator == "ollama" else None,
                evidence=evidence,
                encoder=encoder,
                index=index,
                ledger=ledger,
                bus=bus,
                relay=Relay(ledger=ledger, bus=bus),
                sweeper=Sweeper(ledger=ledger, index=index),
                metrics=metrics,
                limits=QueryLimits(
                    deadline_s=settings.query.deadline_s,
                    answer_deadline_s=answer_deadline_s,
                    embed_wait_s=settings.query.embed_wait_s,
                    queue_max_size=settings.embedding.queue_max_size,
                    skew_s=settings.events.skew_s,
                ),
                defaults=QueryDefaults(
                    search_mode=SearchMode(settings.query.default_mode),
                    max_tokens=settings.query.default_max_tokens,
                    top_k=settings.query.result_limit,
                    answer_chunks=settings.answers.total_context_chunks,
                ),
                errands=errands,
                index_memory=resident_bytes,
                trace_requests=tracing.requests if tracing else None,
                disk_bytes=lambda: disk_of(settings.data_dir),
            )
        finally:
            await streams.close()
            await errands.finish(timeout_s=_ERRANDS_END_S)


@asynccontextmanager
async def open_query_ports(settings: Settings, metrics: QueryMetrics) -> AsyncIterator[QueryPorts]:
    """The adapters that the settings name. Raises: ConfigurationError: as `open_query_services`."""
    async with (
        open_ledger(settings, acting="query") as ledger,
        open_encoder(settings, for_writer=False) as encoder,
        open_index(settings) as index,
        open_bus_in_background(settings, name="query") as bus,
        open_evidence(settings, acting="query") as evidence,
        open_owners(settings, acting="query") as owners,
        open_generator(settings, spent=metrics.spent) as generator,
        open_scorer(settings, metrics) as scorer,
        open_reranker(settings, metrics) as reranker,
    ):
        await prepare_index(index, encoder)
        yield QueryPorts(
            ledger=ledger,
            encoder=encoder,
            index=index,
            bus=bus,
            evidence=evidence,
            owners=owners,
            generator=generator,
            fallback=build_fallback(settings),
            scorer=scorer,
            reranker=reranker,
        )


def query_tracing(spans: Tracing | None, settings: Settings) -> QueryTracing | None:
    """What puts spans around the parts; None where nobody traces, and nothing of it is loaded."""
    if spans is None:
        return None
    from services.query.tracing import QueryTracing

    return QueryTracing(spans, settings)


def answer_deadline(settings: Settings) -> float:
    """Seconds for one answer: search, draft, rating, and what the sentences are looked at by."""
    from dats_common.adapters.cross_encoder import TIMEOUT_S

    chosen = settings.answers
    scoring_s = TIMEOUT_S if chosen.grounding.cross_encoder else 0.0
    judging_s = chosen.rating_timeout_s if chosen.grounding.judge else 0.0
    return settings.query.deadline_s + chosen.timeout_s + chosen.rating_timeout_s + scoring_s + judging_s


def count_as_served(generator: Generator, rules: AnswerRules, *, otherwise: TokenCounter) -> TokenCounter:
    """By the tokenizer that the model server shows of a model, where there is one; else as `otherwise`."""
    from dats_common.adapters.ollama import OllamaGenerator, OwnTokenCounter

    if not isinstance(generator, OllamaGenerator):
        return otherwise
    windows = {name: limits.context_window for name, limits in rules.models.items()}
    return OwnTokenCounter(generator.tokens, windows=windows, otherwise=otherwise)


@asynccontextmanager
async def open_scorer(settings: Settings, metrics: QueryMetrics) -> AsyncIterator[SupportScorer | None]:
    """The cross-encoder that is set, or None. No start waits for it: until it is there, health and metrics say so."""
    model = settings.answers.grounding.cross_encoder
    if not model:
        yield None
        return
    from dats_common.adapters.cross_encoder import CrossEncoderScorer, open_cross_encoder
    from dats_common.adapters.late import LateScorer, open_late

    def report(error: ConfigurationError) -> None:
        log("query").error("cross_encoder_refused", model=model, detail=str(error))

    late = LateScorer(CrossEncoderScorer.name)
    async with open_late(late, open_cross_encoder(model), report=report) as scorer:
        yield MeasuredScorer(scorer, metrics)


@asynccontextmanager
async def open_reranker(settings: Settings, metrics: QueryMetrics) -> AsyncIterator[Reranker | None]:
    """The reranker that is set, or None. No start waits for it, as for the scorer."""
    chosen = settings.query.reranking
    if not chosen.enabled:
        yield None
        return
    from dats_common.adapters.cross_encoder import open_reranker as open_model
    from dats_common.adapters.late import LateReranker, open_late

    def report(error: ConfigurationError) -> None:
        log("query").error("reranker_refused", model=chosen.model, detail=str(error))

    opening = open_model(chosen.model, batch_size=chosen.batch_size, threads=chosen.threads)
    async with open_late(LateReranker(chosen.model), opening, report=report) as reranker:
        yield MeasuredReranker(reranker, metrics)


def build_judge(
    settings: Settings, metrics: QueryMetrics, *, generator: Generator, counter: TokenCounter
) -> Callable[[Assignment], SupportScorer] | None:
    """Who judges strict answers; None: nobody is to, or no model writes them."""
    answers = settings.answers
    if not answers.grounding.judge or answers.generator == "extractive":
        return None
    from dats_common.adapters.support.judge import ModelJudge

    def judge_for(assignment: Assignment) -> SupportScorer:
        judge = ModelJudge(
            generator,
            counter=counter,
            model=assignment.model,
            window_tokens=assignment.window_tokens,
            timeout_s=answers.rating_timeout_s,
        )
        return MeasuredScorer(judge, metrics)

    return judge_for


def fusion_rules(settings: Settings) -> FusionRules:
    """How the legs of a search become one order."""
    fusion = settings.query.fusion
    return FusionRules(
        method=fusion.method,
        weights=LegWeights(dense=fusion.vector, sparse=fusion.keyword),
        by_domain=tuple(
            (domain, LegWeights(dense=each.vector, sparse=each.keyword)) for domain, each in fusion.domains.items()
        ),
    )


def rerank_rules(settings: Settings) -> RerankRules:
    """When searches are reranked, and how much."""
    chosen = settings.query.reranking
    return RerankRules(
        max_pairs=chosen.max_pairs,
        weight=chosen.weight,
        parts_weight=chosen.parts_weight,
        deadline_s=chosen.deadline_ms / 1e3,
        certain_lead=chosen.certain_lead,
        domains=chosen.domains,
    )


def answer_rules(settings: Settings) -> AnswerRules:
    """Raises: ConfigurationError: the default model is not in the allowlist."""
    answers = settings.answers
    if answers.chat_model not in answers.models:
        raise ConfigurationError(
            f"answers.chat_model {answers.chat_model!r} is not in answers.models: add it there with its context_window "
            f"and max_response, or choose one of {', '.join(sorted(answers.models))}"
        )
    return AnswerRules(
        models={name: ModelLimits(each.context_window, each.max_response) for name, each in answers.models.items()},
        default_model=answers.chat_model,
        temperature=answers.temperature,
        threshold=answers.confidence_threshold,
        least_answerability=answers.least_answerability,
        retrieval_s=settings.query.deadline_s,
        admin_email=answers.admin_email,
        budget=BudgetRules(
            max_context=answers.max_context_tokens,
            max_history=answers.max_history_tokens,
            max_response=answers.max_response_tokens,
            system_reserve=answers.system_prompt_tokens,
        ),
        quality=QualityRules(
            min_similarity=answers.min_similarity_score,
            duplicate_above=answers.chunk_overlap_threshold,
            max_per_document=answers.max_chunks_per_doc,
            most_candidates=answers.dedup_candidates_cap,
        ),
    )


@asynccontextmanager
async def open_authenticator(settings: Settings, services: QueryServices) -> AsyncIterator[Authenticator]:
    """Who may call this replica. Raises: ConfigurationError: the provider's keys cannot be used."""
    if settings.auth.mode == "off":
        yield Everyone()
        return
    tokens = build_token_verifier(settings)
    async with open_key_store(settings, acting="query") as keys:
        yield Credentials(
            keys=keys, tokens=tokens, errands=services.errands, metrics=services.metrics, clock=time.monotonic
        )


def require_safe_exposure(settings: Settings) -> None:
    """Raises: ConfigurationError: other machines could call a service that asks nobody who they are."""
    if settings.auth.mode == "off" and not settings.server.is_loopback and not settings.auth.allow_open:
        raise ConfigurationError(
            f"authentication is off and {settings.server.host!r} is an address that other machines reach: set "
            "DATS_AUTH_MODE=required and make keys with `dats-rag keys create`, or listen on 127.0.0.1; "
            "DATS_AUTH_ALLOW_OPEN=true starts it as it is"
        )
