"""Removing points that no reader can see any more. Hygiene: the promise does not wait for it.

A terminal generation never comes back, so a delete that names it is safe however late the index applies it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dats_common.domain.model import ArtifactKey
from dats_common.ports import Index, Ledger


class Sweeper:
    """Deletes what the index has and the ledger neither shows nor is writing."""

    def __init__(self, *, ledger: Ledger, index: Index) -> None:
        self._ledger = ledger
        self._index = index

    async def sweep(self, keys: Sequence[ArtifactKey]) -> int:
        """Sweep these artifacts. Returns how many generations were removed. Raises: Unavailable."""
        if not keys:
            return 0
        return await self._remove_dead(await self._index.generations(keys))

    async def sweep_all(self) -> int:
        """Sweep everything; what it finds is the drift between index and ledger."""
        removed = 0
        async for page in self._index.scan():
            removed += await self._remove_dead(page)
        await self._ledger.forget()
        return removed

    async def _remove_dead(self, have: Mapping[ArtifactKey, set[int]]) -> int:
        # The order matters: what became live or pending after the index was read is in `keep` but not in `have`.
        keep = await self._ledger.kept(list(have))
        dead = {key: generations - keep.get(key, set()) for key, generations in have.items()}
        dead = {key: generations for key, generations in dead.items() if generations}
        for key, generations in dead.items():
            await self._index.remove(key, sorted(generations))
        if dead:
            await self._ledger.forget(list(dead))
        return sum(len(generations) for generations in dead.values())
