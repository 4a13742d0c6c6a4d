"""From a delivery's bytes to what the ledger makes of them. Names as spec 1 has them."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from dats_common.contracts.events import parse_validated
from dats_common.contracts.readable import parse_tainted, summary
from dats_common.domain.model import Validated
from dats_common.errors import InvalidInput, Refused
from dats_common.ports import Ledger
from dats_common.records import Delivery, TaintReceipt
from services.writer.pipeline import EmbeddingPipeline, Outcome

MOST_IDS_AT_ONCE = 1000
"""Artifact ids in one transaction and one `embedding.invalidated`: far from every bound on time and size, and other
taints are served between the parts of a larger one."""


@dataclass(frozen=True, slots=True)
class Handled:
    """How a delivery ended. `error` is None once it may be acknowledged; `outcome` is None if it could not be read."""

    delivery: Delivery
    outcome: Outcome | None = None
    error: Exception | None = None


class EventHandlers:
    """What QA and Cascade ask of us. A taint needs only the ledger: it works with index and encoder away."""

    def __init__(self, *, ledger: Ledger, pipeline: EmbeddingPipeline, skew_s: float) -> None:
        self._ledger = ledger
        self._pipeline = pipeline
        self._skew_s = skew_s

    async def handle_task_validated(self, deliveries: Sequence[Delivery]) -> list[Handled]:
        """A batch of `task.validated` or `rag.embed`; each delivery ends on its own.

        Raises: Fenced; LedgerUnavailable: nothing of the batch may be acknowledged.
        """
        handled: list[Handled] = []
        readable: list[tuple[Delivery, Validated]] = []
        for delivery in deliveries:
            try:
                event = parse_validated(
                    delivery.body,
                    event_type=delivery.event_type,
                    message_id=delivery.message_id,
                    timestamp_us=delivery.timestamp,
                )
            except Refused as error:
                handled.append(Handled(delivery, error=error))
            else:
                readable.append((delivery, replace(event, trace=delivery.trace)))
        received_s = min((delivery.received_s for delivery in deliveries), default=math.inf)
        outcomes = await self._pipeline.run([event for _, event in readable], received_s=received_s)
        return handled + [
            Handled(delivery, outcome, outcome.error) for (delivery, _), outcome in zip(readable, outcomes, strict=True)
        ]

    async def handle_artifact_tainted(self, delivery: Delivery) -> AsyncIterator[TaintReceipt]:
        """T1 for `artifact.tainted`: a receipt for each part, once it is committed. A copy may repeat any part.

        Raises:
            InvalidInput: at once where no id can be read; else after the last part, where something else could not.
            LedgerUnavailable: between two parts.
        """
        taint, flaws = parse_tainted(
            delivery.body,
            event_type=delivery.event_type,
            message_id=delivery.message_id,
            timestamp_us=delivery.timestamp,
        )
        for part in taint.parts(most_ids=MOST_IDS_AT_ONCE):
            yield await self._ledger.taint(part, skew_s=self._skew_s)
        if flaws:
            raise InvalidInput(summary(flaws))
