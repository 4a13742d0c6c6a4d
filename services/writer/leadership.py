"""Which epoch this process writes under."""

from __future__ import annotations

import asyncio
import math

from dats_common.errors import Fenced
from dats_common.ports import Ledger


class Leadership:
    """The epoch, taken on the first delivery and given up when another writer has raised it.

    Being handed a message of a single-active queue is what makes a writer try; the epoch is what makes it safe.
    Only a message that came after a loss makes it try again: one from before may be of a connection that the broker
    has given up while this process hung, and must not take the epoch from the writer that the queue is served to now.
    """

    def __init__(self, ledger: Ledger, writer_id: str) -> None:
        self._ledger = ledger
        self._writer_id = writer_id
        self._epoch: int | None = None
        self._lost_s = -math.inf
        self._taking = asyncio.Lock()

    @property
    def held(self) -> int | None:
        """The epoch under which this process believes to be the writer; only the ledger knows."""
        return self._epoch

    @property
    def is_active(self) -> bool:
        """Whether this process believes to be the writer."""
        return self._epoch is not None

    async def epoch(self, *, received_s: float) -> int:
        """The current epoch, activating first if need be.

        Args:
            received_s: the loop's time when what is to be done was handed to this process.

        Raises:
            Fenced: that was before the last loss: it is to be given back.
            LedgerUnavailable: the ledger does not answer.
        """
        async with self._taking:
            if self._epoch is None:
                if received_s < self._lost_s:
                    raise Fenced("handed out before another writer became active")
                self._epoch = await self._ledger.activate(self._writer_id)
            return self._epoch

    def lost(self, epoch: int) -> None:
        """Another writer has taken over; the next delivery decides whether we try again.

        Args:
            epoch: the one that is over; a newer one, which another batch may have taken meanwhile, stays.
        """
        if self._epoch == epoch:
            self._epoch = None
            self._lost_s = asyncio.get_running_loop().time()
