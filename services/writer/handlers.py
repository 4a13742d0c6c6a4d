"""From a delivery's bytes to what the ledger makes of them. Names as spec 1 has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dats_common.contracts.events import parse_validated
from dats_common.contracts.readable import parse_tainted
from dats_common.domain.model import Validated
from dats_common.errors import Refused
from dats_common.ports import Delivery, Ledger, TaintReceipt
from services.writer.pipeline import EmbeddingPipeline, Outcome


@dataclass(frozen=True, slots=True)
class Handled:
    """How a delivery ended. `error` is None once it may be acknowledged; `outcome` is None if it could not be read."""

    delivery: Delivery
    outcome: Outcome | None = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class TaintHandled:
    """A committed taint, and what of its message could not be used."""

    receipt: TaintReceipt
    flaws: tuple[str, ...]


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
                readable.append((delivery, event))
        outcomes = await self._pipeline.run([event for _, event in readable])
        return handled + [
            Handled(delivery, outcome, outcome.error) for (delivery, _), outcome in zip(readable, outcomes, strict=True)
        ]

    async def handle_artifact_tainted(self, delivery: Delivery) -> TaintHandled:
        """T1 for `artifact.tainted`. Raises: InvalidInput: no id can be read; LedgerUnavailable."""
        taint, flaws = parse_tainted(
            delivery.body,
            event_type=delivery.event_type,
            message_id=delivery.message_id,
            timestamp_us=delivery.timestamp,
        )
        return TaintHandled(await self._ledger.taint(taint, skew_s=self._skew_s), tuple(flaws))
