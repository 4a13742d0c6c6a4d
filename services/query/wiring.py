"""The composition root of a query replica."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dats_common.contracts.api import SearchMode
from dats_common.domain.fusion import LegWeights
from dats_common.errors import ConfigurationError
from dats_common.maintenance.relay import Relay
from dats_common.maintenance.sweep import Sweeper
from dats_common.settings import Settings
from dats_common.telemetry.memory import resident_bytes
from dats_common.telemetry.metrics import Metrics
from services.backends import (
    build_token_verifier,
    open_bus_in_background,
    open_encoder,
    open_index,
    open_key_store,
    open_ledger,
    prepare_index,
)
from services.query.engine import QueryEngine
from services.query.identity import Authenticator, Credentials, Everyone
from services.query.services import Errands, QueryDefaults, QueryLimits, QueryServices

_ERRANDS_END_S = 5.0


@asynccontextmanager
async def open_query_services(settings: Settings) -> AsyncIterator[QueryServices]:
    """Everything one replica stands on.

    Raises: ConfigurationError: a setting is wrong, or the collection was written by another model.
    """
    async with (
        open_ledger(settings, acting="query") as ledger,
        open_encoder(settings, for_writer=False) as encoder,
        open_index(settings) as index,
        open_bus_in_background(settings, name="query") as bus,
    ):
        await prepare_index(index, encoder)
        errands = Errands()
        try:
            yield QueryServices(
                engine=QueryEngine(
                    encoder=encoder,
                    index=index,
                    ledger=ledger,
                    min_similarity=settings.query.min_similarity,
                    least_candidates=settings.query.candidates,
                    weights=LegWeights(dense=settings.query.fusion.vector, sparse=settings.query.fusion.keyword),
                ),
                encoder=encoder,
                index=index,
                ledger=ledger,
                bus=bus,
                relay=Relay(ledger=ledger, bus=bus),
                sweeper=Sweeper(ledger=ledger, index=index),
                metrics=Metrics(),
                limits=QueryLimits(
                    deadline_s=settings.query.deadline_s,
                    embed_wait_s=settings.query.embed_wait_s,
                    queue_max_size=settings.embedding.queue_max_size,
                    skew_s=settings.events.skew_s,
                ),
                defaults=QueryDefaults(
                    search_mode=SearchMode(settings.query.default_mode),
                    max_tokens=settings.query.default_max_tokens,
                    top_k=settings.query.result_limit,
                ),
                errands=errands,
                index_memory=resident_bytes,
            )
        finally:
            await errands.finish(timeout_s=_ERRANDS_END_S)


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
