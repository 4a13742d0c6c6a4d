"""A fleet as an administrator sets it up on PostgreSQL: the owner migrates, writer and replica have a login each, and
neither may do what the other does."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fleet import Fleet, create_database, names, producer, purge, search, shown, text
from logins import fresh_login
from servers import PostgresServer, RabbitServer

pytestmark = [pytest.mark.rabbitmq, pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(600)]

EXIT_CONFIGURATION = 78


@pytest.fixture
async def logins(postgres: PostgresServer) -> AsyncIterator[tuple[str, str, str]]:
    """URLs of a new database for its owner, a writer and a replica; the roles exist, as after any migration before."""
    owner = (await create_database(postgres.url)).replace("+asyncpg", "")
    assert migrate(owner) == 0
    async with (
        fresh_login(owner, member_of="dats_rag_writer") as writer,
        fresh_login(owner, member_of="dats_rag_query") as replica,
    ):
        yield owner, writer, replica


def migrate(owner: str) -> int:
    command = [sys.executable, "-m", "services.cli", "migrate"]
    environment = {"DATS_SQL_URL": "postgresql://nobody@127.0.0.1:1/none", "DATS_SQL_MIGRATION_URL": owner}
    return subprocess.run(command, env=environment, timeout=60, check=False).returncode


async def test_a_fleet_works_with_logins_that_own_nothing(
    logins: tuple[str, str, str], rabbitmq: RabbitServer, tmp_path: Path
) -> None:
    owner, writer_url, replica_url = logins
    await purge(rabbitmq.url)
    fleet = Fleet(tmp_path, sql_url=owner, amqp_url=rabbitmq.url)
    as_writer, as_replica = ({**fleet.environment, "DATS_SQL_URL": url} for url in (writer_url, replica_url))
    try:
        fleet.start_engine()
        fleet.environment = as_replica
        fleet.add_replica()
        refused = fleet.add_writer()
        assert await asyncio.to_thread(refused.wait) == EXIT_CONFIGURATION
        assert "may not act as dats_rag_writer" in refused.log.read_text()
        fleet.writers.remove(refused)
        refused.log.unlink()
        fleet.environment = as_writer
        fleet.add_writer()
        await asyncio.to_thread(fleet.wait_until_up)

        (mine, theirs, over_http) = names(3)
        async with producer(rabbitmq.url) as team, fleet.replicas[0].client() as client:
            await team.validated(mine, text(mine))
            await team.validated(theirs, text(theirs), tenant_id="theirs")
            await team.completed(mine, theirs)
            body = {"content": text(over_http), "metadata": {"artifact_id": over_http, "project_id": "proj-1"}}
            embedded = await client.post("/api/v1/embed", json=body)
            assert (embedded.status_code, embedded.json()["status"]) == (200, "indexed")
            assert shown(await search(client)) == {mine, over_http}

            assert (await client.delete(f"/api/v1/embeddings/{mine}")).json()["removed_chunks"] == 1
            assert shown(await search(client)) == {over_http}
            await team.invalidated(mine)  # relayed by either
            health = (await client.get("/api/v1/health")).json()
            assert health["status"] == "healthy"
            assert health["index_metrics"]["total_chunks"] == 2  # of all tenants
    finally:
        fleet.end()
