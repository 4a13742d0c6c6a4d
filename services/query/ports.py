"""What a replica stands on."""

from __future__ import annotations

from dataclasses import dataclass

from dats_common.ports import Bus, Encoder, Evidence, Generator, Index, Ledger, Owners, Reranker, SupportScorer


@dataclass(frozen=True, slots=True)
class QueryPorts:
    """What a replica stands on, opened.

    Attributes:
        fallback: writes answers while the generator's server is away; None: nothing does.
    """

    ledger: Ledger
    encoder: Encoder
    index: Index
    bus: Bus
    evidence: Evidence
    owners: Owners
    generator: Generator
    fallback: Generator | None
    scorer: SupportScorer | None
    reranker: Reranker | None
