"""Ledger and index compared, chunk by chunk and both ways, while a fleet is at work.

Exact without stopping anything. A point is orphaned when the ledger, read after the index, neither shows nor writes
its generation: such a generation never comes back. A chunk is missing when the index, read after the ledger, has no
point for it and the ledger, read once more, still shows its generation: it was live all the while.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from dats_common.domain.model import ArtifactKey, ChunkRef
from dats_common.maintenance.sweep import Sweeper
from dats_common.ports import IndexInventory, Ledger, LedgerInventory, OperatorsIndex, OperatorsLedger
from dats_common.records import LiveGeneration

_PAGE = 500
_EXAMPLES = 20

Orphans = Counter[tuple[ArtifactKey, int]]
"""Number of points of each generation that nobody sees."""

Report = Callable[[int], Awaitable[None]]
"""Told how many points and live chunks have been looked at so far."""


@dataclass(frozen=True, slots=True)
class Drift:
    """How ledger and index differ.

    Attributes:
        live_chunks: what the ledger shows.
        points: what the index holds.
        missing: live chunks without a point: searches do not find them until they are indexed again.
        missing_examples: some of the artifacts concerned.
        orphaned: points that no reader can see; the sweep removes them.
        orphans: all generations that orphaned points belong to, with the number of those.
    """

    live_chunks: int
    points: int
    missing: int
    missing_examples: tuple[ArtifactKey, ...]
    orphans: Orphans

    @property
    def orphaned(self) -> int:
        return self.orphans.total()

    @property
    def is_none(self) -> bool:
        return not self.missing and not self.orphaned


async def compare(*, ledger: OperatorsLedger, index: OperatorsIndex, report: Report | None = None) -> Drift:
    """Read everything, a page at a time. Raises: LedgerUnavailable; IndexUnavailable."""
    points = live_chunks = 0
    orphans: Orphans = Counter()
    async for page in index.scan_chunks():
        points += len(page)
        orphans += await _orphaned(page, ledger=ledger)
        if report is not None:
            await report(points)
    missing: Counter[ArtifactKey] = Counter()
    async for live in _live(ledger):
        live_chunks += sum(each.chunks for each in live)
        absent, surplus = await _differing(live, ledger=ledger, index=index)
        missing += absent
        orphans += surplus
        if report is not None:
            await report(points + live_chunks)
    return Drift(live_chunks, points, missing.total(), tuple(sorted(missing)[:_EXAMPLES]), orphans)


async def still_orphaned(orphans: Orphans, *, index: IndexInventory) -> Orphans:
    """Those of them that the index holds yet: a sweep is always a little behind."""
    keys = sorted({key for key, _ in orphans})
    left: Orphans = Counter()
    for first in range(0, len(keys), _PAGE):
        refs = await index.chunks_of(keys[first : first + _PAGE])
        left += Counter((ref.key, ref.generation) for ref in refs if (ref.key, ref.generation) in orphans)
    # A surplus point lies beside live ones of its generation, which must not be counted.
    return Counter({generation: min(count, orphans[generation]) for generation, count in left.items()})


async def _orphaned(page: Sequence[ChunkRef], *, ledger: Ledger) -> Orphans:
    kept = await ledger.kept(sorted({ref.key for ref in page}))
    return Counter((ref.key, ref.generation) for ref in page if ref.generation not in kept.get(ref.key, set()))


async def _live(ledger: LedgerInventory) -> AsyncIterator[list[LiveGeneration]]:
    after: ArtifactKey | None = None
    while page := await ledger.live_generations(limit=_PAGE, after=after):
        yield page
        after = page[-1].key


async def _differing(
    live: Sequence[LiveGeneration], *, ledger: Ledger, index: IndexInventory
) -> tuple[Counter[ArtifactKey], Orphans]:
    """Chunks without a point by artifact, and points of live generations that have no chunk."""
    found: dict[tuple[ArtifactKey, int], set[int]] = {}
    for ref in await index.chunks_of([each.key for each in live]):
        found.setdefault((ref.key, ref.generation), set()).add(ref.chunk_index)
    absent: Counter[ArtifactKey] = Counter()
    surplus: Orphans = Counter()
    differing = [each for each in live if found.get((each.key, each.generation), set()) != set(range(each.chunks))]
    kept = await ledger.kept([each.key for each in differing]) if differing else {}
    for each in differing:
        if each.generation in kept.get(each.key, set()):
            has, should = found.get((each.key, each.generation), set()), set(range(each.chunks))
            absent[each.key] += len(should - has)
            surplus[each.key, each.generation] += len(has - should)
    return +absent, +surplus


# --------------------------------------------------------------------------------------------------------- repair


@dataclass(frozen=True, slots=True)
class Swept:
    """What one full pass removed."""

    looked_at: int
    generations: int
    points: int


async def sweep_with_figures(
    *, ledger: Ledger, index: OperatorsIndex, report: Callable[[Swept], Awaitable[None]] | None = None
) -> Swept:
    """`Sweeper.sweep_all` for people: it counts points, tells how far it is, and takes what the ledger has never heard
    of as well, for here somebody asked. Raises: Unavailable."""
    sweeper = Sweeper(ledger=ledger, index=index)
    done = Swept(0, 0, 0)
    async for page in index.scan_chunks():
        orphans = await _orphaned(page, ledger=ledger)
        removed = await sweeper.sweep(sorted({key for key, _ in orphans}), unknown_too=True)
        done = Swept(done.looked_at + len(page), done.generations + removed, done.points + orphans.total())
        if report is not None:
            await report(done)
    await ledger.forget()
    return done
