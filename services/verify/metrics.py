"""A watch's verdicts as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Sequence

from dats_common.telemetry.watch_metrics import WatchMetrics
from services.verify.stores import StoreFigures
from services.verify.verdict import ReplicaFigures


class VerifyMetrics(WatchMetrics):
    """Metrics that verdicts move."""

    def add(self, replicas: Sequence[ReplicaFigures], stores: StoreFigures | None, *, well: bool) -> None:
        """One round's verdict."""
        for each in replicas:
            self.looks.labels(each.replica).inc(each.looks)
            self.unanswered.labels(each.replica).inc(each.unanswered)
            self.stale.labels(each.replica).inc(each.stale_hits)
            self.unseen.labels(each.replica).inc(each.unseen)
            for seconds in each.invisible_s:
                self.invisible.labels(each.replica).observe(max(0.0, seconds))
            for seconds in each.searchable_s:
                self.searchable.labels(each.replica).observe(seconds)
        self.rounds.labels("well" if well else "not_well").inc()
        self.last_verdict.set_to_current_time()
        if stores is not None:
            self.missing.set(stores.missing_points)
            self.orphaned.set(stores.orphaned_points)
            self.outbox_oldest.set(stores.outbox_oldest_s)
            self.dead_letters.set(stores.dead_letters)
            self.quarantined.set(stores.quarantined)
