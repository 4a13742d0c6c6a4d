"""`dats-rag top` on a fleet of one machine, in a terminal, in a pipe, and while parts of it are away."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from fleet import bare_environment, names, text
from servers import free_port

from dats_common.settings import Settings, load_settings
from services.local import Fleet, open_fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]

DEADLINE_S = 60.0
ENTER_ALTERNATE, LEAVE_ALTERNATE = "\x1b[?1049h", "\x1b[?1049l"


@dataclass
class Laptop:
    """A fleet, and how a person calls top on it."""

    settings: Settings
    fleet: Fleet

    def command(self, *arguments: str) -> list[str]:
        data = str(self.settings.data_dir)
        return [sys.executable, "-m", "services.cli", "top", "--data", data, "--url", self.fleet.base_url, *arguments]

    async def once(self, *arguments: str) -> Any:
        ended = await asyncio.to_thread(
            subprocess.run,
            self.command("--once", "--json", *arguments),
            env=bare_environment(),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=True,
        )
        return json.loads(ended.stdout)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def laptop(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Laptop]:
    data = tmp_path_factory.mktemp("top") / "data"
    settings = load_settings(None, {"DATS_DATA_DIR": str(data), "PORT": str(free_port())})
    async with open_fleet(settings) as fleet:
        yield Laptop(settings, fleet)


async def embed_and_ask(laptop: Laptop, *artifacts: str) -> None:
    async with httpx.AsyncClient(base_url=laptop.fleet.base_url, timeout=60, trust_env=False) as client:
        for artifact in artifacts:
            metadata = {"artifact_id": artifact, "project_id": "p"}
            embedded = await client.post("/embed", json={"content": text(artifact), "metadata": metadata})
            assert embedded.status_code == 200
            assert (await client.post("/query", json={"query": artifact})).status_code == 200


async def test_one_look_has_every_figure_and_shows_what_is_away_as_away(laptop: Laptop) -> None:
    await embed_and_ask(laptop, *names(2))
    nowhere = f"http://127.0.0.1:{free_port()}/api/v1"
    seen = await laptop.once("--url", nowhere)
    replica = seen["replicas"][laptop.fleet.base_url]
    assert (replica["status"], replica["drift_points"]) == ("healthy", 0)
    assert 0 < replica["p50_s"] <= replica["p95_s"]
    assert seen["ledger"]["live_chunks"] == 2
    assert seen["ledger"]["epoch"] >= 1
    while [writer["state"] for writer in seen["writers"]] != ["active"]:  # its next heartbeat says so
        seen = await laptop.once("--url", nowhere)
    assert {queue["waiting"] for queue in seen["queues"].values()} == {0}
    assert set(seen["replicas"][nowhere]) == {"away"}


async def test_a_directory_without_a_fleet_is_away_and_not_empty(laptop: Laptop, tmp_path: Path) -> None:
    seen = await laptop.once("--data", str(tmp_path / "none"))
    assert "no fleet has run on" in seen["ledger"]["away"]
    assert "no fleet has run on" in seen["queues"]["away"]
    assert seen["writers"] == []
    assert not (tmp_path / "none").exists()


@dataclass
class Terminal:
    """A command's terminal, and what came out of it."""

    process: subprocess.Popen[bytes]
    master: int
    shown: str = ""
    _unread: int = field(default=0)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.killpg(self.process.pid, signal.SIGWINCH)
        self._unread = len(self.shown)

    def until(self, pattern: str) -> None:
        """Read until it is there, from the last `resize` on."""
        deadline = time.monotonic() + DEADLINE_S
        while not re.search(pattern, self.shown[self._unread :]):
            assert time.monotonic() < deadline, f"{pattern} is not in {self.shown[-3000:]!r}"
            if select.select([self.master], [], [], 0.2)[0]:
                self.shown += os.read(self.master, 65536).decode(errors="replace")

    def ends(self) -> int:
        """Its exit status; what it wrote at the end is read too."""
        deadline = time.monotonic() + DEADLINE_S
        while self.process.poll() is None or select.select([self.master], [], [], 0)[0]:
            assert time.monotonic() < deadline, "it did not end"
            try:
                if select.select([self.master], [], [], 0.2)[0]:
                    self.shown += os.read(self.master, 65536).decode(errors="replace")
            except OSError:  # the other side is closed
                break
        return self.process.wait(DEADLINE_S)


@contextmanager
def terminal(command: list[str], *, rows: int, columns: int) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(
        command,
        env=bare_environment(TERM="xterm-256color"),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(master)


async def test_a_terminal_is_redrawn_in_its_own_size_and_given_back_as_it_was(laptop: Laptop) -> None:
    def watch() -> None:
        with terminal(laptop.command("--interval", "0.3"), rows=24, columns=100) as screen:
            screen.until("Replicas")
            screen.until("healthy")
            assert ENTER_ALTERNATE in screen.shown
            wide = "rag-service-taints {80,}"
            assert not re.search(wide, screen.shown)
            screen.resize(30, 160)
            screen.until(wide)
            screen.process.send_signal(signal.SIGINT)
            assert screen.ends() == 0
            assert screen.shown.rindex(LEAVE_ALTERNATE) > screen.shown.rindex(ENTER_ALTERNATE)
            assert "Traceback" not in screen.shown

    await asyncio.to_thread(watch)


async def test_without_a_terminal_lines_follow_lines_and_rates_come_with_the_second_look(laptop: Laptop) -> None:
    process = await asyncio.create_subprocess_exec(
        *laptop.command("--interval", "0.5", "--json"), env=bare_environment(), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(DEADLINE_S):
        first = json.loads(await process.stdout.readline())
        await embed_and_ask(laptop, *names(1))
        rates = []
        while not any(rates):
            seen = json.loads(await process.stdout.readline())
            rates.append(seen["replicas"][laptop.fleet.base_url]["queries_per_s"])
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    assert first["replicas"][laptop.fleet.base_url]["queries_per_s"] is None
    plain = await asyncio.to_thread(
        subprocess.run,
        laptop.command("--once"),
        env=bare_environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert "Writers, epoch" in plain.stdout
    assert "\x1b" not in plain.stdout
