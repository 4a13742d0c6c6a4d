"""One search: the queries it sends, and what their answers mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from dats_common.adapters.qdrant.collection import OVERSAMPLING
from dats_common.adapters.qdrant.filters import wire_bounds
from dats_common.adapters.qdrant.points import DENSE, REFERENCE_FIELDS, SPARSE
from dats_common.domain.model import ArtifactKey, ChunkRef, SparseVector
from dats_common.records import Candidate, SearchFilter

if TYPE_CHECKING:
    from qdrant_client import grpc


@dataclass(frozen=True, slots=True)
class Legs:
    """The queries of one search, sent in one round trip, and how to read their answers."""

    query: list[float]
    terms: SparseVector | None
    where: SearchFilter
    with_dense: bool
    width: int

    def requests(self, collection: str) -> list[grpc.QueryPoints]:
        """The dense leg, the keyword leg, and the keyword leg's hits scored by cosine; those that are wanted."""
        from qdrant_client import grpc

        bounds, of_tenant = wire_bounds(self.where)
        # Of int8 vectors twice as many are taken, and the exact ones decide; without int8 this means nothing.
        exactly = grpc.QuantizationSearchParams(rescore=True, oversampling=OVERSAMPLING)
        references = grpc.WithPayloadSelector(include=grpc.PayloadIncludeSelector(fields=REFERENCE_FIELDS))
        by_cosine: dict[str, Any] = {
            "query": grpc.Query(nearest=grpc.VectorInput(dense=grpc.DenseVector(data=self.query))),
            "using": DENSE,
            "filter": bounds,
            "limit": self.width,
            "params": grpc.SearchParams(quantization=exactly),
        }
        requests = []
        if self.with_dense:
            requests.append(grpc.QueryPoints(collection_name=collection, **by_cosine, with_payload=references))
        if self.terms is not None:
            wanted = grpc.SparseVector(indices=self.terms.indices, values=self.terms.values)
            by_terms: dict[str, Any] = {
                "query": grpc.Query(nearest=grpc.VectorInput(sparse=wanted)),
                "using": SPARSE,
                "filter": bounds,
                "limit": self.width,
                "params": of_tenant,
            }
            requests.append(grpc.QueryPoints(collection_name=collection, **by_terms, with_payload=references))
            rescored = [grpc.PrefetchQuery(**by_terms)]
            none = grpc.WithPayloadSelector(enable=False)
            requests.append(
                grpc.QueryPoints(collection_name=collection, **by_cosine, prefetch=rescored, with_payload=none)
            )
        return requests

    def read(self, answers: Sequence[Sequence[grpc.ScoredPoint]]) -> Hits:
        """The answers to `requests`, in their order."""
        remaining = list(answers)
        dense = remaining.pop(0) if self.with_dense else []
        keyword, rescored = remaining if self.terms is not None else ([], [])
        refs = {point.id.uuid: reference_in(point) for point in (*dense, *keyword)}
        return Hits(
            dense=_in_order(dense, refs),
            sparse=_in_order(keyword, refs),
            cosines={point.id.uuid: point.score for point in (*dense, *rescored)},
            refs=refs,
            width=self.width,
        )


@dataclass(frozen=True, slots=True)
class Hits:
    """Both legs in our order, and the cosine of every hit; by point id, whose hash costs least."""

    dense: list[tuple[str, float]]
    sparse: list[tuple[str, float]]
    cosines: Mapping[str, float]
    refs: Mapping[str, ChunkRef]
    width: int

    def tied_beyond(self, limit: int) -> bool:
        """Whether hits that we were not given may tie with the last one that counts."""
        return any(len(leg) == self.width and leg[limit - 1][1] == leg[-1][1] for leg in (self.dense, self.sparse))

    def candidates(self, limit: int) -> list[Candidate]:
        """Both legs cut to `limit` and merged by chunk, best rank first.

        A hit whose point vanished between the two keyword queries has no cosine and is left out.
        """
        dense_ranks = {point_id: rank for rank, (point_id, _) in enumerate(self.dense[:limit], start=1)}
        sparse_ranks = {point_id: rank for rank, (point_id, _) in enumerate(self.sparse[:limit], start=1)}
        sparse_scores = dict(self.sparse[:limit])
        merged = [
            Candidate(
                ref=self.refs[point_id],
                similarity=min(1.0, max(0.0, self.cosines[point_id])),
                dense_rank=dense_ranks.get(point_id),
                sparse_rank=sparse_ranks.get(point_id),
                sparse_score=sparse_scores.get(point_id),
            )
            for point_id in {**dense_ranks, **sparse_ranks}
            if point_id in self.cosines
        ]
        return sorted(merged, key=_best_rank)


def _best_rank(candidate: Candidate) -> tuple[int, str, int]:
    ranks = [rank for rank in (candidate.dense_rank, candidate.sparse_rank) if rank is not None]
    return min(ranks), candidate.ref.source_id, candidate.ref.generation


def _in_order(points: Sequence[grpc.ScoredPoint], refs: Mapping[str, ChunkRef]) -> list[tuple[str, float]]:
    """Best score first; ties by source id, then generation, never by the engine's inner order."""
    found = [(point.id.uuid, point.score) for point in points]
    if len({score for _, score in found}) == len(found):
        return sorted(found, key=itemgetter(1), reverse=True)  # Names are costly to compare, and mostly nothing ties.
    return sorted(found, key=lambda hit: (-hit[1], refs[hit[0]].source_id, refs[hit[0]].generation))


def reference_in(point: grpc.ScoredPoint) -> ChunkRef:
    payload = point.payload
    key = ArtifactKey(payload["tenant_id"].string_value, payload["artifact_id"].string_value)
    return ChunkRef(key, generation=payload["gen"].integer_value, chunk_index=payload["chunk_no"].integer_value)
