"""What lies behind the replicas: ledger against index, outbox, dead letters, quarantine."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from dats_common.contracts.topology import DEAD_LETTERS_QUEUE
from dats_common.domain.model import ArtifactKey
from dats_common.maintenance.drift import Report, compare, still_orphaned
from dats_common.ports import Bus, OperatorsIndex, OperatorsLedger


@dataclass(frozen=True, slots=True)
class StoreFigures:
    """Attributes:
    missing_points: live chunks that the index has no point for.
    orphaned_points: points that nobody can see and that a sweep had time to remove.
    """

    live_chunks: int
    points: int
    missing_points: int
    missing_examples: tuple[ArtifactKey, ...]
    orphaned_points: int
    outbox_unsent: int
    outbox_oldest_s: float
    dead_letters: int
    quarantined: int

    @property
    def is_well(self) -> bool:
        """Ledger and index agree. The rest is for people to judge."""
        return not (self.missing_points or self.orphaned_points)


async def examine_stores(
    *, ledger: OperatorsLedger, index: OperatorsIndex, bus: Bus, grace_s: float, report: Report | None = None
) -> StoreFigures:
    """Compare everything; orphans count only if they are still there after `grace_s`. Raises: Unavailable."""
    drift = await compare(ledger=ledger, index=index, report=report)
    orphans = drift.orphans
    if orphans:
        await asyncio.sleep(grace_s)
        orphans = await still_orphaned(orphans, index=index)
    counts = await ledger.counts()
    return StoreFigures(
        live_chunks=drift.live_chunks,
        points=drift.points,
        missing_points=drift.missing,
        missing_examples=drift.missing_examples,
        orphaned_points=orphans.total(),
        outbox_unsent=counts.unsent_events,
        outbox_oldest_s=counts.oldest_unsent_s,
        dead_letters=await bus.depth(DEAD_LETTERS_QUEUE),
        quarantined=counts.quarantined,
    )
