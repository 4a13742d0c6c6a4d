"""Showing a quarantined version again, on an operator's word."""

from __future__ import annotations

from dats_common.contracts.events import build_embed_command
from dats_common.contracts.metadata import ArtifactMetadata
from dats_common.domain.model import Validated
from dats_common.ports import Bus, Quarantine


async def readmit(entry_id: int, *, quarantine: Quarantine, bus: Bus) -> Validated:
    """Send the version to the writer as a new one of this moment; close the entry once the broker has it.

    A crash in between leaves the entry open. The repeat is the same content at a later time: the writer moves its
    version and embeds nothing. A taint in between is judged by the writer like any other.

    Raises: NotFound; Refused: a taint forbids it; BrokerUnavailable, LedgerUnavailable: repeat it.
    """
    event = await quarantine.readmission(entry_id)
    if event.time.claimed is None:
        raise ValueError("a readmission has the time of the ledger's clock")
    command = build_embed_command(
        event_id=event.event_id,
        at=event.time.claimed,
        artifact_id=event.key.artifact_id,
        content=event.content,
        metadata=ArtifactMetadata.from_source(event.metadata),
        tenant_id=event.key.tenant_id,
    )
    await bus.command(command, event_id=event.event_id)
    await quarantine.resolve(entry_id)
    return event
