"""The index in Qdrant: one client over gRPC, whether a cluster answers or the embedded engine does.

Two named vectors a point: `dense` (cosine) and `bm25` (term weights; the server adds IDF). The payload holds what
filters need and the chunk's reference, never text. The caller's bounds go into every leg and every prefetch.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from dats_common.domain.access import PUBLIC_TAG, Principal
from dats_common.domain.model import ArtifactKey, ChunkRef, Scope, SparseVector
from dats_common.errors import ConfigurationError, IndexUnavailable, InvalidInput
from dats_common.fingerprint import agree
from dats_common.ports import Leg
from dats_common.records import Candidate, Fingerprint, Point, SearchFilter

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from qdrant_client import AsyncQdrantClient, grpc, models

DENSE, SPARSE = "dense", "bm25"
REFERENCE_FIELDS = ["tenant_id", "artifact_id", "gen", "chunk_no"]

POINTS_PER_UPSERT = 128
"""Source: Qdrant's advice of 64 to 256; 128 points of 384 dimensions are about 0.3 MB on the wire."""
SCROLL_PAGE = 1000
KEYS_PER_FILTER = 256
TIE_MARGIN = 16
"""Hits asked for beyond the limit, so that the ones tied at the edge are all seen and cut by our order, not by the
engine's. Where they are not enough the search is repeated with a wider margin, up to `WIDEST_MARGIN`."""
WIDEST_MARGIN = 1024
REMOVAL_CHECKS = 6
REMOVAL_FIRST_WAIT_S = 0.05
_FINGERPRINT = "dats_fingerprint"


@contextlib.asynccontextmanager
async def open_qdrant(
    *,
    collection: str,
    host: str | None = None,
    grpc_port: int = 6334,
    rest_port: int = 6333,
    url: str | None = None,
    api_key: str | None = None,
    timeout_s: float = 10.0,
) -> AsyncIterator[QdrantIndex]:
    """A client of one collection, for this event loop; no connection is made before the first call.

    Args:
        host: name or address; the alternative is `url`, whose scheme https turns TLS on.
        timeout_s: of every call, rounded up to whole seconds (the client's unit).
    """
    from qdrant_client import AsyncQdrantClient

    client = AsyncQdrantClient(
        host=None if url else host,
        url=url,
        port=rest_port,
        grpc_port=grpc_port,
        api_key=api_key,
        https=None if url else False,
        prefer_grpc=True,
        timeout=math.ceil(timeout_s),
        check_compatibility=False,
        grpc_options=_channel_options(host or url or ""),
    )
    try:
        yield QdrantIndex(client, collection, timeout_s=timeout_s)
    finally:
        await client.close()


def _channel_options(address: str) -> dict[str, Any]:
    """A restarted server is found again within a second or two: gRPC's own back-off grows to two minutes."""
    options: dict[str, Any] = {"grpc.initial_reconnect_backoff_ms": 100, "grpc.max_reconnect_backoff_ms": 2000}
    if any(local in address for local in ("127.0.0.1", "localhost", "[::1]")):
        options["grpc.enable_http_proxy"] = 0  # gRPC would send even loopback calls through http_proxy.
    return options


class QdrantIndex:
    """`ports.Index` over one collection of a Qdrant server or of the embedded engine."""

    def __init__(self, client: AsyncQdrantClient, collection: str, *, timeout_s: float) -> None:
        self._client = client
        self._collection = collection
        self._timeout_s = timeout_s
        self._dimension: int | None = None

    # -- the collection

    async def prepare(self, fingerprint: Fingerprint) -> None:
        """See `ports.Index.prepare`. Also completes the payload indexes that a creation cut short left out."""
        with _translated():
            if not await self._client.collection_exists(self._collection):
                await self._create(fingerprint)
            info = await self._client.get_collection(self._collection)
            _check_fingerprint(fingerprint, (info.config.metadata or {}).get(_FINGERPRINT), self._collection)
            await self._index_payload(present=info.payload_schema)
        self._dimension = fingerprint.dimension

    async def _create(self, fingerprint: Fingerprint) -> None:
        from grpc import StatusCode
        from grpc.aio import AioRpcError
        from qdrant_client import models

        try:
            await self._client.create_collection(
                self._collection,
                vectors_config={
                    DENSE: models.VectorParams(size=fingerprint.dimension, distance=models.Distance.COSINE)
                },
                sparse_vectors_config={SPARSE: models.SparseVectorParams(modifier=models.Modifier.IDF)},
                metadata={_FINGERPRINT: _fingerprint_as_metadata(fingerprint)},
            )
        except AioRpcError as error:
            # Another process made it between our two calls; whether it fits is checked like any other.
            if error.code() is not StatusCode.ALREADY_EXISTS and "already exists" not in (error.details() or ""):
                raise

    async def _index_payload(self, present: Mapping[str, Any]) -> None:
        """Before the first point: a field indexed later slows every search until the server has caught up."""
        for name, schema in _payload_indexes():
            if name not in present:
                _require_completed(await self._client.create_payload_index(self._collection, name, schema, wait=True))

    async def drop(self) -> None:
        """See `ports.Index.drop`."""
        with _translated():
            await self._client.delete_collection(self._collection)

    async def ping(self) -> None:
        """See `ports.Index.ping`."""
        with _translated():
            await self._client.info()

    # -- writes

    async def store(self, points: Sequence[Point]) -> None:
        """See `ports.Index.store`. Every point is judged before the first is sent."""
        structs = [self._struct(point) for point in points]
        with _translated():
            for first in range(0, len(structs), POINTS_PER_UPSERT):
                part = structs[first : first + POINTS_PER_UPSERT]
                _require_completed(
                    await self._client.upsert(self._collection, part, wait=True, ordering=_strong_ordering())
                )

    def _struct(self, point: Point) -> models.PointStruct:
        from qdrant_client import models

        vectors: dict[str, Any] = {DENSE: _checked_dense(point.dense, dimension=self._dimension)}
        if point.sparse.indices:
            indices, values = _checked_sparse(point.sparse)
            vectors[SPARSE] = models.SparseVector(indices=indices, values=values)
        return models.PointStruct(id=point.ref.point_id, vector=vectors, payload=_payload(point))

    async def remove(self, key: ArtifactKey, generations: Sequence[int]) -> None:
        """See `ports.Index.remove`. Deletes again until a count finds none, a bounded number of times."""
        if not generations:
            return
        from qdrant_client import models

        doomed = _generations_filter(key, generations)
        wait_s = REMOVAL_FIRST_WAIT_S
        for _ in range(REMOVAL_CHECKS):
            with _translated():
                selector = models.FilterSelector(filter=doomed)
                _require_completed(
                    await self._client.delete(self._collection, selector, wait=True, ordering=_strong_ordering())
                )
                left = (await self._client.count(self._collection, count_filter=doomed, exact=True)).count
            if left == 0:
                return
            await asyncio.sleep(wait_s)
            wait_s *= 2
        raise IndexUnavailable(f"{left} deleted points still read back after {REMOVAL_CHECKS} deletions")

    # -- reads

    async def search(
        self,
        *,
        dense: npt.NDArray[np.float32],
        sparse: SparseVector | None,
        legs: frozenset[Leg],
        where: SearchFilter,
        limit: int,
    ) -> list[Candidate]:
        """See `ports.Index.search`. Best rank first; IDF counts the principal's tenant alone (server >= 1.19)."""
        if _matches_nothing(where) or limit < 1:
            return []
        query = _checked_dense(dense, dimension=self._dimension)
        terms = sparse if sparse is not None and sparse.indices and "sparse" in legs else None
        if terms is None and "dense" not in legs:
            return []
        margin = TIE_MARGIN
        while True:
            legs_asked = _Legs(query, terms, where, with_dense="dense" in legs, width=limit + margin)
            with _translated():
                answers = await self._ask(legs_asked.requests(self._collection))
            hits = legs_asked.read(answers)
            if margin >= WIDEST_MARGIN or not hits.tied_beyond(limit):
                return hits.candidates(limit)
            margin *= 4

    async def _ask(self, requests: Sequence[grpc.QueryPoints]) -> list[Sequence[grpc.ScoredPoint]]:
        """Each request's points as they come: to go through the client's own models costs a tenth of a search."""
        from qdrant_client import grpc

        batch = grpc.QueryBatchPoints(collection_name=self._collection, query_points=requests)
        response = await self._client.grpc_points.QueryBatch(batch, timeout=self._timeout_s)
        return [answer.result for answer in response.result]

    async def generations(self, keys: Sequence[ArtifactKey]) -> dict[ArtifactKey, set[int]]:
        """See `ports.Index.generations`."""
        found: dict[ArtifactKey, set[int]] = {}
        for first in range(0, len(keys), KEYS_PER_FILTER):
            where = _keys_filter(keys[first : first + KEYS_PER_FILTER])
            async for page in self._pages(where):
                for ref in page:
                    found.setdefault(ref.key, set()).add(ref.generation)
        return found

    async def scan(self) -> AsyncIterator[dict[ArtifactKey, set[int]]]:
        """See `ports.Index.scan`."""
        async for page in self._pages(None):
            found: dict[ArtifactKey, set[int]] = {}
            for ref in page:
                found.setdefault(ref.key, set()).add(ref.generation)
            yield found

    async def chunks_of(self, keys: Sequence[ArtifactKey]) -> list[ChunkRef]:
        """See `ports.IndexInventory`."""
        wanted = [keys[first : first + KEYS_PER_FILTER] for first in range(0, len(keys), KEYS_PER_FILTER)]
        return [ref for part in wanted async for page in self._pages(_keys_filter(part)) for ref in page]

    def scan_chunks(self) -> AsyncIterator[list[ChunkRef]]:
        """See `ports.IndexInventory`."""
        return self._pages(None)

    async def _pages(self, where: models.Filter | None) -> AsyncIterator[list[ChunkRef]]:
        offset: Any = None
        while True:
            with _translated():
                records, offset = await self._client.scroll(
                    self._collection,
                    scroll_filter=where,
                    limit=SCROLL_PAGE,
                    offset=offset,
                    with_payload=REFERENCE_FIELDS,
                )
            if records:
                yield [_reference(record.payload or {}) for record in records]
            if offset is None:
                return

    async def count(self) -> int:
        """See `ports.Index.count`."""
        with _translated():
            return (await self._client.count(self._collection, exact=True)).count


# ------------------------------------------------------------------------------------------------------------ search


@dataclass(frozen=True, slots=True)
class _Legs:
    """The queries of one search, sent in one round trip, and how to read their answers."""

    query: list[float]
    terms: SparseVector | None
    where: SearchFilter
    with_dense: bool
    width: int

    def requests(self, collection: str) -> list[grpc.QueryPoints]:
        """The dense leg, the keyword leg, and the keyword leg's hits scored by cosine; those that are wanted."""
        from qdrant_client import grpc

        bounds, of_tenant = _wire_bounds(self.where)
        references = grpc.WithPayloadSelector(include=grpc.PayloadIncludeSelector(fields=REFERENCE_FIELDS))
        by_cosine: dict[str, Any] = {
            "query": grpc.Query(nearest=grpc.VectorInput(dense=grpc.DenseVector(data=self.query))),
            "using": DENSE,
            "filter": bounds,
            "limit": self.width,
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

    def read(self, answers: Sequence[Sequence[grpc.ScoredPoint]]) -> _Hits:
        """The answers to `requests`, in their order."""
        remaining = list(answers)
        dense = remaining.pop(0) if self.with_dense else []
        keyword, rescored = remaining if self.terms is not None else ([], [])
        refs = {point.id.uuid: _reference_in(point) for point in (*dense, *keyword)}
        return _Hits(
            dense=_in_order(dense, refs),
            sparse=_in_order(keyword, refs),
            cosines={refs[point.id.uuid]: point.score for point in (*dense, *rescored) if point.id.uuid in refs},
            width=self.width,
        )


@dataclass(frozen=True, slots=True)
class _Hits:
    """Both legs in our order, and the cosine of every hit."""

    dense: list[tuple[ChunkRef, float]]
    sparse: list[tuple[ChunkRef, float]]
    cosines: Mapping[ChunkRef, float]
    width: int

    def tied_beyond(self, limit: int) -> bool:
        """Whether hits that we were not given may tie with the last one that counts."""
        return any(len(leg) == self.width and leg[limit - 1][1] == leg[-1][1] for leg in (self.dense, self.sparse))

    def candidates(self, limit: int) -> list[Candidate]:
        """Both legs cut to `limit` and merged by chunk, best rank first.

        A hit whose point vanished between the two keyword queries has no cosine and is left out.
        """
        dense_ranks = {ref: rank for rank, (ref, _) in enumerate(self.dense[:limit], start=1)}
        sparse_ranks = {ref: rank for rank, (ref, _) in enumerate(self.sparse[:limit], start=1)}
        sparse_scores = dict(self.sparse[:limit])
        merged = [
            Candidate(
                ref=ref,
                similarity=min(1.0, max(0.0, self.cosines[ref])),
                dense_rank=dense_ranks.get(ref),
                sparse_rank=sparse_ranks.get(ref),
                sparse_score=sparse_scores.get(ref),
            )
            for ref in {**dense_ranks, **sparse_ranks}
            if ref in self.cosines
        ]
        return sorted(merged, key=_best_rank)


def _best_rank(candidate: Candidate) -> tuple[int, str, int]:
    ranks = [rank for rank in (candidate.dense_rank, candidate.sparse_rank) if rank is not None]
    return min(ranks), candidate.ref.source_id, candidate.ref.generation


def _in_order(points: Sequence[grpc.ScoredPoint], refs: Mapping[str, ChunkRef]) -> list[tuple[ChunkRef, float]]:
    """Best score first; ties by source id, then generation, never by the engine's inner order."""
    found = [(refs[point.id.uuid], point.score) for point in points]
    if len({score for _, score in found}) == len(found):
        return sorted(found, key=itemgetter(1), reverse=True)  # Names are costly to compare, and mostly nothing ties.
    return sorted(found, key=lambda hit: (-hit[1], hit[0].source_id, hit[0].generation))


def _reference_in(point: grpc.ScoredPoint) -> ChunkRef:
    payload = point.payload
    key = ArtifactKey(payload["tenant_id"].string_value, payload["artifact_id"].string_value)
    return ChunkRef(key, generation=payload["gen"].integer_value, chunk_index=payload["chunk_no"].integer_value)


def _reference(payload: Mapping[str, Any]) -> ChunkRef:
    key = ArtifactKey(payload["tenant_id"], payload["artifact_id"])
    return ChunkRef(key, generation=payload["gen"], chunk_index=payload["chunk_no"])


# ----------------------------------------------------------------------------------------------------------- filters


@lru_cache(maxsize=64)  # Callers come again, mostly with the same bounds.
def _wire_bounds(where: SearchFilter) -> tuple[grpc.Filter, grpc.SearchParams]:
    """What every leg is bounded by, and by what its terms are weighed: the tenant's documents alone."""
    from qdrant_client import models
    from qdrant_client.conversions.conversion import RestToGrpc

    weighed = models.SearchParams(idf=models.IdfCorpusParams(corpus=_tenant_filter(where.principal)))
    return RestToGrpc.convert_filter(_visible_filter(where)), RestToGrpc.convert_search_params(weighed)


def _matches_nothing(where: SearchFilter) -> bool:
    """An empty list of wanted values is met by nothing; servers differ in how they read one."""
    return () in (where.doc_types, where.tags, where.artifact_ids)


def _visible_filter(where: SearchFilter) -> models.Filter:
    """`domain.access.may_see` and the request's narrowing, as one filter."""
    must = [*_access_conditions(where.principal)]
    must += [
        _equals(name, wanted)
        for name, wanted in (("project_id", where.project_id), ("domain", where.domain))
        if wanted is not None
    ]
    must += [
        _any_of(name, wanted)
        for name, wanted in (("doc_type", where.doc_types), ("tags", where.tags), ("artifact_id", where.artifact_ids))
        if wanted is not None
    ]
    if where.verified_only:
        must.append(_equals("verified", True))
    return _all_of(must)


def _access_conditions(principal: Principal) -> list[Any]:
    from qdrant_client import models

    own: list[Any] = []
    if principal.user_id is not None:
        own.append(_all_of([_equals("scope", Scope.USER.value), _equals("user_id", principal.user_id)]))
    if principal.project_ids is None:
        own.append(_equals("scope", Scope.PROJECT.value))
    elif principal.project_ids:
        own.append(_all_of([_equals("scope", Scope.PROJECT.value), _any_of("project_id", principal.project_ids)]))
    either: list[Any] = [_equals("scope", Scope.PUBLIC.value)]
    if own:
        either.append(_all_of([_equals("tenant_id", principal.tenant_id), models.Filter(should=own)]))
    conditions: list[Any] = [models.Filter(should=either)]
    if principal.tags is not None:
        # Points without tags are stored as public, so that this one condition is the whole rule.
        conditions.append(_any_of("tags", principal.tags | {PUBLIC_TAG}))
    return conditions


def _tenant_filter(principal: Principal) -> models.Filter:
    return _all_of([_equals("tenant_id", principal.tenant_id)])


def _generations_filter(key: ArtifactKey, generations: Sequence[int]) -> models.Filter:
    return _all_of(
        [_equals("tenant_id", key.tenant_id), _equals("artifact_id", key.artifact_id), _any_of("gen", generations)]
    )


def _keys_filter(keys: Sequence[ArtifactKey]) -> models.Filter:
    from qdrant_client import models

    by_tenant: dict[str, list[str]] = {}
    for key in keys:
        by_tenant.setdefault(key.tenant_id, []).append(key.artifact_id)
    return models.Filter(
        should=[
            _all_of([_equals("tenant_id", tenant), _any_of("artifact_id", artifacts)])
            for tenant, artifacts in by_tenant.items()
        ]
    )


def _all_of(conditions: list[Any]) -> models.Filter:
    from qdrant_client import models

    return models.Filter(must=conditions)


def _equals(name: str, value: str | bool) -> models.FieldCondition:
    from qdrant_client import models

    return models.FieldCondition(key=name, match=models.MatchValue(value=value))


def _any_of(name: str, values: Any) -> models.FieldCondition:
    from qdrant_client import models

    return models.FieldCondition(key=name, match=models.MatchAny(any=sorted(values)))


# ------------------------------------------------------------------------------------------------------------ points


def _payload_indexes() -> list[tuple[str, Any]]:
    from qdrant_client import models

    keyword = models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD)
    tenant = models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD, is_tenant=True)
    return [
        ("tenant_id", tenant),
        ("artifact_id", keyword),
        # Never asked for a range, and an index for ranges would cost its files at every flush.
        ("gen", models.IntegerIndexParams(type=models.IntegerIndexType.INTEGER, lookup=True, range=False)),
        *((name, keyword) for name in ("project_id", "domain", "doc_type", "tags")),
        ("verified", models.PayloadSchemaType.BOOL),
        ("scope", keyword),
        ("user_id", keyword),
    ]


def _payload(point: Point) -> dict[str, Any]:
    ref, metadata = point.ref, point.metadata
    payload = {
        "tenant_id": ref.key.tenant_id,
        "artifact_id": ref.key.artifact_id,
        "gen": ref.generation,
        "chunk_no": ref.chunk_index,
        "document_id": ref.key.document_id,
        "project_id": metadata.project_id,
        "domain": metadata.domain,
        "doc_type": metadata.doc_type,
        "tags": list(metadata.tags) or [PUBLIC_TAG],
        "verified": metadata.verified,
        "scope": metadata.scope.value,
    }
    if metadata.user_id is not None:
        payload["user_id"] = metadata.user_id
    return payload


def _checked_dense(vector: npt.NDArray[np.float32], *, dimension: int | None) -> list[float]:
    """Raises: InvalidInput: not one vector of this length, or a number that is not finite."""
    import numpy as np

    if vector.ndim != 1 or (dimension is not None and len(vector) != dimension):
        raise InvalidInput(f"a dense vector has shape {vector.shape}, expected ({dimension},)")
    if not np.isfinite(vector).all():
        raise InvalidInput("a dense vector holds a number that is not finite")
    values: list[float] = vector.tolist()
    return values


def _checked_sparse(vector: SparseVector) -> tuple[list[int], list[float]]:
    """Raises: InvalidInput: unequal lengths, a term twice, or a weight that is not finite."""
    if len(vector.indices) != len(vector.values):
        raise InvalidInput(f"a sparse vector has {len(vector.indices)} terms but {len(vector.values)} weights")
    if len(set(vector.indices)) != len(vector.indices):
        raise InvalidInput("a sparse vector names a term twice")
    if not all(map(math.isfinite, vector.values)):
        raise InvalidInput("a sparse vector holds a weight that is not finite")
    return list(vector.indices), list(vector.values)


# ------------------------------------------------------------------------------------------------------- fingerprint


def _fingerprint_as_metadata(fingerprint: Fingerprint) -> dict[str, Any]:
    return {
        "model": fingerprint.model,
        "dimension": fingerprint.dimension,
        "max_tokens": fingerprint.max_tokens,
        "sparse_version": fingerprint.sparse_version,
        "probe": [list(vector) for vector in fingerprint.probe],
    }


def _check_fingerprint(ours: Fingerprint, stored: Any, collection: str) -> None:
    """Raises: ConfigurationError: the collection is another model's, or tells none."""
    if not isinstance(stored, dict):
        raise ConfigurationError(
            f"the Qdrant collection {collection!r} does not tell which model wrote it. Either it is not ours: set "
            "QDRANT_COLLECTION to another name; or the server drops collection metadata: use Qdrant 1.16 or newer, "
            "then `dats-rag reindex --recreate`."
        )
    written = Fingerprint(
        model=stored.get("model", ""),
        dimension=stored.get("dimension", 0),
        max_tokens=stored.get("max_tokens", 0),
        sparse_version=stored.get("sparse_version", ""),
        probe=tuple(map(tuple, stored.get("probe", ()))),
    )
    differences = agree(written, ours)
    if differences:
        raise ConfigurationError(
            f"the Qdrant collection {collection!r} was written by another model ({'; '.join(differences)}). "
            "Set the model back (EMBEDDING_MODEL), or run `dats-rag reindex --recreate`."
        )


# --------------------------------------------------------------------------------------------------------------- rim


def _strong_ordering() -> models.WriteOrdering:
    from qdrant_client import models

    return models.WriteOrdering.STRONG


def _require_completed(result: models.UpdateResult) -> None:
    """`acknowledged` and `wait_timeout` come as successes, but nobody may call such a write done.

    Raises: IndexUnavailable.
    """
    from qdrant_client import models

    if result.status != models.UpdateStatus.COMPLETED:
        raise IndexUnavailable(f"Qdrant did not confirm a write: {result.status}")


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """The client's errors as ours, once.

    Raises: InvalidInput; ConfigurationError: the credentials are refused; IndexUnavailable: everything else.
    """
    from grpc import StatusCode
    from grpc.aio import AioRpcError
    from qdrant_client.common.client_exceptions import QdrantException

    try:
        yield
    except AioRpcError as error:
        code, details = error.code(), error.details()
        if code is StatusCode.INVALID_ARGUMENT:
            raise InvalidInput(f"Qdrant refused the request: {details}") from error
        if code in (StatusCode.UNAUTHENTICATED, StatusCode.PERMISSION_DENIED):
            raise ConfigurationError(f"Qdrant refused our credentials ({details}): check QDRANT_API_KEY") from error
        raise IndexUnavailable(f"Qdrant: {code.name}: {details}") from error
    except (QdrantException, ValueError) as error:  # ValueError: an answer that the client does not know.
        raise IndexUnavailable(f"Qdrant: {error}") from error
