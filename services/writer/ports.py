"""What a writer stands on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from dats_common.ports import Bus, Encoder, Evidence, Index, Indexer, Ledger
from dats_common.records import Delivery

Handling = Callable[[Sequence[Delivery]], AbstractContextManager[None]]


def untraced(_deliveries: Sequence[Delivery]) -> AbstractContextManager[None]:
    """Nobody follows the deliveries."""
    return nullcontext()


def _as_it_is(indexer: Indexer) -> Indexer:
    return indexer


@dataclass(frozen=True, slots=True)
class WriterPorts:
    """What a writer stands on, opened.

    Attributes:
        handling: makes the trace of deliveries current while they are handled.
        around_indexer: puts a span around the indexer that is made of these ports.
    """

    ledger: Ledger
    evidence: Evidence
    encoder: Encoder
    index: Index
    bus: Bus
    handling: Handling = untraced
    around_indexer: Callable[[Indexer], Indexer] = _as_it_is
