"""From the outbox to the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from dats_common.ports import Bus, Ledger

_BATCH = 100


class Relay:
    """Publishes what transactions have queued. At least once: the event id tells copies apart."""

    def __init__(self, *, ledger: Ledger, bus: Bus) -> None:
        self._ledger = ledger
        self._bus = bus
        self._one_at_a_time = asyncio.Lock()

    async def drain(self) -> int:
        """Publish all that waits, oldest first. Raises: LedgerUnavailable; BrokerUnavailable (the rest stays)."""
        total = 0
        async with self._one_at_a_time:
            while True:
                sent = await self._ledger.relay(self._publish, limit=_BATCH)
                total += sent
                if sent < _BATCH:
                    break
        return total

    async def _publish(self, routing_key: str, body: Mapping[str, Any], *, event_id: str) -> None:
        await self._bus.publish(routing_key, body, event_id=event_id)
