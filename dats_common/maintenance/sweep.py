"""Removing points that no reader can see any more. Hygiene: the promise does not wait for it.

A terminal generation never comes back, so a delete that names it is safe however late the index applies it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dats_common.domain.model import ArtifactKey
from dats_common.ports import Index, Ledger


class FullSweep(NamedTuple):
    """What a pass over everything did.

    Attributes:
        removed: dead generations.
        unknown: artifacts whose points were left, since the ledger has never heard of them.
    """

    removed: int
    unknown: int


class Sweeper:
    """Deletes what the index has and the ledger neither shows nor is writing."""

    def __init__(self, *, ledger: Ledger, index: Index) -> None:
        self._ledger = ledger
        self._index = index

    async def sweep(self, keys: Sequence[ArtifactKey], *, unknown_too: bool = False) -> int:
        """Sweep these artifacts. Returns how many generations were removed. Raises: Unavailable.

        Args:
            unknown_too: also those that the ledger has never heard of.
        """
        if not keys:
            return 0
        removed, _ = await self._remove_dead(await self._index.generations(keys), unknown_too=unknown_too)
        return removed

    async def sweep_all(self) -> FullSweep:
        """Sweep everything; what it finds is the drift between index and ledger. Raises: Unavailable.

        What the ledger has never heard of stays: points come after their artifact's row, and rows are kept, so such
        points are those of another ledger, or of this one before it was lost. A writer that is led to the index of
        another fleet must not empty it.
        """
        removed = unknown = 0
        async for page in self._index.scan():
            of_page, left = await self._remove_dead(page, unknown_too=False)
            removed += of_page
            unknown += left
        await self._ledger.forget()
        return FullSweep(removed, unknown)

    async def _remove_dead(self, have: Mapping[ArtifactKey, set[int]], *, unknown_too: bool) -> tuple[int, int]:
        # The order matters: what became live or pending after the index was read is in `keep` but not in `have`.
        keep = await self._ledger.kept(list(have))
        unknown = 0 if unknown_too else len(have.keys() - keep.keys())
        dead = {
            key: generations - keep.get(key, set()) for key, generations in have.items() if unknown_too or key in keep
        }
        dead = {key: generations for key, generations in dead.items() if generations}
        for key, generations in dead.items():
            await self._index.remove(key, sorted(generations))
        if dead:
            await self._ledger.forget(list(dead))
        return sum(len(generations) for generations in dead.values()), unknown
