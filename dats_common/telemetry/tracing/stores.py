"""Spans around the ledger, the evidence and the index. Only what belongs to a request or an event is a step of it;
heartbeats, figures and probes are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import SpanKind

from dats_common.domain.access import Principal
from dats_common.domain.model import ArtifactKey, Chunk, ChunkRef, Generation, SparseVector, Taint, Validated
from dats_common.domain.taint import FlipVerdict
from dats_common.ports import Evidence, Index, Indexer, Ledger, Leg
from dats_common.records import (
    Admission,
    AnswerRecord,
    Candidate,
    GuardedRead,
    IndexJob,
    KeptAnswer,
    Point,
    SearchFilter,
    TaintReceipt,
)
from dats_common.telemetry.tracing.attributes import Attributes
from dats_common.telemetry.tracing.spans import OpenSpan, Tracing

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class TracedLedger:
    """`ports.Ledger` around another one."""

    def __init__(self, ledger: Ledger, tracing: Tracing, *, system: str) -> None:
        self._ledger = ledger
        self._tracing = tracing
        self._system = system
        self.relay = ledger.relay  # each publish is a step of its event's own trace
        self.beat = ledger.beat
        self.now = ledger.now
        self.outcome = ledger.outcome
        self.heartbeat = ledger.heartbeat
        self.counts = ledger.counts
        self.live_chunks = ledger.live_chunks
        self.ping = ledger.ping
        self.activate = ledger.activate

    def _step(self, operation: str, *, items: int) -> AbstractContextManager[OpenSpan]:
        attributes: Attributes = {"db.system.name": self._system, "db.operation.name": operation, "rag.items": items}
        return self._tracing.step(f"{operation} ledger", attributes, kind=SpanKind.CLIENT)

    async def admit(self, events: Sequence[Validated], *, epoch: int) -> list[Admission]:
        """See `ports.Ledger`."""
        with self._step("admit", items=len(events)):
            return await self._ledger.admit(events, epoch=epoch)

    async def write_chunks(self, documents: Mapping[Generation, Sequence[Chunk]], *, embedding_model: str) -> None:
        """See `ports.Ledger`."""
        with self._step("write_chunks", items=sum(map(len, documents.values()))):
            await self._ledger.write_chunks(documents, embedding_model=embedding_model)

    async def flip(self, admissions: Sequence[Admission], *, epoch: int) -> list[FlipVerdict]:
        """See `ports.Ledger`."""
        with self._step("flip", items=len(admissions)) as span:
            verdicts = await self._ledger.flip(admissions, epoch=epoch)
            span.tell({"rag.kept": verdicts.count(FlipVerdict.LIVE)})
            return verdicts

    async def abandon(self, generations: Sequence[int]) -> None:
        """See `ports.Ledger`."""
        with self._step("abandon", items=len(generations)):
            await self._ledger.abandon(generations)

    async def taint(self, taint: Taint, *, skew_s: float) -> TaintReceipt:
        """See `ports.Ledger`."""
        with self._step("taint", items=len(taint.artifact_ids)):
            return await self._ledger.taint(taint, skew_s=skew_s)

    async def announce(self, envelope: Mapping[str, Any]) -> None:
        """See `ports.Ledger`."""
        with self._step("announce", items=1):
            await self._ledger.announce(envelope)

    async def kept(self, keys: Sequence[ArtifactKey]) -> dict[ArtifactKey, set[int]]:
        """See `ports.Ledger`."""
        with self._step("kept", items=len(keys)):
            return await self._ledger.kept(keys)

    async def forget(self, keys: Sequence[ArtifactKey] | None = None) -> None:
        """See `ports.Ledger`."""
        with self._step("forget", items=len(keys or ())):
            await self._ledger.forget(keys)

    async def read(self, refs: Sequence[ChunkRef], principal: Principal) -> GuardedRead:
        """See `ports.Ledger`."""
        with self._step("read", items=len(refs)) as span:
            found = await self._ledger.read(refs, principal)
            span.tell({"rag.kept": len(found.passages)})
            return found

    async def still_live(self, refs: Sequence[ChunkRef], principal: Principal) -> frozenset[ChunkRef]:
        """See `ports.Ledger`."""
        with self._step("still_live", items=len(refs)) as span:
            live = await self._ledger.still_live(refs, principal)
            span.tell({"rag.kept": len(live)})
            return live


class TracedEvidence:
    """`ports.Evidence` around another one."""

    def __init__(self, evidence: Evidence, tracing: Tracing, *, system: str) -> None:
        self._evidence = evidence
        self._tracing = tracing
        self._system = system
        self.forget = evidence.forget

    def _step(self, operation: str, *, items: int) -> AbstractContextManager[OpenSpan]:
        attributes: Attributes = {"db.system.name": self._system, "db.operation.name": operation, "rag.items": items}
        return self._tracing.step(f"{operation} evidence", attributes, kind=SpanKind.CLIENT)

    async def keep(self, record: AnswerRecord) -> tuple[ArtifactKey, ...]:
        """See `ports.Evidence`."""
        with self._step("keep", items=len(record.refs)):
            return await self._evidence.keep(record)

    async def find(self, answer_id: str, principal: Principal, *, actor: str) -> KeptAnswer:
        """See `ports.Evidence`."""
        with self._step("find", items=1):
            return await self._evidence.find(answer_id, principal, actor=actor)

    async def recall(
        self, keys: Sequence[ArtifactKey] | None = None, *, cascade_id: str | None = None, limit: int = 500
    ) -> int:
        """See `ports.Evidence`."""
        with self._step("recall", items=len(keys or ())) as span:
            count = await self._evidence.recall(keys, cascade_id=cascade_id, limit=limit)
            span.tell({"rag.kept": count})
            return count


class TracedIndex:
    """`ports.Index` around another one."""

    def __init__(self, index: Index, tracing: Tracing, *, collection: str) -> None:
        self._index = index
        self._tracing = tracing
        self._collection = collection
        self.prepare = index.prepare
        self.scan = index.scan
        self.count = index.count
        self.drop = index.drop
        self.ping = index.ping

    def _step(self, operation: str, *, items: int, legs: str | None = None) -> AbstractContextManager[OpenSpan]:
        attributes: Attributes = {
            "db.system.name": "qdrant",
            "db.operation.name": operation,
            "db.collection.name": self._collection,
            "rag.items": items,
            "rag.legs": legs,
        }
        return self._tracing.step(f"{operation} {self._collection}", attributes, kind=SpanKind.CLIENT)

    async def store(self, points: Sequence[Point]) -> None:
        """See `ports.Index`."""
        with self._step("store", items=len(points)):
            await self._index.store(points)

    async def search(
        self,
        *,
        dense: npt.NDArray[np.float32],
        sparse: SparseVector | None,
        legs: frozenset[Leg],
        where: SearchFilter,
        limit: int,
    ) -> list[Candidate]:
        """See `ports.Index`."""
        with self._step("search", items=limit, legs=" ".join(sorted(legs))) as span:
            found = await self._index.search(dense=dense, sparse=sparse, legs=legs, where=where, limit=limit)
            span.tell({"rag.kept": len(found)})
            return found

    async def generations(self, keys: Sequence[ArtifactKey]) -> dict[ArtifactKey, set[int]]:
        """See `ports.Index`."""
        with self._step("generations", items=len(keys)):
            return await self._index.generations(keys)

    async def remove(self, key: ArtifactKey, generations: Sequence[int]) -> None:
        """See `ports.Index`."""
        with self._step("remove", items=len(generations)):
            await self._index.remove(key, generations)


class TracedIndexer:
    """`ports.Indexer` around another one: chunk, embed and store, as one step."""

    def __init__(self, indexer: Indexer, tracing: Tracing) -> None:
        self._indexer = indexer
        self._tracing = tracing

    async def index(self, jobs: Sequence[IndexJob]) -> Mapping[int, int | Exception]:
        """See `ports.Indexer`."""
        with self._tracing.step("rag.index", {"rag.items": len(jobs)}) as span:
            done = await self._indexer.index(jobs)
            span.tell({"rag.kept": sum(isinstance(each, int) for each in done.values())})
            return done
