"""Qdrant's own gRPC services over the embedded store: only the calls that our index adapter makes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any, NoReturn

import qdrant_edge as edge
from grpc import StatusCode
from qdrant_client import grpc

from dats_common.embedded import qdrant_translate as translate
from dats_common.embedded.qdrant_collection import Collection, EngineFault
from dats_common.embedded.qdrant_lanes import Wanted
from dats_common.embedded.qdrant_store import FLUSH_EVERY_S, Store
from dats_common.embedded.qdrant_translate import NEVER_INDEX_KB

ENGINE_TITLE = "qdrant edge (embedded)"
ENGINE_VERSION = "1.19.0"
"""The server whose protocol this speaks; clients compare it with their own version."""

POINTS_PER_OPERATION = 64
"""An update holds the interpreter's lock, 24 ms at most for 64 points of 384 dimensions (measured)."""


async def _abort(context: Any, code: StatusCode, message: str) -> NoReturn:
    await context.abort(code, message)
    raise AssertionError("abort raises")


async def _found(store: Store, name: str, context: Any) -> Collection:
    collection = store.get(name)
    if collection is None:
        await _abort(context, StatusCode.NOT_FOUND, f"Not found: Collection `{name}` doesn't exist!")
    return collection


@contextlib.asynccontextmanager
async def _errors_on_the_wire(context: Any) -> AsyncIterator[None]:
    """What the store raises, as the status that a Qdrant server would give."""
    try:
        yield
    except ValueError as error:
        await _abort(context, StatusCode.INVALID_ARGUMENT, str(error))
    except EngineFault as error:
        await _abort(context, StatusCode.INTERNAL, str(error))


class Points(grpc.PointsServicer):
    """Writes and reads of points."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def Upsert(self, request: grpc.UpsertPoints, context: Any) -> grpc.PointsOperationResponse:  # noqa: N802
        """All points or, where one of them is bad, none."""
        collection = await _found(self._store, request.collection_name, context)
        started = time.perf_counter()
        async with _errors_on_the_wire(context):
            collection.strict.check_upsert(len(request.points))
            points = [translate.point(one, dense=collection.dense, sparse=collection.sparse) for one in request.points]
            operations = [
                edge.UpdateOperation.upsert_points(points[first : first + POINTS_PER_OPERATION])
                for first in range(0, len(points), POINTS_PER_OPERATION)
            ]
            await collection.write(operations, durable=request.wait)
        return _written(request.wait, started)

    async def Delete(self, request: grpc.DeletePoints, context: Any) -> grpc.PointsOperationResponse:  # noqa: N802
        """By ids or by filter."""
        collection = await _found(self._store, request.collection_name, context)
        started = time.perf_counter()
        async with _errors_on_the_wire(context):
            collection.strict.check_deletion(request.points, indexed=collection.description.indexes)
            await collection.write([translate.deletion(request.points)], durable=request.wait)
        return _written(request.wait, started)

    async def CreateFieldIndex(  # noqa: N802
        self, request: grpc.CreateFieldIndexCollection, context: Any
    ) -> grpc.PointsOperationResponse:
        """An index on a payload field; it outlives restarts."""
        collection = await _found(self._store, request.collection_name, context)
        started = time.perf_counter()
        async with _errors_on_the_wire(context):
            await collection.add_index(request)
        return _written(True, started)

    async def Query(self, request: grpc.QueryPoints, context: Any) -> grpc.QueryResponse:  # noqa: N802
        """One query."""
        started = time.perf_counter()
        (hits,) = await self._query(request.collection_name, [request], context)
        return grpc.QueryResponse(result=translate.scored(hits), time=time.perf_counter() - started)

    async def QueryBatch(self, request: grpc.QueryBatchPoints, context: Any) -> grpc.QueryBatchResponse:  # noqa: N802
        """Several queries, answered in their order; those that others ask meanwhile share the work."""
        started = time.perf_counter()
        answers = await self._query(request.collection_name, request.query_points, context)
        return grpc.QueryBatchResponse(
            result=[grpc.BatchResult(result=translate.scored(hits)) for hits in answers],
            time=time.perf_counter() - started,
        )

    async def _query(self, name: str, queries: Any, context: Any) -> Any:
        collection = await _found(self._store, name, context)
        async with _errors_on_the_wire(context):
            collection.strict.check_queries(queries, indexed=collection.description.indexes)
            wanted = [
                Wanted(
                    translate.query(one, dense=collection.dense, sparse=collection.sparse),
                    translate.shape(one),
                    translate.scans(one),
                )
                for one in queries
            ]
            return await collection.search(wanted)

    async def Scroll(self, request: grpc.ScrollPoints, context: Any) -> grpc.ScrollResponse:  # noqa: N802
        """A page in order of ids."""
        collection = await _found(self._store, request.collection_name, context)
        started = time.perf_counter()
        async with _errors_on_the_wire(context):
            collection.strict.check_read(request, limit=request.limit, indexed=collection.description.indexes)
            wanted = translate.scroll(request)
            page, following = await collection.read(lambda shard: shard.scroll(wanted))
        return grpc.ScrollResponse(
            result=translate.records(page),
            next_page_offset=None if following is None else translate.wire_id(following),
            time=time.perf_counter() - started,
        )

    async def Count(self, request: grpc.CountPoints, context: Any) -> grpc.CountResponse:  # noqa: N802
        """Always exact."""
        collection = await _found(self._store, request.collection_name, context)
        started = time.perf_counter()
        async with _errors_on_the_wire(context):
            collection.strict.check_read(request, limit=0, indexed=collection.description.indexes)
            where = translate.condition_filter(request.filter) if request.HasField("filter") else None
            count = await collection.read(lambda shard: shard.count(edge.CountRequest(exact=True, filter=where)))
        return grpc.CountResponse(result=grpc.CountResult(count=count), time=time.perf_counter() - started)


def _written(waited: bool, started: float) -> grpc.PointsOperationResponse:
    status = grpc.UpdateStatus.Completed if waited else grpc.UpdateStatus.Acknowledged
    return grpc.PointsOperationResponse(result=grpc.UpdateResult(status=status), time=time.perf_counter() - started)


class Collections(grpc.CollectionsServicer):
    """Making, describing and removing collections."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def Create(self, request: grpc.CreateCollection, context: Any) -> grpc.CollectionOperationResponse:  # noqa: N802
        """One shard on one machine, whatever is asked for; shards, replicas and quantization are remembered and told,
        as a single Qdrant node does, so that a client's check of its own collection holds here too."""
        async with _errors_on_the_wire(context):
            created = await self._store.create(request)
        if not created:
            message = f"Wrong input: Collection `{request.collection_name}` already exists!"
            await _abort(context, StatusCode.ALREADY_EXISTS, message)
        return grpc.CollectionOperationResponse(result=True)

    async def Delete(self, request: grpc.DeleteCollection, context: Any) -> grpc.CollectionOperationResponse:  # noqa: N802
        """False where there was none, as a server answers."""
        return grpc.CollectionOperationResponse(result=await self._store.delete(request.collection_name))

    async def CollectionExists(  # noqa: N802
        self, request: grpc.CollectionExistsRequest, context: Any
    ) -> grpc.CollectionExistsResponse:
        """Whether it is there."""
        exists = self._store.get(request.collection_name) is not None
        return grpc.CollectionExistsResponse(result=grpc.CollectionExists(exists=exists))

    async def List(self, request: grpc.ListCollectionsRequest, context: Any) -> grpc.ListCollectionsResponse:  # noqa: N802
        """All names."""
        found = [grpc.CollectionDescription(name=name) for name in self._store.names]
        return grpc.ListCollectionsResponse(collections=found)

    async def Get(  # noqa: N802
        self, request: grpc.GetCollectionInfoRequest, context: Any
    ) -> grpc.GetCollectionInfoResponse:
        """Vectors, metadata, payload indexes and the number of points."""
        collection = await _found(self._store, request.collection_name, context)
        async with _errors_on_the_wire(context):
            points = await collection.read(lambda shard: shard.info().points_count)
        return grpc.GetCollectionInfoResponse(result=_info(collection, points))


def _info(collection: Collection, points: int) -> grpc.CollectionInfo:
    create = collection.description.create
    params = grpc.CollectionParams(
        shard_number=create.shard_number or 1,
        replication_factor=create.replication_factor or 1,
        write_consistency_factor=create.write_consistency_factor or 1,
        on_disk_payload=create.on_disk_payload,
        vectors_config=create.vectors_config,
        sparse_vectors_config=create.sparse_vectors_config,
    )
    info = grpc.CollectionInfo(
        status=grpc.CollectionStatus.Green,
        optimizer_status=grpc.OptimizerStatus(ok=True),
        segments_count=1,
        points_count=points,
        config=grpc.CollectionConfig(
            params=params,
            metadata=create.metadata,
            # Clients refuse a description without these; m=0 says that there is no graph.
            hnsw_config=grpc.HnswConfigDiff(m=0, ef_construct=100, full_scan_threshold=NEVER_INDEX_KB),
            optimizer_config=grpc.OptimizersConfigDiff(
                deleted_threshold=0.2,
                vacuum_min_vector_number=1000,
                default_segment_number=1,
                indexing_threshold=NEVER_INDEX_KB,
                flush_interval_sec=int(FLUSH_EVERY_S),
            ),
            wal_config=grpc.WalConfigDiff(wal_capacity_mb=32, wal_segments_ahead=0),
            quantization_config=create.quantization_config if create.HasField("quantization_config") else None,
            strict_mode_config=create.strict_mode_config if create.HasField("strict_mode_config") else None,
        ),
    )
    for name, schema in translate.payload_schema(collection.description.indexes).items():
        info.payload_schema[name].CopyFrom(schema)
    return info


class Health(grpc.QdrantServicer):
    """Whether the engine answers."""

    async def HealthCheck(self, request: grpc.HealthCheckRequest, context: Any) -> grpc.HealthCheckReply:  # noqa: N802
        """It does."""
        return grpc.HealthCheckReply(title=ENGINE_TITLE, version=ENGINE_VERSION)


def add_services(server: Any, store: Store) -> None:
    """Serve the store's collections on a gRPC server that is not started yet."""
    grpc.add_PointsServicer_to_server(Points(store), server)  # type: ignore[no-untyped-call]
    grpc.add_CollectionsServicer_to_server(Collections(store), server)  # type: ignore[no-untyped-call]
    grpc.add_QdrantServicer_to_server(Health(), server)  # type: ignore[no-untyped-call]
