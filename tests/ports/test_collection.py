"""A collection with a cluster's parameters, through the real client protocol: what is asked for is what is told.

A real server joins when QDRANT_URL is set; a single node of it remembers shards and copies as a cluster does.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from index_engine import DIMENSION, FINGERPRINT, artifact_ids, point, running_engine, seen_by, terms, unit
from qdrant_client import AsyncQdrantClient, models

from dats_common.adapters.qdrant import Layout, QdrantIndex, open_qdrant
from dats_common.domain.access import Principal
from dats_common.domain.model import ArtifactKey, Scope, SourceMetadata
from dats_common.embedded.qdrant_edge import EngineProcess
from dats_common.settings import load_settings
from services.backends import open_index

CLUSTER = Layout(
    shard_number=12,
    replication_factor=3,
    write_consistency_factor=2,
    int8=True,
    on_disk_vectors=True,
    on_disk_payload=True,
    strict=True,
)
BOTH = frozenset({"dense", "sparse"})


@contextlib.asynccontextmanager
async def client_of(engine: EngineProcess) -> AsyncIterator[AsyncQdrantClient]:
    client = AsyncQdrantClient(
        host=engine.host, grpc_port=engine.port, prefer_grpc=True, check_compatibility=False, timeout=20
    )
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture(params=["embedded", "server"])
def laid_out(request: pytest.FixtureRequest) -> Callable[[Layout], Any]:
    """Opens an index with a layout, beside a plain client of the same server and the collection's name."""

    @contextlib.asynccontextmanager
    async def embedded(layout: Layout) -> AsyncIterator[tuple[QdrantIndex, AsyncQdrantClient, str]]:
        async with (
            running_engine() as engine,
            client_of(engine) as client,
            open_qdrant(host=engine.host, grpc_port=engine.port, collection="c", timeout_s=20, layout=layout) as index,
        ):
            yield index, client, "c"

    @contextlib.asynccontextmanager
    async def server(layout: Layout) -> AsyncIterator[tuple[QdrantIndex, AsyncQdrantClient, str]]:
        name = f"test-{uuid.uuid4()}"
        where: dict[str, Any] = {
            "url": os.environ["QDRANT_URL"],
            "grpc_port": int(os.environ.get("QDRANT_GRPC_PORT", "6334")),
            "api_key": os.environ.get("QDRANT_API_KEY"),
        }
        client = AsyncQdrantClient(**where, prefer_grpc=True, check_compatibility=False, timeout=20)
        async with open_qdrant(**where, collection=name, timeout_s=20, layout=layout) as index:
            yield index, client, name
            await index.drop()
        await client.close()

    if request.param == "server" and "QDRANT_URL" not in os.environ:
        pytest.skip("QDRANT_URL is not set")
    return embedded if request.param == "embedded" else server


def check_cluster(info: models.CollectionInfo) -> None:
    """Exactly what docs/scaling.md says."""
    params = info.config.params
    assert (params.shard_number, params.replication_factor, params.write_consistency_factor) == (12, 3, 2)
    assert params.on_disk_payload is True
    dense = params.vectors["dense"]
    assert (dense.size, dense.distance, dense.on_disk) == (DIMENSION, models.Distance.COSINE, True)
    assert params.sparse_vectors["bm25"].modifier is models.Modifier.IDF
    scalar = info.config.quantization_config.scalar
    assert (scalar.type, scalar.quantile, scalar.always_ram) == (models.ScalarType.INT8, pytest.approx(0.99), True)
    strict = info.config.strict_mode_config
    assert strict.enabled
    assert (strict.unindexed_filtering_retrieve, strict.unindexed_filtering_update) == (False, False)
    assert (strict.max_query_limit, strict.upsert_max_batchsize, strict.search_max_batchsize) == (2048, 256, 16)
    assert (strict.filter_max_conditions, strict.search_max_oversampling) == (1024, pytest.approx(2.0))
    assert info.payload_schema["tenant_id"].params.is_tenant
    assert set(info.payload_schema) == {
        *("tenant_id", "artifact_id", "gen", "project_id", "domain", "doc_type", "tags", "verified"),
        *("scope", "user_id"),
    }


async def test_the_collection_is_made_with_exactly_the_clusters_parameters(laid_out: Callable[[Layout], Any]) -> None:
    async with laid_out(CLUSTER) as (index, client, name):
        await index.prepare(FINGERPRINT)
        check_cluster(await client.get_collection(name))


async def test_without_a_layout_the_collection_is_one_machines(laid_out: Callable[[Layout], Any]) -> None:
    async with laid_out(Layout()) as (index, client, name):
        await index.prepare(FINGERPRINT)
        config = (await client.get_collection(name)).config
        assert (config.params.shard_number, config.params.replication_factor) == (1, 1)
        assert config.quantization_config is None
        assert not (config.strict_mode_config and config.strict_mode_config.enabled)


async def test_a_restart_keeps_the_parameters_and_another_layout_does_not_change_them(tmp_path: Path) -> None:
    for layout in (CLUSTER, Layout()):
        async with running_engine(tmp_path) as engine, client_of(engine) as client:
            where = {"host": engine.host, "grpc_port": engine.port}
            async with open_qdrant(**where, collection="c", timeout_s=20, layout=layout) as index:
                await index.prepare(FINGERPRINT)
            check_cluster(await client.get_collection("c"))


async def test_the_settings_name_the_parameters(tmp_path: Path) -> None:
    async with running_engine() as engine, client_of(engine) as client:
        path = tmp_path / "cluster.yaml"
        path.write_text(
            "lightrag: {vector_store: {layout: {shard_number: 12, replication_factor: 3, write_consistency_factor: 2, "
            "quantization: int8, on_disk_vectors: true, on_disk_payload: true, strict_mode: true}}}\n"
        )
        address = {"QDRANT_HOST": engine.host, "QDRANT_GRPC_PORT": str(engine.port), "QDRANT_COLLECTION": "c"}
        async with open_index(load_settings(path, address)) as index:
            await index.prepare(FINGERPRINT)
        check_cluster(await client.get_collection("c"))


async def test_everything_that_the_adapter_asks_for_passes_strict_mode(laid_out: Callable[[Layout], Any]) -> None:
    async with laid_out(CLUSTER) as (index, _, _):
        await index.prepare(FINGERPRINT)
        metadata = SourceMetadata(project_id="p", domain="d", doc_type="t", tags=("x",), scope=Scope.USER, user_id="u")
        names = [f"a{number}" for number in range(600)]
        await index.store(
            [point(name, dense=unit(1, n), sparse=terms(7), metadata=metadata) for n, name in enumerate(names)]
        )
        who = Principal(tenant_id="default", user_id="u", project_ids=frozenset({"p"}), tags=frozenset({"x"}))
        narrowed = seen_by(
            who,
            project_id="p",
            domain="d",
            doc_types=("t",),
            tags=("x",),
            artifact_ids=("a1", "a2"),
            verified_only=False,
        )
        found = await index.search(dense=unit(1), sparse=terms(7), legs=BOTH, where=narrowed, limit=10)
        assert sorted(artifact_ids(found)) == ["a1", "a2"]
        # All terms weigh the same: the keyword leg is asked again with the widest margin.
        wide = replace(narrowed, artifact_ids=None)
        assert len(await index.search(dense=unit(1), sparse=terms(7), legs=BOTH, where=wide, limit=400)) >= 400
        keys = [ArtifactKey("default", name) for name in names]
        assert len(await index.generations(keys)) == 600
        others = [ArtifactKey(f"tenant-{number}", "a") for number in range(300)]
        assert await index.generations(others) == {}
        await index.remove(keys[0], [1])
        assert await index.count() == 599
        assert sum([len(page) async for page in index.scan()]) == 599


def equal(key: str) -> models.Filter:
    return models.Filter(must=[models.FieldCondition(key=key, match=models.MatchValue(value="x"))])


def vector(number: int) -> models.PointStruct:
    return models.PointStruct(id=number, vector={"dense": [1.0] * DIMENSION}, payload={})


NEAREST = {"query": [1.0] * DIMENSION, "using": "dense"}
REFUSED: dict[str, Callable[[AsyncQdrantClient, str], Any]] = {
    "limit": lambda client, name: client.query_points(name, **NEAREST, limit=2049),
    "scroll": lambda client, name: client.scroll(name, limit=2049),
    "field": lambda client, name: client.query_points(name, **NEAREST, query_filter=equal("colour")),
    "inner field": lambda client, name: client.query_points(
        name, **NEAREST, query_filter=models.Filter(should=[equal("tenant_id"), equal("colour")])
    ),
    "prefetch": lambda client, name: client.query_points(
        name, **NEAREST, prefetch=[models.Prefetch(**NEAREST, filter=equal("colour"))]
    ),
    "count": lambda client, name: client.count(name, count_filter=equal("colour")),
    "delete": lambda client, name: client.delete(name, models.FilterSelector(filter=equal("colour"))),
    "upsert": lambda client, name: client.upsert(name, [vector(number) for number in range(257)]),
    "conditions": lambda client, name: client.count(name, count_filter=models.Filter(must=[equal("tenant_id")] * 1025)),
    "oversampling": lambda client, name: client.query_points(
        name, **NEAREST, search_params=models.SearchParams(quantization=models.QuantizationSearchParams(oversampling=3))
    ),
    "batch": lambda client, name: client.query_batch_points(name, [models.QueryRequest(**NEAREST)] * 17),
}


async def test_strict_mode_refuses_what_is_dear(laid_out: Callable[[Layout], Any]) -> None:
    async with laid_out(CLUSTER) as (index, client, name):
        await index.prepare(FINGERPRINT)
        for what, ask in REFUSED.items():
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await ask(client, name)
            assert refusal.value.code() in (
                grpc.StatusCode.INVALID_ARGUMENT,
                grpc.StatusCode.PERMISSION_DENIED,
                grpc.StatusCode.FAILED_PRECONDITION,
            ), what
    async with laid_out(replace(CLUSTER, strict=False)) as (index, client, name):
        await index.prepare(FINGERPRINT)
        for ask in REFUSED.values():
            await ask(client, name)


@pytest.mark.parametrize(
    "asked",
    [
        {"sharding_method": models.ShardingMethod.CUSTOM},
        {"quantization_config": models.BinaryQuantization(binary=models.BinaryQuantizationConfig())},
        {"strict_mode_config": models.StrictModeConfig(enabled=True, max_points_count=10)},
    ],
    ids=["shards by key", "binary", "another bound"],
)
async def test_what_the_embedded_engine_would_not_keep_it_refuses(asked: dict[str, Any]) -> None:
    async with running_engine() as engine, client_of(engine) as client:
        dense = {"dense": models.VectorParams(size=DIMENSION, distance=models.Distance.COSINE)}
        with pytest.raises(grpc.aio.AioRpcError, match="embedded engine"):
            await client.create_collection("c", vectors_config=dense, **asked)
        assert not await client.collection_exists("c")
