"""What dashboards see of a reranker: how long it took, and how often answers did without it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter
from typing import Literal

from dats_common.errors import Unavailable
from dats_common.ports import Reranker
from dats_common.telemetry.logs import log
from dats_common.telemetry.replica_metrics import QueryMetrics

Outcome = Literal["done", "late", "failed"]


class MeasuredReranker:
    """`ports.Reranker` around another one; says once that it is late or failing, and once that it is well again."""

    def __init__(self, reranker: Reranker, metrics: QueryMetrics) -> None:
        self.model = reranker.model
        self._reranker = reranker
        self._metrics = metrics
        self._said: Outcome = "done"

    async def rerank(self, query: str, passages: Sequence[str]) -> list[float]:
        """See `ports.Reranker`."""
        started = perf_counter()
        outcome: Outcome = "failed"
        reason = ""
        try:
            relevance = await self._reranker.rerank(query, passages)
            outcome = "done"
        except asyncio.CancelledError:  # by the deadline, or by a caller who left
            outcome = "late"
            raise
        except Unavailable as error:
            reason = str(error)
            raise
        finally:
            self._metrics.rerank_latency.labels(outcome=outcome).observe(perf_counter() - started)
            self._say(outcome, reason)
        self._metrics.reranked_pairs.inc(len(passages))
        return relevance

    async def ping(self) -> None:
        """See `ports.Reranker`."""
        await self._reranker.ping()

    def _say(self, outcome: Outcome, reason: str) -> None:
        if outcome == self._said:
            return
        self._said = outcome
        if outcome == "done":
            log("query").info("reranker_recovered", model=self.model)
        else:
            log("query").warning("reranker_missed", model=self.model, how=outcome, reason=reason)
