"""The ledger goes back in time, and no taint is forgotten: the runbook's backup and restore, on both databases."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from fleet import Child, Fleet, bare_environment, create_database, names, producer, purge, search, shown, text
from servers import PostgresServer, RabbitServer, free_port, wait_until

from drills.runbook import BIN, commands_under, run_commands

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ON_ONE_MACHINE = "Restore on one machine"
ON_POSTGRESQL = "PostgreSQL was restored from a backup"


@dataclass
class Laptop:
    """A directory in which an operator works, with a fleet under `data`."""

    directory: Path
    port: int
    environment: dict[str, str]

    @contextmanager
    def up(self) -> Iterator[None]:
        command = [str(BIN / "dats-rag"), "up", "--port", str(self.port), "--data", "data"]
        up = Child(command, self.environment, self.directory / "up.log")
        try:
            wait_until(lambda: self._is_up(up), timeout_s=120, what="the fleet")
            yield
        finally:
            up.process.send_signal(signal.SIGTERM)
            up.wait()
            up.log.rename(up.log.with_suffix(f".{os.urandom(3).hex()}.log"))

    def run(self, commands: str, *, status: int = 0) -> str:
        return run_commands(commands, directory=self.directory, environment=self.environment, status=status).stdout

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=30, trust_env=False) as found:
            yield found

    def _is_up(self, up: Child) -> bool:
        assert up.is_running, up.log.read_text()[-3000:]
        return "DATS RAG is up" in up.log.read_text()


@pytest.fixture
def laptop(tmp_path: Path) -> Laptop:
    return Laptop(tmp_path, free_port(), bare_environment(NO_PROXY="127.0.0.1,localhost"))


async def embed(client: httpx.AsyncClient, *artifacts: str) -> None:
    for artifact in artifacts:
        body = {"content": text(artifact), "metadata": {"artifact_id": artifact, "project_id": "proj-1"}}
        assert (await client.post("/api/v1/embed", json=body)).status_code == 200


async def test_a_restored_directory_shows_nothing_that_was_tainted_after_its_backup(laptop: Laptop) -> None:
    stays, went, goes, later = names(4)
    with laptop.up():
        async with laptop.client() as client:
            await embed(client, stays, went, goes)
            await client.delete(f"/api/v1/embeddings/{went}")
            await asyncio.to_thread(laptop.run, commands_under("Backup"))
            await embed(client, later)
            await client.delete(f"/api/v1/embeddings/{goes}")
            assert shown(await search(client, stays, went, goes, later)) == {stays, later}

    restored = laptop.run(commands_under(ON_ONE_MACHINE))
    assert "1 taints replayed" in restored
    assert later in restored
    with laptop.up():
        async with laptop.client() as client:
            assert shown(await search(client, stays, went, goes, later)) == {stays}
            await embed(client, later)
            assert shown(await search(client, stays, went, goes, later)) == {stays, later}
    again = json.loads(laptop.run("dats-rag replay-taints --json"))
    assert (again["replayed"], again["known"], again["complete"]) == (0, 2 + 1, True)


@pytest.fixture
async def fleet(rabbitmq: RabbitServer, postgres: PostgresServer, tmp_path: Path) -> AsyncIterator[Fleet]:
    await purge(rabbitmq.url)
    started = Fleet(tmp_path, sql_url=await create_database(postgres.url), amqp_url=rabbitmq.url)
    try:
        await asyncio.to_thread(started.start, writers=1, replicas=1)
        yield started
    finally:
        started.end()


@pytest.mark.rabbitmq
@pytest.mark.postgres
async def test_a_restored_postgresql_shows_nothing_that_was_tainted_after_its_backup(
    fleet: Fleet, postgres: PostgresServer
) -> None:
    stays, went, goes, wild, later = names(5)
    name = f"restored_{os.urandom(4).hex()}"
    where = urlsplit(postgres.url)
    environment = fleet.environment | {
        "PGHOST": where.hostname or "",
        "PGPORT": str(where.port or 5432),
        "PGUSER": where.username or "postgres",
        "LOST": urlsplit(fleet.postgres_url).path[1:],
        "RESTORED": name,
    }

    def run(commands: str) -> str:
        return run_commands(commands, directory=fleet.base, environment=environment).stdout

    (replica,) = fleet.replicas
    async with producer(fleet.amqp_url) as team:
        for artifact in (stays, went, goes, wild):
            await team.validated(artifact, text(artifact))
        await team.completed(stays, went, goes, wild)
        await team.tainted(went)
        await team.invalidated(went)
        await asyncio.to_thread(run, commands_under("Backup", number=1))
        await team.validated(later, text(later))
        await team.completed(later)
        await team.tainted(wild)
        await team.invalidated(wild)
        async with replica.client() as client:
            await client.delete(f"/api/v1/embeddings/{goes}")
            await team.invalidated(goes)
            everything = (stays, went, goes, wild, later)
            assert shown(await search(client, *everything)) == {stays, later}

        await asyncio.to_thread(fleet.stop)
        await asyncio.to_thread(run, commands_under(ON_POSTGRESQL))
        restored_url = urlsplit(fleet.postgres_url)._replace(scheme="postgresql+asyncpg", path=f"/{name}").geturl()
        environment["DATS_SQL_URL"] = restored_url
        fleet.postgres_url = urlsplit(restored_url)._replace(scheme="postgresql").geturl()
        for child in fleet.children:
            child.environment = {**child.environment, "DATS_SQL_URL": restored_url}
        await asyncio.to_thread(fleet.start_engine)
        told = await asyncio.to_thread(run, commands_under(ON_POSTGRESQL, number=1))
        assert "2 taints replayed" in told
        assert later in told
        await asyncio.to_thread(fleet.revive)
        async with replica.client() as client:
            assert shown(await search(client, *everything)) == {stays}
            await team.validated(later, text(later))
            await fleet.all_live([later])
            assert shown(await search(client, *everything)) == {stays, later}
