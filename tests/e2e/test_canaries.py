"""`dats-rag verify`, `sweep` and `reindex` as users run them, on fleets of real processes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fleet import COLLECTION, Fleet, Replica, bare_environment, create_database, eventually, names, purge, text
from ledgers import Writer, validated
from servers import PostgresServer, RabbitServer, free_port, wait_until

from dats_common.adapters.qdrant import QdrantIndex, open_qdrant
from dats_common.adapters.sql.ledger import SqlLedger, open_ledger
from dats_common.clients.rag import RAGClient
from dats_common.domain import sparse
from dats_common.domain.model import ArtifactKey, ChunkRef, SourceMetadata
from dats_common.embedded.qdrant_edge import open_engine_process
from dats_common.maintenance.drift import compare
from dats_common.records import Point
from services.verify.canary import RESERVED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DEADLINE_S = 180.0
UNGUARDED = Path(__file__).parents[1] / "unguarded.py"
DIMENSION = 384


def start(*arguments: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "services.cli", *arguments, "--json"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )


def run(*arguments: str, environment: dict[str, str]) -> tuple[int, Any]:
    """Exit status and what it said, once it has ended."""
    process = start(*arguments, environment=environment)
    out, _ = process.communicate(timeout=DEADLINE_S)
    return process.returncode, json.loads(out) if out.strip() else None


# ----------------------------------------------------------------------------------------------- one machine's fleet


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    """`dats-rag up`, and the environment in which commands find it."""
    base, port = tmp_path_factory.mktemp("laptop"), free_port()
    # The writer's own sweep would repair what a test has broken before it is looked at.
    configuration = base / "rag-service.yaml"
    configuration.write_text("events:\n  sweep_interval_s: 3600\n")
    environment = bare_environment(DATS_CONFIG=str(configuration), DATS_DATA_DIR=str(base / "data"), PORT=str(port))
    command = [sys.executable, "-m", "services.cli", "up"]
    fleet = Replica(command, environment, base / "up.log", url=f"http://127.0.0.1:{port}")
    try:
        wait_until(lambda: fleet.is_ready, timeout_s=DEADLINE_S, what="dats-rag up")
        yield fleet
        fleet.stop()
    finally:
        fleet.end()


def data_of(fleet: Replica) -> Path:
    return Path(fleet.environment["DATS_DATA_DIR"])


def verify(fleet: Replica, *more: str) -> tuple[int, Any]:
    arguments = ("verify", "--url", f"{fleet.url}/api/v1", "--rounds", "1", *more)
    return run(*arguments, environment=dict(fleet.environment))


@pytest.fixture
async def ledger(laptop: Replica) -> AsyncIterator[SqlLedger]:
    async with open_ledger(f"sqlite:///{data_of(laptop) / 'ledger.db'}") as opened:
        yield opened


@pytest.fixture
async def index(laptop: Replica) -> AsyncIterator[QdrantIndex]:
    port = json.loads((data_of(laptop) / "qdrant" / "engine.lock").read_text())["port"]
    async with open_qdrant(collection=COLLECTION, host="127.0.0.1", grpc_port=port) as opened:
        yield opened


async def canaries(ledger: SqlLedger) -> list[str]:
    live = [generation.key.artifact_id async for generation, _ in ledger.live_chunks()]
    return [artifact_id for artifact_id in live if artifact_id.startswith(RESERVED)]


def orphan(artifact_id: str, chunk: int) -> Point:
    import numpy as np

    ref = ChunkRef(ArtifactKey("default", artifact_id), 987_654, chunk)
    vector = np.eye(1, DIMENSION, dtype=np.float32)[0]
    return Point(ref, SourceMetadata(project_id="proj-1"), vector, sparse.encode_document("a stray point"))


async def test_drift_behind_the_ledgers_back_is_told_exactly_and_repaired(
    laptop: Replica, ledger: SqlLedger, index: QdrantIndex
) -> None:
    lost, kept = names(2)
    async with RAGClient(f"{laptop.url}/api/v1", timeout=60) as client:
        for artifact_id in (lost, kept):
            await client.embed(text(artifact_id), {"artifact_id": artifact_id, "project_id": "proj-1"})

    async def live() -> bool:
        return {lost, kept} <= {generation.key.artifact_id async for generation, _ in ledger.live_chunks()}

    await eventually(live, what="two live artifacts", timeout_s=DEADLINE_S)
    status, said = await asyncio.to_thread(verify, laptop)
    assert (status, said["well"]) == (0, True), said

    key = ArtifactKey("default", lost)
    await index.remove(key, sorted((await index.generations([key]))[key]))
    await index.store([orphan(kept, chunk) for chunk in range(3)])
    status, said = await asyncio.to_thread(verify, laptop)
    assert status == 1
    assert (said["stores"]["missing_points"], said["stores"]["orphaned_points"]) == (1, 3)
    assert lost in json.dumps(said["stores"]["missing_examples"])

    status, swept = await asyncio.to_thread(run, "sweep", environment=dict(laptop.environment))
    assert (status, swept["orphaned_points"], swept["removed_generations"]) == (0, 3, 1)
    status, rebuilt = await asyncio.to_thread(run, "reindex", environment=dict(laptop.environment))
    assert (status, rebuilt["artifacts"]) == (0, 2)
    status, said = await asyncio.to_thread(verify, laptop)
    assert (status, said["well"]) == (0, True), said
    assert await canaries(ledger) == []


async def test_an_interrupted_verification_leaves_no_canary(laptop: Replica, ledger: SqlLedger) -> None:
    arguments = ("verify", "--url", f"{laptop.url}/api/v1", "--rounds", "1000", "--replicas-only")
    process = start(*arguments, environment=dict(laptop.environment))
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not await canaries(ledger):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(process.wait, DEADLINE_S) == 130
    finally:
        process.kill()
        process.communicate()
    assert await canaries(ledger) == []


async def test_a_watch_serves_its_verdicts_as_metrics_until_it_is_stopped(laptop: Replica, ledger: SqlLedger) -> None:
    port = free_port()
    arguments = (
        "verify",
        "--url",
        f"{laptop.url}/api/v1",
        "--rounds",
        "1",
        "--watch",
        "1",
        "--metrics-port",
        str(port),
    )
    process = start(*arguments, environment=dict(laptop.environment))
    try:

        def rounds() -> float:
            try:
                told = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=5, trust_env=False).text
            except httpx.TransportError:
                return 0
            lines = dict(line.rsplit(" ", 1) for line in told.splitlines() if not line.startswith("#"))
            assert float(lines.get(f'rag_verify_stale_hits_total{{replica="{laptop.url}/api/v1"}}', 0)) == 0
            return float(lines.get('rag_verify_rounds_total{result="well"}', 0))

        await asyncio.to_thread(wait_until, lambda: rounds() >= 2, timeout_s=DEADLINE_S, what="two verdicts")
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, DEADLINE_S) == 0
    finally:
        process.kill()
        process.communicate()
    assert await canaries(ledger) == []


def test_a_replica_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    environment = bare_environment(DATS_DATA_DIR=str(tmp_path))
    arguments = ("verify", "--url", f"http://127.0.0.1:{free_port()}/api/v1", "--replicas-only")
    assert run(*arguments, environment=environment) == (69, None)


# ------------------------------------------------------------------------------------------------- servers for others


@pytest.fixture
def fleet(rabbitmq: RabbitServer, postgres: PostgresServer, tmp_path: Path) -> Iterator[Fleet]:
    asyncio.run(purge(rabbitmq.url))
    running = Fleet(tmp_path, sql_url=asyncio.run(create_database(postgres.url)), amqp_url=rabbitmq.url)
    try:
        running.start(writers=1, replicas=2)
        yield running
    finally:
        running.end()


@pytest.mark.rabbitmq
@pytest.mark.postgres
def test_of_three_replicas_the_one_without_a_guard_is_told(fleet: Fleet, tmp_path: Path) -> None:
    good = [f"{replica.url}/api/v1" for replica in fleet.replicas]
    urls = [part for url in good for part in ("--url", url)]
    status, said = run("verify", *urls, "--rounds", "2", environment=fleet.environment)
    assert status == 0, said
    assert [replica["stale_hits"] for replica in said["replicas"]] == [0, 0]
    assert all(replica["taint_to_invisible_ms"]["max"] is not None for replica in said["replicas"])

    port = free_port()
    command = [sys.executable, str(UNGUARDED), str(port)]
    broken = Replica(command, fleet.environment, tmp_path / "unguarded.log", url=f"http://127.0.0.1:{port}")
    try:

        def serves() -> bool:
            assert broken.is_running, broken.log.read_text()[-2000:]
            return broken.is_ready

        wait_until(serves, timeout_s=DEADLINE_S, what="the replica without a guard")
        urls += ["--url", f"{broken.url}/api/v1"]
        status, said = run("verify", *urls, "--rounds", "1", environment=fleet.environment)
    finally:
        broken.end()
    assert status == 1
    *well, bad = said["replicas"]
    assert [replica["stale_hits"] for replica in well] == [0, 0]
    assert bad["stale_hits"] > 0


# --------------------------------------------------------------------------------------------- an interrupted rebuild


ARTIFACTS, CHUNKS_EACH = 60, 20


async def fill(url: str) -> None:
    async with open_ledger(url) as ledger:
        writer = await Writer.of(ledger)
        for number in range(ARTIFACTS):
            content = text(str(number)) * CHUNKS_EACH
            await writer.publish(validated(f"doc-{number:05d}", content, at_s=number), parts=CHUNKS_EACH)


async def drift_of(data: Path) -> tuple[int, bool]:
    """Live chunks, and whether the index agrees with them."""
    async with (
        open_ledger(f"sqlite:///{data / 'ledger.db'}") as ledger,
        open_engine_process(data / "qdrant") as engine,
        open_qdrant(collection=COLLECTION, host=engine.host, grpc_port=engine.port) as index,
    ):
        drift = await compare(ledger=ledger, index=index)
    return drift.live_chunks, drift.is_none


def test_a_rebuild_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    asyncio.run(fill(f"sqlite:///{data / 'ledger.db'}"))
    environment = bare_environment(DATS_DATA_DIR=str(data))
    position = data / "reindex.json"

    process = start("reindex", "--recreate", environment=environment)
    wait_until(position.exists, timeout_s=DEADLINE_S, what="the first step of a rebuild")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    noted = position.read_text()
    begun = json.loads(noted)["chunks"]
    chunks = ARTIFACTS * CHUNKS_EACH
    assert 0 < begun < chunks

    status, rebuilt = run("reindex", "--recreate", environment=environment)
    assert status == 0
    assert rebuilt == {"artifacts": ARTIFACTS, "chunks": chunks, "resumed_after_chunks": begun}
    assert asyncio.run(drift_of(data)) == (chunks, True)
    assert not position.exists()

    # The same note beside an index that was lost since then is of no use.
    shutil.rmtree(data / "qdrant")
    position.write_text(noted)
    status, rebuilt = run("reindex", environment=environment)
    assert (status, rebuilt["chunks"], rebuilt["resumed_after_chunks"]) == (0, chunks, 0)
