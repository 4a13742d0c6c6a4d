"""Qdrant's wire messages to engine objects and back; everything is judged here, before the engine sees it.

The engine writes its log before it validates: a sparse vector of unequal lengths panics it, and the log then panics it
again at every start. So what this module lets through must be harmless, and what it does not know it refuses.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any
from uuid import UUID

import numpy as np
import qdrant_edge as edge
from qdrant_client import grpc, models
from qdrant_client.conversions.conversion import GrpcToRest, grpc_to_payload, payload_to_grpc

from dats_common.embedded.qdrant_strict import unknown_bounds

DEFAULT_LIMIT = 10  # Qdrant's own, for queries and scrolls that name none.

# Kilobytes of vectors before a segment would want HNSW: never. Exact search is faster than 10 ms up to 100 k points,
# and building a graph would hold the interpreter's lock for seconds.
NEVER_INDEX_KB = 100_000_000

_SCHEMA_TYPES = {
    grpc.FieldType.FieldTypeKeyword: (edge.PayloadSchemaType.Keyword, grpc.PayloadSchemaType.Keyword),
    grpc.FieldType.FieldTypeInteger: (edge.PayloadSchemaType.Integer, grpc.PayloadSchemaType.Integer),
    grpc.FieldType.FieldTypeFloat: (edge.PayloadSchemaType.Float, grpc.PayloadSchemaType.Float),
    grpc.FieldType.FieldTypeBool: (edge.PayloadSchemaType.Bool, grpc.PayloadSchemaType.Bool),
    grpc.FieldType.FieldTypeDatetime: (edge.PayloadSchemaType.Datetime, grpc.PayloadSchemaType.Datetime),
    grpc.FieldType.FieldTypeUuid: (edge.PayloadSchemaType.Uuid, grpc.PayloadSchemaType.Uuid),
}


class Unsupported(ValueError):
    """A valid Qdrant request that the embedded engine does not serve; a real server does."""


# ------------------------------------------------------------------------------------------------------ collections


def shard_config(request: grpc.CreateCollection) -> edge.EdgeConfig:
    """The engine's settings for a collection of named vectors.

    What only several nodes or an approximate search can honour (shards, replicas, int8, placement in memory) changes
    nothing here: the engine is one node, and its exact search needs no second look at the exact vectors.

    Raises: Unsupported: an unnamed vector, a multivector, or none at all; shards by key; another quantization than
        int8; a bound of strict mode that is not kept here.
    """
    _refuse_what_would_be_missed(request)
    dense = {
        name: edge.EdgeVectorParams(size=params.size, distance=_distance(params))
        for name, params in request.vectors_config.params_map.map.items()
    }
    if not dense:
        raise Unsupported("the embedded engine serves named dense vectors only")
    sparse = {
        name: edge.EdgeSparseVectorParams(modifier=edge.Modifier.Idf if params.modifier == grpc.Modifier.Idf else None)
        for name, params in request.sparse_vectors_config.map.items()
    }
    return edge.EdgeConfig(
        vectors=dense,
        sparse_vectors=sparse,
        optimizers=edge.EdgeOptimizersConfig(indexing_threshold=NEVER_INDEX_KB),
    )


def _refuse_what_would_be_missed(request: grpc.CreateCollection) -> None:
    if request.sharding_method == grpc.ShardingMethod.Custom:
        raise Unsupported("the embedded engine serves no shards by key")
    wanted = request.quantization_config.WhichOneof("quantization")
    if wanted not in (None, "scalar"):
        raise Unsupported(f"the embedded engine knows no {wanted} quantization")
    if unknown := unknown_bounds(request.strict_mode_config):
        raise Unsupported(f"the embedded engine's strict mode has no {', '.join(unknown)}")


def _distance(params: grpc.VectorParams) -> edge.Distance:
    if params.HasField("multivector_config"):
        raise Unsupported("the embedded engine serves no multivectors")
    distance: edge.Distance = getattr(edge.Distance, grpc.Distance.Name(params.distance))
    return distance


def dimensions(request: grpc.CreateCollection) -> dict[str, int]:
    """Dense vector name -> length."""
    return {name: params.size for name, params in request.vectors_config.params_map.map.items()}


def sparse_names(request: grpc.CreateCollection) -> frozenset[str]:
    """Names of the sparse vectors."""
    return frozenset(request.sparse_vectors_config.map)


def field_schema(request: grpc.CreateFieldIndexCollection) -> Any:
    """What the engine is to index of a payload field. Raises: Unsupported."""
    if request.field_type not in _SCHEMA_TYPES:
        raise Unsupported(f"the embedded engine has no payload index of type {request.field_type}")
    if request.field_index_params.HasField("keyword_index_params"):
        return edge.KeywordIndexParams(is_tenant=request.field_index_params.keyword_index_params.is_tenant)
    return _SCHEMA_TYPES[request.field_type][0]


def payload_schema(indexes: Mapping[str, grpc.CreateFieldIndexCollection]) -> dict[str, grpc.PayloadSchemaInfo]:
    """The same indexes as a collection's description tells them."""
    return {
        name: grpc.PayloadSchemaInfo(
            data_type=_SCHEMA_TYPES[request.field_type][1],
            params=request.field_index_params if request.HasField("field_index_params") else None,
        )
        for name, request in indexes.items()
    }


# ----------------------------------------------------------------------------------------------------------- writes


def point(message: grpc.PointStruct, *, dense: Mapping[str, int], sparse: frozenset[str]) -> edge.Point:
    """A point that cannot hurt the engine.

    Args:
        dense: length of each dense vector by name.
        sparse: names of the sparse vectors.

    Raises: ValueError: an unknown vector name, a wrong length, a number that is not finite, a ragged sparse vector.
    """
    named = message.vectors.vectors.vectors
    if not named:
        raise ValueError("a point needs named vectors")
    vectors = {name: _vector(name, vector, dense=dense, sparse=sparse) for name, vector in named.items()}
    payload = grpc_to_payload(message.payload)
    return edge.Point(point_id(message.id), vectors, payload)


def _vector(name: str, message: grpc.Vector, *, dense: Mapping[str, int], sparse: frozenset[str]) -> Any:
    match message.WhichOneof("vector"):
        case "dense" if name in dense:
            return dense_vector(message.dense.data, name=name, size=dense[name])
        case "sparse" if name in sparse:
            return sparse_vector(message.sparse.indices, message.sparse.values, name=name)
    raise ValueError(f"the collection has no such vector: {name!r}")


def dense_vector(values: Sequence[float], *, name: str, size: int) -> list[float]:
    """Raises: ValueError: the wrong length, or a number that is not finite."""
    if len(values) != size:
        raise ValueError(f"vector {name!r} has {len(values)} dimensions, expected {size}")
    if not all(map(math.isfinite, values)):
        raise ValueError(f"vector {name!r} holds a number that is not finite")
    return list(values)


def sparse_vector(indices: Sequence[int], values: Sequence[float], *, name: str) -> edge.SparseVector:
    """Raises: ValueError: unequal lengths, an index twice, or a number that is not finite."""
    if len(indices) != len(values):
        raise ValueError(f"sparse vector {name!r} has {len(indices)} indices but {len(values)} values")
    if len(set(indices)) != len(indices):
        raise ValueError(f"sparse vector {name!r} names an index twice")
    if not all(map(math.isfinite, values)):
        raise ValueError(f"sparse vector {name!r} holds a number that is not finite")
    return edge.SparseVector(list(indices), list(values))


def deletion(selector: grpc.PointsSelector) -> edge.UpdateOperation:
    """Raises: ValueError: neither ids nor a filter."""
    match selector.WhichOneof("points_selector_one_of"):
        case "points":
            return edge.UpdateOperation.delete_points([point_id(one) for one in selector.points.ids])
        case "filter":
            return edge.UpdateOperation.delete_points_by_filter(condition_filter(selector.filter))
    raise ValueError("a deletion needs ids or a filter")


def point_id(message: grpc.PointId) -> int | UUID:
    """Raises: ValueError: not a number and not a UUID."""
    return UUID(message.uuid) if message.WhichOneof("point_id_options") == "uuid" else message.num


# ---------------------------------------------------------------------------------------------------------- filters


def condition_filter(message: grpc.Filter) -> edge.Filter:
    """Raises: Unsupported: a condition that the embedded engine does not serve."""
    return _filter(GrpcToRest.convert_filter(message))


def _filter(rest: models.Filter) -> edge.Filter:
    at_least = rest.min_should
    return edge.Filter(
        must=_conditions(rest.must),
        should=_conditions(rest.should),
        must_not=_conditions(rest.must_not),
        min_should=edge.MinShould(_conditions(at_least.conditions) or [], at_least.min_count) if at_least else None,
    )


def _conditions(found: Any) -> list[Any] | None:
    """None for an empty list: the engine reads an empty list as a condition that nothing meets."""
    if not found:
        return None
    return [_condition(one) for one in (found if isinstance(found, list) else [found])]


def _condition(rest: Any) -> Any:
    match rest:
        case models.Filter():
            return _filter(rest)
        case models.FieldCondition(match=match_, range=None) if match_ is not None:
            return edge.FieldCondition(rest.key, match=_match(match_))
        case models.FieldCondition(match=None, range=models.Range() as bounds):
            span = edge.RangeFloat(gte=bounds.gte, gt=bounds.gt, lte=bounds.lte, lt=bounds.lt)
            return edge.FieldCondition(rest.key, range=span)
        case models.IsEmptyCondition():
            return edge.IsEmptyCondition(rest.is_empty.key)
        case models.IsNullCondition():
            return edge.IsNullCondition(rest.is_null.key)
        case models.HasIdCondition():
            return edge.HasIdCondition({UUID(one) if isinstance(one, str) else one for one in rest.has_id})
    raise Unsupported(f"the embedded engine serves no {type(rest).__name__} of this kind")


def _match(rest: Any) -> Any:
    match rest:
        case models.MatchValue():
            # The binding takes a Python bool for the integer it also is; a numpy one it reads as what it means.
            value: Any = np.bool_(rest.value) if isinstance(rest.value, bool) else rest.value
            return edge.MatchValue(value)
        case models.MatchAny():
            wanted: Any = list(rest.any)
            return edge.MatchAny(wanted)
        case models.MatchExcept():
            unwanted: Any = list(rest.except_)
            return edge.MatchExcept(unwanted)
    raise Unsupported(f"the embedded engine serves no {type(rest).__name__}")


# ------------------------------------------------------------------------------------------------------------ reads


def query(message: grpc.QueryPoints, *, dense: Mapping[str, int], sparse: frozenset[str]) -> edge.QueryRequest:
    """Raises: ValueError: a vector that does not fit; Unsupported."""
    if message.HasField("with_vectors") and message.with_vectors.enable:
        raise Unsupported("the embedded engine returns no vectors")
    return edge.QueryRequest(
        limit=message.limit or DEFAULT_LIMIT,
        offset=message.offset,
        query=_nearest(message, dense=dense, sparse=sparse),
        prefetches=_prefetches(message, dense=dense, sparse=sparse),
        with_payload=(
            _wanted_payload(message.with_payload.SerializeToString()) if message.HasField("with_payload") else None
        ),
        filter=_known_filter(message.filter.SerializeToString()) if message.HasField("filter") else None,
        score_threshold=message.score_threshold if message.HasField("score_threshold") else None,
        params=_known_params(message.params.SerializeToString()) if message.HasField("params") else None,
    )


def _prefetches(
    message: grpc.QueryPoints | grpc.PrefetchQuery, *, dense: Mapping[str, int], sparse: frozenset[str]
) -> list[edge.Prefetch]:
    return [
        edge.Prefetch(
            limit=one.limit or DEFAULT_LIMIT,
            query=_nearest(one, dense=dense, sparse=sparse),
            prefetches=_prefetches(one, dense=dense, sparse=sparse),
            params=_known_params(one.params.SerializeToString()) if one.HasField("params") else None,
            filter=_known_filter(one.filter.SerializeToString()) if one.HasField("filter") else None,
            score_threshold=one.score_threshold if one.HasField("score_threshold") else None,
        )
        for one in message.prefetch
    ]


def _nearest(
    message: grpc.QueryPoints | grpc.PrefetchQuery, *, dense: Mapping[str, int], sparse: frozenset[str]
) -> Any:
    """Straight from the wire: the client's own models cost half a millisecond a search."""
    if not message.HasField("query"):
        return None
    variant = message.query.WhichOneof("variant")
    if variant != "nearest":
        raise Unsupported(f"the embedded engine serves no {variant} query")
    wanted, name = message.query.nearest, message.using
    match wanted.WhichOneof("variant"):
        case "dense" if name in dense:
            vector: Any = dense_vector(wanted.dense.data, name=name, size=dense[name])
        case "sparse" if name in sparse:
            vector = sparse_vector(wanted.sparse.indices, wanted.sparse.values, name=name)
        case "dense" | "sparse":
            raise ValueError(f"the collection has no such vector: {name!r}")
        case kind:
            raise Unsupported(f"the embedded engine serves no query by {kind}")
    return edge.Query.Nearest(vector, using=name)


def scans(message: grpc.QueryPoints) -> bool:
    """Whether the query goes through all vectors: it is dense, and no prefetch narrows it."""
    return message.query.nearest.WhichOneof("variant") == "dense" and not message.prefetch


def shape(message: grpc.QueryPoints) -> bytes:
    """The same for queries that differ in their vectors alone."""
    kind = f"{message.using} {message.limit} {len(message.prefetch)} ".encode()
    bounds: bytes = message.filter.SerializeToString(deterministic=True)
    return kind + bounds


@lru_cache(maxsize=256)  # Callers come again, mostly with the same bounds.
def _known_filter(message: bytes) -> edge.Filter:
    return condition_filter(grpc.Filter.FromString(message))


@lru_cache(maxsize=256)
def _known_params(message: bytes) -> edge.SearchParams:
    rest = GrpcToRest.convert_search_params(grpc.SearchParams.FromString(message))
    idf = edge.IdfParams(_filter(rest.idf.corpus)) if isinstance(rest.idf, models.IdfCorpusParams) else None
    return edge.SearchParams(exact=bool(rest.exact), idf=idf)


@lru_cache(maxsize=64)
def _wanted_payload(message: bytes) -> Any:
    return _payload_selector(GrpcToRest.convert_with_payload_interface(grpc.WithPayloadSelector.FromString(message)))


def _payload_selector(rest: Any) -> Any:
    match rest:
        case None | bool():
            return rest
        case list():
            return edge.PayloadSelector.Include(rest)
        case models.PayloadSelectorInclude():
            return edge.PayloadSelector.Include(rest.include)
        case models.PayloadSelectorExclude():
            return edge.PayloadSelector.Exclude(rest.exclude)
    raise Unsupported(f"the embedded engine serves no {type(rest).__name__}")


def scroll(message: grpc.ScrollPoints) -> edge.ScrollRequest:
    """Raises: Unsupported: an order, or vectors in the answer."""
    if message.HasField("order_by") or (message.HasField("with_vectors") and message.with_vectors.enable):
        raise Unsupported("the embedded engine scrolls in order of ids and returns no vectors")
    return edge.ScrollRequest(
        offset=point_id(message.offset) if message.HasField("offset") else None,
        limit=message.limit or DEFAULT_LIMIT,
        filter=condition_filter(message.filter) if message.HasField("filter") else None,
        with_payload=_payload_selector(GrpcToRest.convert_with_payload_interface(message.with_payload)),
    )


def scored(points: Iterable[edge.ScoredPoint]) -> list[grpc.ScoredPoint]:
    """Hits as the wire has them, best first."""
    return [
        grpc.ScoredPoint(
            id=wire_id(one.id), payload=payload_to_grpc(one.payload or {}), score=one.score, version=one.version
        )
        for one in points
    ]


def records(points: Iterable[edge.Record]) -> list[grpc.RetrievedPoint]:
    """Points without a score, in order of ids."""
    return [grpc.RetrievedPoint(id=wire_id(one.id), payload=payload_to_grpc(one.payload or {})) for one in points]


def wire_id(found: int | UUID | str) -> grpc.PointId:
    """A point's id as the wire has it."""
    return grpc.PointId(num=found) if isinstance(found, int) else grpc.PointId(uuid=str(found))
