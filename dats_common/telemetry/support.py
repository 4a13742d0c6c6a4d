"""What dashboards see of a scorer: how long it took, and what it left without a score."""

from __future__ import annotations

from collections.abc import Sequence

from dats_common.domain.grounding import Pair
from dats_common.ports import SupportScorer
from dats_common.records import Scored
from dats_common.telemetry.logs import log
from dats_common.telemetry.replica_metrics import QueryMetrics


class MeasuredScorer:
    """`ports.SupportScorer` around another one."""

    def __init__(self, scorer: SupportScorer, metrics: QueryMetrics) -> None:
        self.name = scorer.name
        self._scorer = scorer
        self._metrics = metrics

    async def score(self, pairs: Sequence[Pair]) -> Scored:
        """See `ports.SupportScorer`."""
        with self._metrics.timed(self._metrics.support_latency, scorer=self.name):
            scored = await self._scorer.score(pairs)
        missing = scored.scores.count(None)
        self._metrics.support_missing.labels(scorer=self.name).inc(missing)
        if missing:
            log("query").warning("support_not_scored", component=self.name, count=missing, reason=scored.trouble)
        return scored

    async def ping(self) -> None:
        """See `ports.SupportScorer`."""
        await self._scorer.ping()
