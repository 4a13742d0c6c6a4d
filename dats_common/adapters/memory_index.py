"""The index in this process's memory: exact, small, gone with it. The twin that tests and demonstrations run on."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from dats_common.domain.access import PUBLIC_TAG, may_see
from dats_common.domain.model import ArtifactKey, ChunkRef, SparseVector
from dats_common.errors import ConfigurationError, IndexUnavailable, InvalidInput
from dats_common.fingerprint import agree
from dats_common.ports import Leg
from dats_common.records import Candidate, Fingerprint, Point, SearchFilter

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

SCAN_PAGE = 1000


class MemoryIndex:
    """`ports.Index` over a dictionary: a full scan a search, every rule written out as the domain has it."""

    def __init__(self) -> None:
        self._fingerprint: Fingerprint | None = None
        self._points: dict[ChunkRef, Point] = {}

    async def prepare(self, fingerprint: Fingerprint) -> None:
        """See `ports.Index.prepare`."""
        if self._fingerprint is None:
            self._fingerprint = fingerprint
        elif differences := agree(self._fingerprint, fingerprint):
            raise ConfigurationError(
                f"the index was written by another model ({'; '.join(differences)}). "
                "Set the model back (EMBEDDING_MODEL), or run `dats-rag reindex`."
            )

    async def store(self, points: Sequence[Point]) -> None:
        """See `ports.Index.store`."""
        dimension = self._prepared().dimension
        for point in points:
            _check_dense(point.dense, dimension=dimension)
            _check_sparse(point.sparse)
        self._points.update({point.ref: point for point in points})

    async def search(
        self,
        *,
        dense: npt.NDArray[np.float32],
        sparse: SparseVector | None,
        legs: frozenset[Leg],
        where: SearchFilter,
        limit: int,
    ) -> list[Candidate]:
        """See `ports.Index.search`. Best rank first."""
        _check_dense(dense, dimension=self._prepared().dimension)
        visible = [point for point in self._points.values() if _meets(point, where)]
        by_dense = by_sparse = {}
        scores: dict[ChunkRef, float] = {}
        if "dense" in legs:
            by_dense = _ranks({point.ref: _cosine(point.dense, dense) for point in visible}, limit=limit)
        if "sparse" in legs and sparse is not None:
            weights = self._idf_weighted(sparse, tenant_id=where.principal.tenant_id)
            scores = {point.ref: _dot(point.sparse, weights) for point in visible if _shares(point.sparse, weights)}
            by_sparse = _ranks(scores, limit=limit)
        merged = [
            Candidate(
                ref=ref,
                similarity=min(1.0, max(0.0, _cosine(self._points[ref].dense, dense))),
                dense_rank=by_dense.get(ref),
                sparse_rank=by_sparse.get(ref),
                sparse_score=scores[ref] if ref in by_sparse else None,
            )
            for ref in {**by_dense, **by_sparse}
        ]
        return sorted(merged, key=_best_rank)

    def _idf_weighted(self, query: SparseVector, *, tenant_id: str) -> dict[int, float]:
        """Query weight times inverse document frequency within the tenant.

        Source: Robertson and Zaragoza 2009, BM25's IDF with the +1 that keeps it positive, as Qdrant computes it.
        """
        documents = [
            set(point.sparse.indices)
            for ref, point in self._points.items()
            if ref.key.tenant_id == tenant_id and point.sparse.indices
        ]
        weights = {}
        for term, weight in zip(query.indices, query.values, strict=True):
            having = sum(term in terms for terms in documents)
            weights[term] = weight * math.log(1 + (len(documents) - having + 0.5) / (having + 0.5))
        return weights

    async def generations(self, keys: Sequence[ArtifactKey]) -> dict[ArtifactKey, set[int]]:
        """See `ports.Index.generations`."""
        wanted = set(keys)
        return _by_key(ref for ref in self._points if ref.key in wanted)

    async def scan(self) -> AsyncIterator[dict[ArtifactKey, set[int]]]:
        """See `ports.Index.scan`."""
        refs = list(self._points)
        for first in range(0, len(refs), SCAN_PAGE):
            yield _by_key(refs[first : first + SCAN_PAGE])

    async def chunks_of(self, keys: Sequence[ArtifactKey]) -> list[ChunkRef]:
        """See `ports.IndexInventory`."""
        wanted = set(keys)
        return [ref for ref in self._points if ref.key in wanted]

    async def scan_chunks(self) -> AsyncIterator[list[ChunkRef]]:
        """See `ports.IndexInventory`."""
        refs = list(self._points)
        for first in range(0, len(refs), SCAN_PAGE):
            yield refs[first : first + SCAN_PAGE]

    async def remove(self, key: ArtifactKey, generations: Sequence[int]) -> None:
        """See `ports.Index.remove`."""
        doomed = set(generations)
        self._keep(lambda ref: ref.key != key or ref.generation not in doomed)

    def _keep(self, wanted: Callable[[ChunkRef], bool]) -> None:
        self._points = {ref: point for ref, point in self._points.items() if wanted(ref)}

    async def count(self) -> int:
        """See `ports.Index.count`."""
        self._prepared()
        return len(self._points)

    async def drop(self) -> None:
        """See `ports.Index.drop`."""
        self._fingerprint = None
        self._points = {}

    async def ping(self) -> None:
        """See `ports.Index.ping`: memory is always there."""

    def _prepared(self) -> Fingerprint:
        if self._fingerprint is None:
            raise IndexUnavailable("the index has not been prepared")
        return self._fingerprint


# ------------------------------------------------------------------------------------------------------------- rules


def _meets(point: Point, where: SearchFilter) -> bool:
    metadata = point.metadata
    tags = metadata.tags or (PUBLIC_TAG,)
    return (
        may_see(
            where.principal,
            tenant_id=point.ref.key.tenant_id,
            scope=metadata.scope,
            user_id=metadata.user_id,
            project_id=metadata.project_id,
            tags=metadata.tags,
        )
        and where.project_id in (None, metadata.project_id)
        and where.domain in (None, metadata.domain)
        and (where.doc_types is None or metadata.doc_type in where.doc_types)
        and (where.tags is None or not set(tags).isdisjoint(where.tags))
        and (where.artifact_ids is None or point.ref.key.artifact_id in where.artifact_ids)
        and (metadata.verified or not where.verified_only)
    )


def _ranks(scores: dict[ChunkRef, float], *, limit: int) -> dict[ChunkRef, int]:
    """1-based; ties by source id, then generation."""
    best = sorted(scores, key=lambda ref: (-scores[ref], ref.source_id, ref.generation))
    return {ref: rank for rank, ref in enumerate(best[:limit], start=1)}


def _best_rank(candidate: Candidate) -> tuple[int, str, int]:
    ranks = [rank for rank in (candidate.dense_rank, candidate.sparse_rank) if rank is not None]
    return min(ranks), candidate.ref.source_id, candidate.ref.generation


def _cosine(left: npt.NDArray[np.float32], right: npt.NDArray[np.float32]) -> float:
    import numpy as np

    norms = float(np.linalg.norm(left)) * float(np.linalg.norm(right))
    return float(np.dot(left, right)) / norms if norms else 0.0


def _dot(document: SparseVector, weights: dict[int, float]) -> float:
    return sum(value * weights.get(term, 0.0) for term, value in zip(document.indices, document.values, strict=True))


def _shares(document: SparseVector, weights: dict[int, float]) -> bool:
    return any(term in weights for term in document.indices)


def _by_key(refs: Iterable[ChunkRef]) -> dict[ArtifactKey, set[int]]:
    found: dict[ArtifactKey, set[int]] = {}
    for ref in refs:
        found.setdefault(ref.key, set()).add(ref.generation)
    return found


def _check_dense(vector: npt.NDArray[np.float32], *, dimension: int) -> None:
    import numpy as np

    if vector.shape != (dimension,) or not np.isfinite(vector).all():
        raise InvalidInput(f"a dense vector must be {dimension} finite numbers, not of shape {vector.shape}")


def _check_sparse(vector: SparseVector) -> None:
    unique = len(set(vector.indices)) == len(vector.indices) == len(vector.values)
    if not unique or not all(map(math.isfinite, vector.values)):
        raise InvalidInput("a sparse vector must have unique terms with one finite weight each")
