"""The disk of a laptop's fleet is really full: a file system of a few megabytes under its data directory.

Nothing may be acknowledged that is not on disk, nothing that was acknowledged may be lost, what is tainted stays
invisible, and with room again everything goes on, without a restart.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fleet import eventually, names, search, shown, text
from servers import free_port

from dats_common.adapters.sqlite_bus import open_sqlite_bus
from dats_common.contracts.topology import TASK_VALIDATED
from dats_common.errors import BrokerUnavailable
from dats_common.settings import load_settings
from services.local import open_fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SIZE = "96m"
SIZE_CHARS = 60_000
ROOMS_BYTES = (512_000, 2_000_000)
"""So that queue, ledger and index each come to be the first that finds none."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, which only root may mount."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(directory)], capture_output=True, check=False
    )
    if mounted.returncode:
        if os.environ.get("CI") == "true":
            pytest.fail(mounted.stderr.decode())
        pytest.skip("a small file system cannot be mounted here")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


class Ballast:
    """What fills the disk."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "ballast"

    def fill(self, *, leave_bytes: int = 0) -> None:
        """Down to the last byte, or nearly."""
        with self._file.open("ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                while True:
                    try:
                        file.write(b"\0" * size)
                    except OSError:
                        break
        if leave_bytes:
            os.truncate(self._file, self._file.stat().st_size - leave_bytes)

    def free(self) -> None:
        self._file.unlink()


async def embed(client: httpx.AsyncClient, artifact: str) -> httpx.Response:
    body = {"content": text(artifact), "metadata": {"artifact_id": artifact, "project_id": "p"}}
    return await client.post("/api/v1/embed", json=body)


def approved(artifact: str) -> dict[str, Any]:
    content = text(artifact) + " and more words" * (SIZE_CHARS // 15)
    return {"data": {"artifact_id": artifact, "content": content, "metadata": {"project_id": "p"}}}


async def test_a_full_disk_acknowledges_nothing_that_it_cannot_keep_and_room_is_all_that_it_needs(
    small_disk: Path, tmp_path: Path
) -> None:
    stays, goes, never, *more = names(3 + 3)
    settings = load_settings(None, {"DATS_DATA_DIR": str(small_disk / "data"), "PORT": str(free_port())})
    log = tmp_path / "fleet.log"
    ballast = Ballast(small_disk)
    async with (
        open_fleet(settings, log_file=log) as fleet,
        httpx.AsyncClient(base_url=fleet.base_url.removesuffix("/api/v1"), timeout=60, trust_env=False) as client,
    ):
        for artifact in (stays, goes):
            assert (await embed(client, artifact)).status_code == 200
        assert (await client.delete(f"/api/v1/embeddings/{goes}")).status_code == 200
        ballast.fill()

        # What came back as done is done; the rest was refused, and said so.
        answers = {artifact: await embed(client, artifact) for artifact in more}
        assert {answer.status_code for answer in answers.values()} == {503}
        kept = set()
        refused = await client.delete(f"/api/v1/embeddings/{stays}")
        assert refused.status_code == 503
        assert shown(await search(client, stays, goes)) == {stays}
        health = (await client.get("/api/v1/health")).json()

        assert {finding["what"] for finding in health["findings"]} >= {"disk"}

        # With a little room, now the queue's file, now the ledger, now the index is the first that finds none.
        async with open_sqlite_bus(settings.data_dir / "bus.db") as bus:
            for room_bytes in ROOMS_BYTES:
                ballast.free()
                ballast.fill(leave_bytes=room_bytes)
                for artifact in names(3):
                    more.append(artifact)
                    try:
                        await bus.publish(TASK_VALIDATED, approved(artifact), event_id="")
                    except BrokerUnavailable:
                        continue
                    kept.add(artifact)
                await asyncio.sleep(1.0)  # the writer tries and fails: how far it comes is the experiment

        ballast.free()

        async def works() -> bool:
            return (await embed(client, never)).status_code == 200

        await eventually(works, what="room to be noticed")

        async def all_there() -> bool:
            found = shown(await search(client, stays, goes, never, *more))
            return found >= {never, *kept} and goes not in found

        await eventually(all_there, what="what was acknowledged")
        assert (await client.delete(f"/api/v1/embeddings/{never}")).status_code == 200
        assert not shown(await search(client, never, goes))
        health = (await client.get("/api/v1/health")).json()
        assert health["status"] == "healthy"
        assert kept, "nothing came through: the rooms are too small to tell anything"
    told = log.read_text().splitlines()
    assert not [line for line in told if "Traceback" in line]
    # No message is to blame for a full disk, so none comes nearer to the dead letters by it.
    assert [line for line in told if "cannot write" in line]
    assert not [line for line in told if "cannot write" in line and '"how": "Retry"' in line]
