"""A writer's ports with spans around them. Imported only where a collector is set."""

from __future__ import annotations

from dataclasses import replace

from dats_common.settings import Settings
from dats_common.telemetry.tracing.messages import Messages, TracedBus
from dats_common.telemetry.tracing.models import TracedEncoder
from dats_common.telemetry.tracing.spans import Tracing
from dats_common.telemetry.tracing.stores import TracedEvidence, TracedIndex, TracedIndexer, TracedLedger
from services.backends import broker_system, ledger_system
from services.writer.ports import WriterPorts


def traced(ports: WriterPorts, tracing: Tracing, settings: Settings) -> WriterPorts:
    """The same ports; each call for an event is a step of its trace."""
    messages = Messages(tracing, system=broker_system(settings))
    system = ledger_system(settings)
    return replace(
        ports,
        ledger=TracedLedger(ports.ledger, tracing, system=system),
        evidence=TracedEvidence(ports.evidence, tracing, system=system),
        encoder=TracedEncoder(ports.encoder, tracing),
        index=TracedIndex(ports.index, tracing, collection=settings.qdrant.collection),
        bus=TracedBus(ports.bus, messages),
        handling=messages.handling,
        around_indexer=lambda indexer: TracedIndexer(indexer, tracing),
    )
