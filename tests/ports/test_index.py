"""Every index keeps the same promises: in memory, the embedded engine, Qdrant's own client as an oracle, a real server.

A real server joins when QDRANT_URL is set (and QDRANT_GRPC_PORT, where it is not 6334).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import random
import uuid
import warnings
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from cancelling import ends_when_cancelled
from index_engine import DIMENSION, FINGERPRINT, artifact_ids, index_on, point, running_engine, seen_by, terms, unit

from dats_common.adapters.memory_index import MemoryIndex
from dats_common.adapters.qdrant import QdrantIndex, open_qdrant
from dats_common.domain.access import LAPTOP, Principal, may_see
from dats_common.domain.model import ArtifactKey, Scope, SourceMetadata, SparseVector
from dats_common.embedded.qdrant_edge import EngineProcess
from dats_common.errors import ConfigurationError, InvalidInput
from dats_common.ports import Index

BOTH = frozenset({"dense", "sparse"})
DENSE = frozenset({"dense"})
SPARSE = frozenset({"sparse"})


@contextlib.asynccontextmanager
async def oracle() -> AsyncIterator[QdrantIndex]:
    """Qdrant's client in its local mode: another implementation of the same semantics, by the same people."""
    from qdrant_client import AsyncQdrantClient, grpc
    from qdrant_client.conversions.conversion import GrpcToRest, RestToGrpc

    class LocalPoints:
        """What the wire would carry: local mode has none."""

        async def QueryBatch(self, batch: Any, timeout: float) -> Any:  # noqa: N802
            requests = [GrpcToRest.convert_query_points(query) for query in batch.query_points]
            answers = await client.query_batch_points(batch.collection_name, requests)
            points = ([RestToGrpc.convert_scored_point(point) for point in answer.points] for answer in answers)
            return grpc.QueryBatchResponse(result=[grpc.BatchResult(result=each) for each in points])

    class LocalClient(AsyncQdrantClient):
        grpc_points = LocalPoints()

    client = LocalClient(":memory:")
    with warnings.catch_warnings():
        # Local mode says that payload indexes have no effect in it; here nobody expects one.
        warnings.filterwarnings("ignore", message="Payload indexes have no effect", category=UserWarning)
        warnings.filterwarnings("ignore", message="Local mode performs exact", category=UserWarning)
        yield QdrantIndex(client, "test", timeout_s=10)
    await client.close()


@contextlib.asynccontextmanager
async def server() -> AsyncIterator[QdrantIndex]:
    grpc_port = int(os.environ.get("QDRANT_GRPC_PORT", "6334"))
    api_key = os.environ.get("QDRANT_API_KEY")
    async with open_qdrant(
        url=os.environ["QDRANT_URL"], grpc_port=grpc_port, api_key=api_key, collection=f"test-{uuid.uuid4()}"
    ) as index:
        yield index
        await index.drop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[EngineProcess]:
    async with running_engine() as engine:
        yield engine


@pytest.fixture(params=["memory", "embedded", "oracle", "server"])
async def unprepared(request: pytest.FixtureRequest, engine: EngineProcess) -> AsyncIterator[Index]:
    match request.param:
        case "memory":
            yield MemoryIndex()
        case "embedded":
            async with index_on(engine) as index:
                yield index
        case "oracle":
            async with oracle() as index:
                yield index
        case "server":
            if "QDRANT_URL" not in os.environ:
                pytest.skip("QDRANT_URL is not set")
            async with server() as index:
                yield index


@pytest.fixture
async def index(unprepared: Index) -> Index:
    await unprepared.prepare(FINGERPRINT)
    return unprepared


async def search(index: Index, *, dense=None, sparse=None, legs=BOTH, where=None, limit=10):
    return await index.search(
        dense=unit(1) if dense is None else dense, sparse=sparse, legs=legs, where=where or seen_by(), limit=limit
    )


# ---------------------------------------------------------------------------------------------------------- searching


async def test_whoever_is_cancelled_while_searching_ends(index: Index) -> None:
    await ends_when_cancelled(lambda: search(index))


async def test_the_dense_leg_ranks_by_cosine_and_tells_it(index: Index) -> None:
    await index.store(
        [point("near", dense=unit(1, 0.1)), point("far", dense=unit(0.1, 1)), point("anti", dense=-unit(1))]
    )
    found = await search(index, legs=DENSE)
    assert artifact_ids(found) == ["near", "far", "anti"]
    assert [candidate.dense_rank for candidate in found] == [1, 2, 3]
    assert {candidate.sparse_rank for candidate in found} == {None}
    assert [candidate.similarity for candidate in found] == pytest.approx([0.99504, 0.09950, 0.0], abs=1e-4)


async def test_the_keyword_leg_finds_only_chunks_that_share_a_term_and_prefers_the_rare_one(index: Index) -> None:
    common = [point(f"common-{number}", sparse=terms(1)) for number in range(5)]
    await index.store([*common, point("rare", sparse=terms(2)), point("other", sparse=terms(3)), point("none")])
    found = await search(index, sparse=terms(1, 2), legs=SPARSE)
    assert artifact_ids(found)[0] == "rare"
    assert set(artifact_ids(found)[1:]) == {f"common-{number}" for number in range(5)}
    assert {candidate.dense_rank for candidate in found} == {None}


async def test_a_keyword_hit_outside_the_dense_leg_still_tells_its_cosine(index: Index) -> None:
    close = [point(f"close-{number}", dense=unit(1, 0.01 * number)) for number in range(3)]
    await index.store([*close, point("keyword", dense=unit(1, 1), sparse=terms(7))])
    found = {c.ref.key.artifact_id: c for c in await search(index, sparse=terms(7), limit=3)}
    assert found["keyword"].dense_rank is None
    assert found["keyword"].sparse_rank == 1
    assert found["keyword"].similarity == pytest.approx(0.70711, abs=1e-4)
    assert found["close-0"].sparse_score is None


async def test_the_keyword_leg_tells_its_score_and_a_rarer_term_gives_more(index: Index) -> None:
    common = [point(f"common-{number}", sparse=terms(1)) for number in range(5)]
    await index.store([*common, point("rare", sparse=terms(2)), point("both", sparse=terms(1, 2))])
    scores = {c.ref.key.artifact_id: c.sparse_score for c in await search(index, sparse=terms(1, 2), legs=SPARSE)}
    # BM25's inverse document frequency: 7 chunks, 6 with the one term, 2 with the other.
    one, other = math.log(1 + 1.5 / 6.5), math.log(1 + 5.5 / 2.5)
    weight = scores["both"] / (one + other)
    assert scores["common-0"] == pytest.approx(weight * one, rel=1e-4)
    assert scores["rare"] == pytest.approx(weight * other, rel=1e-4)


async def test_a_chunk_that_both_legs_found_is_one_candidate_with_both_ranks(index: Index) -> None:
    await index.store([point("both", sparse=terms(7)), point("dense-only", dense=unit(1, 1))])
    found = await search(index, sparse=terms(7))
    assert [(c.ref.key.artifact_id, c.dense_rank, c.sparse_rank) for c in found] == [
        ("both", 1, 1),
        ("dense-only", 2, None),
    ]


@pytest.mark.parametrize("sparse", [None, SparseVector((), ())])
async def test_a_query_without_terms_has_an_empty_keyword_leg(index: Index, sparse: SparseVector | None) -> None:
    await index.store([point("a", sparse=terms(7))])
    assert await search(index, sparse=sparse, legs=SPARSE) == []
    assert artifact_ids(await search(index, sparse=sparse)) == ["a"]


async def test_each_leg_gives_no_more_than_the_limit(index: Index) -> None:
    await index.store([point(f"a{number}", dense=unit(1, number), sparse=terms(7)) for number in range(9)])
    found = await search(index, sparse=terms(7), limit=4)
    assert sorted(c.dense_rank for c in found if c.dense_rank) == [1, 2, 3, 4]
    assert sorted(c.sparse_rank for c in found if c.sparse_rank) == [1, 2, 3, 4]


async def test_ties_are_broken_by_source_id_whatever_the_order_of_writing(index: Index) -> None:
    points = [point(f"tie-{number}", chunk=number % 3, sparse=terms(7)) for number in range(60)]
    random.Random(4).shuffle(points)
    await index.store(points)
    by_source = sorted(one.ref.source_id for one in points)
    for legs in (DENSE, SPARSE):
        found = await search(index, sparse=terms(7), legs=legs, limit=5)
        assert [candidate.ref.source_id for candidate in found] == by_source[:5]


async def test_the_term_statistics_are_the_tenants_own(index: Index) -> None:
    """Else the ranking of one tenant would tell what another writes about."""
    mine = [*(point(f"x{number}", sparse=terms(1)) for number in range(3)), point("y", sparse=terms(2))]
    theirs = [point(f"z{number}", tenant_id="other", sparse=terms(2)) for number in range(50)]
    await index.store([*mine, *theirs])
    assert artifact_ids(await search(index, sparse=terms(1, 2), legs=SPARSE))[0] == "y"


# ------------------------------------------------------------------------------------------------------------- bounds

PRINCIPALS = [
    LAPTOP,
    Principal(tenant_id="other", user_id="ann"),
    Principal(user_id="ann", project_ids=frozenset({"p"}), tags=frozenset({"red"})),
    Principal(user_id="bob", project_ids=frozenset(), tags=frozenset()),
    Principal(project_ids=frozenset({"p", "q"}), tags=frozenset({"red", "blue"})),
]


async def test_a_principal_is_given_exactly_what_the_access_rule_lets_it_see(index: Index) -> None:
    points = [
        point(
            f"a{number}",
            tenant_id=tenant,
            sparse=terms(7),
            metadata=SourceMetadata(project_id=project, scope=scope, user_id=user, tags=tags),
        )
        for number, (tenant, project, scope, user, tags) in enumerate(
            itertools.product(
                ("default", "other"), ("p", "q"), Scope, (None, "ann"), ((), ("public", "red"), ("red",), ("blue",))
            )
        )
    ]
    await index.store(points)
    for principal in PRINCIPALS:
        expected = {
            one.ref
            for one in points
            if may_see(
                principal,
                tenant_id=one.ref.key.tenant_id,
                scope=one.metadata.scope,
                user_id=one.metadata.user_id,
                project_id=one.metadata.project_id,
                tags=one.metadata.tags,
            )
        }
        for legs in (DENSE, SPARSE):
            found = await search(index, sparse=terms(7), legs=legs, where=seen_by(principal), limit=len(points))
            assert {candidate.ref for candidate in found} == expected


@pytest.mark.parametrize(
    ("narrowing", "expected"),
    [
        ({"project_id": "q"}, {"b"}),
        ({"domain": "legal"}, {"c"}),
        ({"doc_types": ("code", "memo")}, {"d", "e"}),
        ({"tags": ("red",)}, {"f"}),
        ({"tags": ("public",)}, {"a", "b", "c", "d", "e", "g"}),
        ({"artifact_ids": ("a", "g", "nobody")}, {"a", "g"}),
        ({"verified_only": True}, {"a", "b", "c", "d", "e", "f"}),
        ({"doc_types": ()}, set()),
        ({"tags": ()}, set()),
        ({"artifact_ids": ()}, set()),
    ],
)
async def test_a_request_narrows_both_legs(index: Index, narrowing: dict, expected: set[str]) -> None:
    plain = SourceMetadata(project_id="p")
    different = {
        "a": plain,
        "b": replace(plain, project_id="q"),
        "c": replace(plain, domain="legal"),
        "d": replace(plain, doc_type="code"),
        "e": replace(plain, doc_type="memo"),
        "f": replace(plain, tags=("red", "blue")),
        "g": replace(plain, verified=False),
    }
    await index.store([point(name, sparse=terms(7), metadata=metadata) for name, metadata in different.items()])
    for legs in (DENSE, SPARSE, BOTH):
        found = await search(index, sparse=terms(7), legs=legs, where=seen_by(**narrowing))
        assert set(artifact_ids(found)) == expected


# ------------------------------------------------------------------------------------------------ writing and removing


async def test_storing_a_point_again_leaves_one(index: Index) -> None:
    await index.store([point("a")])
    await index.store([point("a")])
    assert await index.count() == 1


async def test_more_points_than_one_upsert_takes_are_all_stored(index: Index) -> None:
    await index.store([point("a", chunk=number, dense=unit(1, number)) for number in range(300)])
    assert await index.count() == 300


@pytest.mark.parametrize(
    "bad",
    [
        point("bad", dense=np.ones(DIMENSION - 1, np.float32)),
        point("bad", dense=np.full(DIMENSION, np.nan, np.float32)),
        point("bad", dense=np.full(DIMENSION, np.inf, np.float32)),
        point("bad", sparse=SparseVector((1, 2), (1.0,))),
        point("bad", sparse=SparseVector((1, 1), (1.0, 2.0))),
        point("bad", sparse=SparseVector((1,), (float("nan"),))),
    ],
    ids=["length", "nan", "infinite", "ragged", "twice", "nan-weight"],
)
async def test_one_bad_vector_refuses_the_call_and_stores_nothing(index: Index, bad) -> None:
    with pytest.raises(InvalidInput):
        await index.store([*(point("good", chunk=number) for number in range(200)), bad])
    assert await index.count() == 0


async def test_removal_takes_exactly_the_named_generations(index: Index) -> None:
    key = ArtifactKey("default", "a")
    await index.store(
        [
            *(point("a", generation=generation, chunk=chunk) for generation in (1, 2, 3) for chunk in range(4)),
            point("b", generation=4),
            point("a", tenant_id="other", generation=5),
        ]
    )
    await index.remove(key, [1, 3, 5])
    keys = [key, ArtifactKey("default", "b"), ArtifactKey("other", "a"), ArtifactKey("default", "unknown")]
    assert await index.generations(keys) == {keys[0]: {2}, keys[1]: {4}, keys[2]: {5}}
    assert {candidate.ref.generation for candidate in await search(index)} == {2, 4}
    await index.remove(key, [1, 3])
    await index.remove(key, [])
    assert await index.count() == 6


async def test_a_scan_tells_every_generation_of_every_artifact(index: Index) -> None:
    points = [point(f"a{number % 40}", generation=number % 3, chunk=number) for number in range(1300)]
    await index.store(points)
    found: dict[ArtifactKey, set[int]] = {}
    async for page in index.scan():
        for key, generations in page.items():
            found.setdefault(key, set()).update(generations)
    expected: dict[ArtifactKey, set[int]] = {}
    for one in points:
        expected.setdefault(one.ref.key, set()).add(one.ref.generation)
    assert found == expected


# --------------------------------------------------------------------------------------------------------- fingerprint


async def test_the_same_model_is_let_in_again_and_its_points_are_kept(index: Index) -> None:
    await index.store([point("a")])
    nearly = tuple(tuple(value + 1e-3 for value in vector) for vector in FINGERPRINT.probe)
    await index.prepare(replace(FINGERPRINT, probe=nearly))
    assert await index.count() == 1


async def test_two_processes_may_prepare_at_once(unprepared: Index) -> None:
    await asyncio.gather(unprepared.prepare(FINGERPRINT), unprepared.prepare(FINGERPRINT))
    await unprepared.store([point("a")])
    assert await unprepared.count() == 1


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model": "another-model"}, "another-model"),
        ({"dimension": DIMENSION * 2}, str(DIMENSION * 2)),
        ({"max_tokens": 512}, "512"),
        ({"sparse_version": "test-sparse-2"}, "test-sparse-2"),
        ({"probe": tuple(map(tuple, np.eye(2, DIMENSION, 1).tolist()))}, ""),
        ({"probe": ()}, ""),
    ],
    ids=["model", "dimension", "max_tokens", "sparse_version", "probe", "no-probe"],
)
async def test_another_model_is_refused_and_told_what_to_do(index: Index, change: dict, told: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        await index.prepare(replace(FINGERPRINT, **change))
    assert told in str(refusal.value)
    assert "dats-rag reindex" in str(refusal.value)


async def test_a_dropped_index_begins_anew_with_another_model(index: Index) -> None:
    await index.store([point("a")])
    await index.drop()
    await index.prepare(replace(FINGERPRINT, model="another-model"))
    assert await index.count() == 0


async def test_a_living_index_answers_a_ping(index: Index) -> None:
    await index.ping()
