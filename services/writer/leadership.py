"""Which epoch this process writes under."""

from __future__ import annotations

import asyncio

from dats_common.ports import Ledger


class Leadership:
    """The epoch, taken on the first delivery and given up when another writer has raised it.

    Being handed a message of a single-active queue is what makes a writer try; the epoch is what makes it safe.
    """

    def __init__(self, ledger: Ledger, writer_id: str) -> None:
        self._ledger = ledger
        self._writer_id = writer_id
        self._epoch: int | None = None
        self._taking = asyncio.Lock()

    @property
    def held(self) -> int | None:
        """The epoch under which this process believes to be the writer; only the ledger knows."""
        return self._epoch

    @property
    def is_active(self) -> bool:
        """Whether this process believes to be the writer."""
        return self._epoch is not None

    async def epoch(self) -> int:
        """The current epoch, activating first if need be. Raises: LedgerUnavailable."""
        async with self._taking:
            if self._epoch is None:
                self._epoch = await self._ledger.activate(self._writer_id)
            return self._epoch

    def lost(self, epoch: int) -> None:
        """Another writer has taken over; the next delivery decides whether we try again.

        Args:
            epoch: the one that is over; a newer one, which another batch may have taken meanwhile, stays.
        """
        if self._epoch == epoch:
            self._epoch = None
