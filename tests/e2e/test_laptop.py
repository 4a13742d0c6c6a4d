"""The fleet of one machine: nothing set, everything under one directory, the production services as children."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path

import httpx
import pytest
from fleet import eventually, names, text
from servers import free_port

from dats_common.clients.rag import RAGClient
from dats_common.errors import ConfigurationError
from dats_common.settings import Settings, load_settings
from services.local import Fleet, open_fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(None, {"DATS_DATA_DIR": str(tmp_path / "data"), "PORT": str(free_port())})


def client_of(fleet: Fleet) -> RAGClient:
    return RAGClient(base_url=fleet.base_url)


async def found(client: RAGClient, *artifacts: str) -> set[str]:
    result = await client.query("ledger report invoices", filters={"artifact_ids": list(artifacts)})
    return {source.artifact_id for source in result.sources}


def child(module: str) -> int:
    """Process id of this process's child that runs `module`."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == os.getpid() and module.encode() in command:
                return int(entry.name)
    raise AssertionError(f"no child runs {module}")


async def test_what_was_embedded_and_tainted_stays_so_over_crashes_and_a_restart(settings: Settings) -> None:
    stays, goes, later = names(3)
    async with open_fleet(settings) as fleet, client_of(fleet) as client:
        for artifact in (stays, goes):
            embedded = await client.embed(text(artifact), {"artifact_id": artifact, "project_id": "proj-1"})
            assert embedded["status"] == "indexed"
        assert await found(client, stays, goes) == {stays, goes}
        removed = await client.invalidate(goes)
        assert removed["removed_chunks"] == 1
        assert await found(client, stays, goes) == {stays}

        # The directory has one owner.
        other = settings.model_copy(update={"server": settings.server.model_copy(update={"port": free_port()})})
        with pytest.raises(ConfigurationError, match=str(settings.data_dir)):
            async with asyncio.timeout(60), open_fleet(other):
                pass

        os.kill(child("dats_common.embedded.qdrant_edge"), signal.SIGKILL)
        os.kill(child("services.writer"), signal.SIGKILL)

        async def healed() -> bool:
            try:
                return await found(client, stays, goes) == {stays}
            except Exception:
                return False

        await eventually(healed, what="an engine that was started again")
        embedded = await client.embed(text(later), {"artifact_id": later, "project_id": "proj-1"})

        async def indexed() -> bool:
            return later in await found(client, later)

        await eventually(indexed, what="a writer that was started again")
    async with open_fleet(settings) as fleet, client_of(fleet) as client:
        assert await found(client, stays, goes, later) == {stays, later}
        assert (await client.health()).index_metrics.total_chunks == 2  # type: ignore[union-attr]


async def test_a_configuration_file_and_another_address_reach_the_services(tmp_path: Path) -> None:
    file = tmp_path / "our.yaml"
    file.write_text("query:\n  default_mode: keyword\nserver:\n  host: 127.0.0.2\n")
    settings = load_settings(file, {"DATS_DATA_DIR": str(tmp_path / "data"), "PORT": str(free_port())})
    async with open_fleet(settings, config_file=file) as fleet, httpx.AsyncClient(base_url=fleet.base_url) as client:
        assert fleet.base_url.startswith("http://127.0.0.2:")
        answer = await client.post("/query", json={"query": "anything", "project_id": "proj-1"})
        assert answer.json()["search_mode"] == "keyword"


@pytest.mark.parametrize("from_files", [False, True], ids=["secrets", "files of secrets"])
async def test_what_is_exported_for_production_does_not_reach_a_fleet_with_settings_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_files: bool
) -> None:
    environ = {"DATS_DATA_DIR": str(tmp_path / "data"), "PORT": str(free_port())}
    secrets = {
        "DATS_SQL_URL": "postgresql://nobody@127.0.0.1:1/none",
        "DATS_RABBITMQ_URL": "amqp://nobody@127.0.0.1:1/",
    }
    for name, value in {"QDRANT_URL": "http://127.0.0.1:1", "DATS_AUTH_MODE": "required"}.items():
        monkeypatch.setenv(name, value)
    for name, value in secrets.items():
        if from_files:
            (tmp_path / name).write_text(value)
            monkeypatch.setenv(f"{name}_FILE", str(tmp_path / name))
        else:
            monkeypatch.setenv(name, value)
    (artifact,) = names(1)
    async with open_fleet(load_settings(None, environ), environ=environ) as fleet, client_of(fleet) as client:
        await client.embed(text(artifact), {"artifact_id": artifact, "project_id": "proj-1"})
        assert await found(client, artifact) == {artifact}


async def test_a_port_where_another_fleet_serves_is_refused_before_anything_starts(settings: Settings) -> None:
    port = settings.server.port
    refused = pytest.raises(ConfigurationError, match=rf"127.0.0.1:{port}.*--port")
    with socket.create_server(("127.0.0.1", port)), refused:
        async with open_fleet(settings):
            pass
    assert not (settings.data_dir / "ledger.db").exists()
