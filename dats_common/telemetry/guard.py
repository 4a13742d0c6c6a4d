"""What dashboards see of the guard: what it refused, and when it could not be asked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

from dats_common.domain.access import Principal
from dats_common.domain.model import ArtifactKey, ChunkRef
from dats_common.errors import LedgerUnavailable
from dats_common.ports import Evidence, Guard
from dats_common.records import AnswerRecord, GuardedRead, KeptAnswer
from dats_common.telemetry.replica_metrics import QueryMetrics

_HUNG_S = 1.0
"""A look that is called off after so long was not answered: a caller's deadline came first. One that is called off
sooner was not needed any more, as when an answer ends while its sources are watched."""


@contextmanager
def noting_failure(metrics: QueryMetrics, step: str) -> Iterator[None]:
    """Count the block if the ledger does not answer in it."""
    started = perf_counter()
    try:
        yield
    except LedgerUnavailable:
        metrics.guard_failures.labels(step=step).inc()
        raise
    except asyncio.CancelledError:
        metrics.guard_failures.labels(step=step).inc(perf_counter() - started >= _HUNG_S)
        raise


class MeasuredGuard:
    """`ports.Guard` around another one."""

    def __init__(self, guard: Guard, metrics: QueryMetrics) -> None:
        self._guard = guard
        self._metrics = metrics

    async def read(self, refs: Sequence[ChunkRef], principal: Principal) -> GuardedRead:
        """See `ports.Guard`."""
        with noting_failure(self._metrics, "read"):
            read = await self._guard.read(refs, principal)
        self._metrics.guard_drops.inc(len({*refs}) - len(read.passages))
        return read

    async def still_live(self, refs: Sequence[ChunkRef], principal: Principal) -> frozenset[ChunkRef]:
        """See `ports.Guard`."""
        with noting_failure(self._metrics, "last_look"):
            live = await self._guard.still_live(refs, principal)
        self._metrics.guard_drops.inc(len({*refs}) - len(live))
        return live


class MeasuredEvidence:
    """`ports.Evidence` around another one: keeping an answer is the last look at its sources."""

    def __init__(self, evidence: Evidence, metrics: QueryMetrics) -> None:
        self._evidence = evidence
        self._metrics = metrics

    async def keep(self, record: AnswerRecord) -> tuple[ArtifactKey, ...]:
        """See `ports.Evidence`."""
        with noting_failure(self._metrics, "keep"):
            return await self._evidence.keep(record)

    async def find(self, answer_id: str, principal: Principal, *, actor: str) -> KeptAnswer:
        """See `ports.Evidence`."""
        with noting_failure(self._metrics, "find"):
            return await self._evidence.find(answer_id, principal, actor=actor)

    async def recall(
        self, keys: Sequence[ArtifactKey] | None = None, *, cascade_id: str | None = None, limit: int = 500
    ) -> int:
        """See `ports.Evidence`."""
        return await self._evidence.recall(keys, cascade_id=cascade_id, limit=limit)

    async def forget(self, *, older_than_s: float, limit: int = 500) -> int:
        """See `ports.Evidence`."""
        return await self._evidence.forget(older_than_s=older_than_s, limit=limit)
