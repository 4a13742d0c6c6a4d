"""The proxy of docker-compose.yml: the real HAProxy with the file that is shipped, real replicas behind it, which it
finds by name. One is killed, one is stopped, one comes, and nobody who asks is refused."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from fleet import CONFIGURATION, Child, Fleet, Replica, eventually, search, shown, text
from names import Names, open_names
from scripted_ollama import Answer, ScriptedOllama, done, open_scripted_ollama, piece
from servers import free_port, wait_until

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "deploy" / "haproxy" / "haproxy.cfg"
PROGRAM = shutil.which("haproxy") or "/usr/sbin/haproxy"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def haproxy() -> None:
    if Path(PROGRAM).exists():
        return
    told = "no HAProxy: run scripts/install-servers.sh as root"
    if os.environ.get("CI") == "true":
        pytest.fail(told)
    pytest.skip(told)


@dataclass
class Scene:
    """A proxy and what stands behind it."""

    fleet: Fleet
    names: Names
    ollama: ScriptedOllama
    url: str
    replica_port: int
    stats_url: str

    def add_replica(self, address: str) -> Replica:
        """One more, on an address of its own and the port that all have."""
        configuration = self.fleet.base / f"{address}.yaml"
        configuration.write_text(f"{CONFIGURATION}server:\n  host: {address}\n")
        environment = {
            **self.fleet.environment,
            "DATS_CONFIG": str(configuration),
            "PORT": str(self.replica_port),
            "OLLAMA_BASE_URL": self.ollama.url,
        }
        log, url = self.fleet.base / f"replica-{address}.log", f"http://{address}:{self.replica_port}"
        self.fleet.replicas.append(Replica([sys.executable, "-m", "services.query"], environment, log, url=url))
        return self.fleet.replicas[-1]

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=30, trust_env=False)

    async def serving(self, count: int) -> None:
        """Until the proxy holds so many replicas for well."""

        async def settled() -> bool:
            async with httpx.AsyncClient(trust_env=False, timeout=5) as client:
                figures = (await client.get(f"{self.stats_url}/metrics")).text
            up = [
                line
                for line in figures.splitlines()
                if line.startswith("haproxy_server_status{") and 'state="UP"' in line
            ]
            return sum(line.endswith(" 1") for line in up) == count

        await eventually(settled, what=f"{count} replicas behind the proxy", timeout_s=30)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with open_names("127.0.0.2", "127.0.0.3") as (resolver, names), open_scripted_ollama() as ollama:
        fleet = Fleet(tmp_path, sql_url=f"sqlite:///{tmp_path}/ledger.db", amqp_url="")
        port, stats_port, replica_port = free_port(), free_port(), free_port()
        scene = Scene(fleet, names, ollama, f"http://127.0.0.1:{port}", replica_port, f"http://127.0.0.1:{stats_port}")
        environment = {
            "RESOLVER": resolver,
            "QUERY_PORT": str(replica_port),
            "LISTEN": f"127.0.0.1:{port}",
            "STATS_LISTEN": f"127.0.0.1:{stats_port}",
        }
        proxy = Child([PROGRAM, "-db", "-f", str(CONFIG)], {**os.environ, **environment}, tmp_path / "haproxy.log")
        try:
            fleet.start_engine()
            fleet.add_writer()
            for address in names.addresses:
                scene.add_replica(address)
            await asyncio.to_thread(fleet.wait_until_up)
            await scene.serving(2)
            yield scene
        finally:
            proxy.end()
            fleet.end()


@asynccontextmanager
async def asked_all_the_while(scene: Scene, *, clients: int = 4) -> AsyncIterator[list[int | str]]:
    """What came of each query that was sent during the block: a status, or how the connection broke."""
    statuses: list[int | str] = []
    stopped = asyncio.Event()

    async def ask(client: httpx.AsyncClient) -> None:
        while not stopped.is_set():
            try:
                response = await client.post("/api/v1/query", json={"query": "ledger report invoices"})
                statuses.append(response.status_code)
            except httpx.TransportError as error:
                statuses.append(repr(error))

    async with scene.client() as client, asyncio.TaskGroup() as asking:
        for _ in range(clients):
            asking.create_task(ask(client))
        try:
            yield statuses
        finally:
            stopped.set()


async def test_replicas_come_and_go_and_nobody_who_asks_is_refused(scene: Scene) -> None:
    async with scene.client() as client:
        body = {"content": text("doc-1"), "metadata": {"artifact_id": "doc-1", "project_id": "proj-1"}}
        assert (await client.post("/api/v1/embed", json=body)).status_code == 200
        assert shown(await search(client)) == {"doc-1"}

    killed, stopped = scene.fleet.replicas
    async with asked_all_the_while(scene) as statuses:
        await _more(statuses, 20)
        await asyncio.to_thread(killed.kill9)
        await _more(statuses, 60)
        await scene.serving(1)

        scene.names.addresses.append("127.0.0.4")
        newcomer = scene.add_replica("127.0.0.4")
        await asyncio.to_thread(wait_until, lambda: newcomer.is_ready, timeout_s=60, what="a third replica")
        await scene.serving(2)
        assert await asyncio.to_thread(stopped.stop) == 0
        await scene.serving(1)
        await _more(statuses, 40)  # by the newcomer alone
    assert set(statuses) == {200}, {each: statuses.count(each) for each in set(statuses)}


async def _more(statuses: list[int | str], count: int) -> None:
    wanted = len(statuses) + count

    async def answered() -> bool:
        return len(statuses) >= wanted

    await eventually(answered, what=f"{count} more queries")


async def test_a_stream_arrives_as_it_is_written_and_metrics_are_not_for_clients(scene: Scene) -> None:
    held = asyncio.Event()
    scene.ollama.answers(Answer([held, piece("A report on invoices [1]."), done()]))
    async with scene.client() as client:
        body = {"content": text("doc-1"), "metadata": {"artifact_id": "doc-1", "project_id": "proj-1"}}
        assert (await client.post("/api/v1/embed", json=body)).status_code == 200
        async with client.stream("POST", "/api/v1/answer/stream", json={"query": text("doc-1")}) as stream:
            lines = stream.aiter_lines()
            async with asyncio.timeout(10):
                first = [line async for line in _until(lines, "event: retrieval")]
            assert first  # while the model has not said a word
            held.set()
            rest = [line async for line in lines]
        assert "event: token" in rest
        assert (await client.get("/metrics")).status_code == 404


async def _until(lines: AsyncIterator[str], wanted: str) -> AsyncIterator[str]:
    async for line in lines:
        yield line
        if line == wanted:
            return
