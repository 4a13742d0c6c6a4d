"""Showing a version again on an operator's word: one that was quarantined, or one that a wrong taint took away."""

from __future__ import annotations

from dats_common.contracts.events import build_embed_command
from dats_common.contracts.metadata import ArtifactMetadata
from dats_common.domain.model import ArtifactKey, Validated
from dats_common.ports import Bus, Quarantine, Withdrawals


async def readmit(entry_id: int, *, quarantine: Quarantine, bus: Bus) -> Validated:
    """Send the version to the writer as a new one of this moment; close the entry once the broker has it.

    A crash in between leaves the entry open. The repeat is the same content at a later time: the writer moves its
    version and embeds nothing. A taint in between is judged by the writer like any other.

    Raises: NotFound; Refused: a taint forbids it; BrokerUnavailable, LedgerUnavailable: repeat it.
    """
    event = await quarantine.readmission(entry_id)
    await _send(event, bus=bus)
    await quarantine.resolve(entry_id)
    return event


async def untaint(
    key: ArtifactKey, *, tainted_at: int, taints: int, reason: str, actor: str, withdrawals: Withdrawals, bus: Bus
) -> Validated:
    """Send the kept source to the writer as a version right behind the taint that was sent at `tainted_at`.

    The tombstone stays: the writer judges the version like any other, by every taint and version that it knows by then.
    The repeat of one that was interrupted is a duplicate.

    Args:
        taints: how many took it away, as the operator was told; they are taken back together.

    Raises: NotFound; Refused: see `domain.taint.Untaint`; BrokerUnavailable, LedgerUnavailable: repeat it.
    """
    event = await withdrawals.untainted(key, tainted_at=tainted_at, taints=taints, reason=reason, actor=actor)
    await _send(event, bus=bus)
    return event


async def _send(event: Validated, *, bus: Bus) -> None:
    if event.time.claimed is None:
        raise ValueError("what comes again has a time of the ledger's clock")
    command = build_embed_command(
        event_id=event.event_id,
        at=event.time.claimed,
        artifact_id=event.key.artifact_id,
        content=event.content,
        metadata=ArtifactMetadata.from_source(event.metadata),
        tenant_id=event.key.tenant_id,
    )
    await bus.command(command, event_id=event.event_id)
