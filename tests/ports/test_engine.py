"""The embedded engine: nothing poisonous gets in, one owner, what was confirmed survives, no orphan is left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import grpc
import numpy as np
import pytest
from index_engine import DIMENSION, FINGERPRINT, artifact_ids, index_on, point, running_engine, seen_by, terms, unit
from qdrant_client import AsyncQdrantClient, models
from qdrant_client import grpc as wire

from dats_common.adapters.qdrant import QdrantIndex
from dats_common.domain.model import ArtifactKey, SourceMetadata
from dats_common.embedded.ownership import served_port
from dats_common.embedded.qdrant_edge import EngineProcess, open_engine_process, serve
from dats_common.errors import ConfigurationError, IndexUnavailable
from dats_common.records import Fingerprint

SHORT = 20.0


def dense(*values: float) -> wire.Vector:
    return wire.Vector(dense=wire.DenseVector(data=values))


def sparse(indices: list[int], values: list[float]) -> wire.Vector:
    return wire.Vector(sparse=wire.SparseVector(indices=indices, values=values))


GOOD = dense(*(1.0,) * DIMENSION)
POISON = {
    "ragged sparse": {"dense": GOOD, "bm25": sparse([1, 2], [1.0])},
    "index twice": {"dense": GOOD, "bm25": sparse([1, 1], [1.0, 1.0])},
    "sparse not finite": {"dense": GOOD, "bm25": sparse([1], [float("nan")])},
    "too short": {"dense": dense(1.0)},
    "too long": {"dense": dense(*(1.0,) * (DIMENSION + 1))},
    "dense not finite": {"dense": dense(*(float("inf"),) * DIMENSION)},
    "unknown name": {"dense": GOOD, "colour": GOOD},
    "dense as sparse": {"dense": GOOD, "bm25": GOOD},
    "sparse as dense": {"dense": sparse([1], [1.0])},
    "no vectors": {},
    "multivector": {"dense": wire.Vector(multi_dense=wire.MultiDenseVector(vectors=[wire.DenseVector(data=[1.0])]))},
}


async def upsert(engine: EngineProcess, vectors: dict[str, wire.Vector], *, point_id: wire.PointId) -> None:
    """Straight to the engine: our own client would refuse these before it sends them."""
    both = [
        wire.PointStruct(id=one, vectors=wire.Vectors(vectors=wire.NamedVectors(vectors=named)))
        for one, named in ((wire.PointId(num=1), {"dense": GOOD}), (point_id, vectors))
    ]
    async with grpc.aio.insecure_channel(f"{engine.host}:{engine.port}") as channel:
        await wire.PointsStub(channel).Upsert(
            wire.UpsertPoints(collection_name="c", points=both, wait=True), timeout=SHORT
        )


async def test_poison_is_refused_whole_and_the_engine_loads_again(tmp_path: Path) -> None:
    async with running_engine(tmp_path) as engine, index_on(engine, collection="c") as index:
        await index.prepare(FINGERPRINT)
        await index.store([point("kept")])
        bad_id = {"not an id": ({"dense": GOOD}, wire.PointId(uuid="not-a-uuid"))}
        cases = {name: (vectors, wire.PointId(num=2)) for name, vectors in POISON.items()} | bad_id
        for name, (vectors, point_id) in cases.items():
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await upsert(engine, vectors, point_id=point_id)
            assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT, name
            assert await index.count() == 1, name
    async with running_engine(tmp_path) as engine, index_on(engine, collection="c") as index:
        assert await index.count() == 1


@pytest.mark.parametrize(
    "query",
    [
        models.QueryRequest(query=[1.0], using="dense"),
        models.QueryRequest(query=[1.0] * DIMENSION, using="colour"),
        models.QueryRequest(query=models.SparseVector(indices=[1, 1], values=[1.0, 1.0]), using="bm25"),
        models.QueryRequest(query=models.FusionQuery(fusion=models.Fusion.RRF)),
        models.QueryRequest(
            query=[1.0] * DIMENSION,
            using="dense",
            filter=models.Filter(must=[models.FieldCondition(key="x", match=models.MatchText(text="y"))]),
        ),
    ],
    ids=["length", "name", "twice", "fusion", "full-text"],
)
async def test_a_query_that_the_engine_does_not_serve_is_refused_and_the_next_is_answered(
    tmp_path: Path, query: models.QueryRequest
) -> None:
    async with serve(tmp_path) as port:
        client = AsyncQdrantClient(
            host="127.0.0.1", grpc_port=port, prefer_grpc=True, check_compatibility=False, timeout=20
        )
        try:
            await client.create_collection(
                "c",
                vectors_config={"dense": models.VectorParams(size=DIMENSION, distance=models.Distance.COSINE)},
                sparse_vectors_config={"bm25": models.SparseVectorParams()},
            )
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await client.query_batch_points("c", [query])
            assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            good = await client.query_batch_points("c", [models.QueryRequest(query=[1.0] * DIMENSION, using="dense")])
            assert good[0].points == []
        finally:
            await client.close()


async def test_a_restart_keeps_points_vectors_filters_and_the_fingerprint(tmp_path: Path) -> None:
    async with running_engine(tmp_path) as engine, index_on(engine, collection="a/b c") as index:
        await index.prepare(FINGERPRINT)
        await index.store([point(f"a{number}", dense=unit(1, number), sparse=terms(number)) for number in range(100)])
        await index.remove(ArtifactKey("default", "a3"), [1])
    async with running_engine(tmp_path) as engine, index_on(engine, collection="a/b c") as index:
        await index.prepare(FINGERPRINT)
        assert await index.count() == 99
        found = await index.search(
            dense=unit(1), sparse=terms(42), legs=frozenset({"dense", "sparse"}), where=seen_by(), limit=4
        )
        assert artifact_ids(c for c in found if c.dense_rank) == ["a0", "a1", "a2", "a4"]
        assert artifact_ids(c for c in found if c.sparse_rank) == ["a42"]
        with pytest.raises(ConfigurationError, match="other-model"):
            await index.prepare(Fingerprint("other-model", DIMENSION, 256, "test-sparse-1", FINGERPRINT.probe))


async def test_searches_at_the_same_time_find_what_each_finds_alone(tmp_path: Path) -> None:
    """They share passes over the vectors: each keeps its own filter, terms, limit and scores."""
    chance = np.random.default_rng(1)
    async with running_engine(tmp_path) as engine, index_on(engine) as index:
        await index.prepare(FINGERPRINT)
        await index.store(
            [
                point(
                    f"a{n}",
                    dense=unit(*chance.standard_normal(DIMENSION)),
                    sparse=terms(n % 5, 5 + n % 7),
                    metadata=SourceMetadata(project_id=f"p{n % 3}"),
                )
                for n in range(300)
            ]
        )
        asked = [
            {
                "dense": unit(*chance.standard_normal(DIMENSION)),
                "sparse": terms(n % 5, 5 + n % 7) if n % 4 else None,
                "legs": frozenset({"dense", "sparse"}),
                "where": seen_by(project_id=f"p{n % 3}" if n % 2 else None),
                "limit": 5 + n % 3,
            }
            for n in range(60)
        ]
        alone = [await index.search(**each) for each in asked]
        assert await asyncio.gather(*(index.search(**each) for each in asked)) == alone
        assert len({tuple(found) for found in map(artifact_ids, alone)}) == len(asked)


async def test_payload_indexes_are_there_before_the_first_point_and_after_a_restart(tmp_path: Path) -> None:
    for _ in range(2):
        async with serve(tmp_path) as port:
            client = AsyncQdrantClient(
                host="127.0.0.1", grpc_port=port, prefer_grpc=True, check_compatibility=False, timeout=20
            )
            try:
                await QdrantIndex(client, "c", timeout_s=10).prepare(FINGERPRINT)
                schema = (await client.get_collection("c")).payload_schema
            finally:
                await client.close()
        assert schema["tenant_id"].params.is_tenant
        assert schema["gen"].data_type is models.PayloadSchemaType.INTEGER
        assert set(schema) == {
            *("tenant_id", "artifact_id", "gen", "project_id", "domain"),
            *("doc_type", "tags", "verified", "scope", "user_id"),
        }


async def test_a_dropped_collection_leaves_no_files(tmp_path: Path) -> None:
    async with running_engine(tmp_path) as engine, index_on(engine, collection="c") as index:
        await index.prepare(FINGERPRINT)
        assert list((tmp_path / "collections").iterdir())
        await index.drop()
        assert list((tmp_path / "collections").iterdir()) == []
        with pytest.raises(IndexUnavailable, match="exist"):
            await index.count()


async def test_what_is_left_of_a_creation_cut_short_is_cleared_away(tmp_path: Path) -> None:
    half = tmp_path / "collections" / "half" / "shard"
    half.mkdir(parents=True)
    (half / "junk").write_text("x")
    async with running_engine(tmp_path) as engine, index_on(engine, collection="half") as index:
        assert not half.exists()
        await index.prepare(FINGERPRINT)
        await index.store([point("a")])
        assert await index.count() == 1


async def test_a_broken_collection_stops_the_start_and_says_what_to_do(tmp_path: Path) -> None:
    async with running_engine(tmp_path) as engine, index_on(engine, collection="c") as index:
        await index.prepare(FINGERPRINT)
    (tmp_path / "collections" / "c" / "collection.json").write_text("{")
    with pytest.raises(ConfigurationError, match=r"collections/c cannot be opened.*dats-rag reindex"):
        async with running_engine(tmp_path):
            pass


# ---------------------------------------------------------------------------------------------------------- ownership


async def test_a_second_owner_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    async with running_engine(tmp_path) as engine:
        with pytest.raises(ConfigurationError) as refusal:
            async with running_engine(tmp_path):
                pass
        assert f"pid {engine.pid}" in str(refusal.value)
        assert f"QDRANT_GRPC_PORT={engine.port}" in str(refusal.value)
        assert json.loads((tmp_path / "engine.lock").read_text()) == {"pid": engine.pid, "port": engine.port}
    assert (tmp_path / "engine.lock").read_text() == ""
    async with running_engine(tmp_path):
        pass


async def test_what_a_killed_engine_left_in_its_lock_counts_for_nothing(tmp_path: Path) -> None:
    assert served_port(tmp_path) is None
    async with running_engine(tmp_path) as engine:
        assert served_port(tmp_path) == engine.port
        engine.process.kill()
        await engine.ended()
    assert json.loads((tmp_path / "engine.lock").read_text())["port"] == engine.port
    assert served_port(tmp_path) is None
    async with running_engine(tmp_path) as successor:
        assert served_port(tmp_path) == successor.port


async def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a directory")
    with pytest.raises(ConfigurationError, match="cannot write to the index directory") as refusal:
        async with running_engine(in_the_way):
            pass
    assert str(in_the_way) in str(refusal.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_directory_without_permission_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigurationError, match="cannot write to the index directory"):
        async with running_engine(tmp_path):
            pass


async def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port}"):
            async with open_engine_process(tmp_path, port=port, start_timeout_s=60):
                pass


# --------------------------------------------------------------------------------------------------------------- end

PARENT = """
import asyncio, sys
from pathlib import Path
from dats_common.embedded.qdrant_edge import open_engine_process

async def main():
    async with open_engine_process(Path(sys.argv[1]), start_timeout_s=60) as engine:
        print(engine.pid, flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_the_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    child = int(await asyncio.wait_for(parent.stdout.readline(), 60))
    assert _alive(child)
    parent.send_signal(signal.SIGKILL)
    await asyncio.wait_for(parent.communicate(), SHORT)
    deadline = time.monotonic() + SHORT
    while _alive(child) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    assert not _alive(child)
    async with running_engine(tmp_path):
        pass


def _alive(pid: int) -> bool:
    """Whether it runs; a zombie that nobody has collected yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_ctrl_c_is_left_to_the_parent_and_sigterm_ends_the_child(tmp_path: Path) -> None:
    async with running_engine(tmp_path) as engine, index_on(engine) as index:
        os.kill(engine.pid, signal.SIGINT)
        await index.ping()
        os.kill(engine.pid, signal.SIGTERM)
        assert await asyncio.wait_for(engine.ended(), SHORT) == 0
        with pytest.raises(IndexUnavailable):
            await index.ping()


async def test_the_client_finds_a_restarted_engine_again(tmp_path: Path) -> None:
    async with running_engine(tmp_path) as engine, index_on(engine, collection="c") as index:
        await index.prepare(FINGERPRINT)
        await index.store([point("a")])
        os.kill(engine.pid, signal.SIGKILL)
        await engine.ended()
        with pytest.raises(IndexUnavailable):
            await index.count()
        async with open_engine_process(tmp_path, port=engine.port, start_timeout_s=60):
            deadline = time.monotonic() + SHORT
            while True:
                try:
                    assert await index.count() == 1
                except IndexUnavailable:
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.1)
                else:
                    break
