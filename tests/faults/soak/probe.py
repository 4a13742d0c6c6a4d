"""Looks at processes through /proc, at the ledger's server and at the broker."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import asyncpg

from tests.faults.chaos.snapshot import depths
from tests.faults.soak.figures import CONNECTIONS, FILES, MIB, SOCKETS, THREADS, WAITING, Sample

PAGE_KIB = 1024


def look_at(name: str, pid: int, *, at_s: float) -> Iterator[Sample]:
    """One process; nothing where it is gone."""
    try:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        links = [_link(entry) for entry in os.scandir(f"/proc/{pid}/fd")]
    except OSError:
        return
    yield Sample(at_s, name, MIB, int(status["VmRSS"].split()[0]) / PAGE_KIB)
    yield Sample(at_s, name, THREADS, int(status["Threads"]))
    yield Sample(at_s, name, FILES, len(links))
    yield Sample(at_s, name, SOCKETS, sum(link.startswith("socket:") for link in links))


def _link(entry: os.DirEntry[str]) -> str:
    try:
        return os.readlink(entry.path)
    except OSError:
        return ""


async def look_at_servers(ledger: asyncpg.Connection, amqp_url: str, *, at_s: float) -> list[Sample]:
    """Connections to the ledger's database, and what waits in the queues."""
    count = await ledger.fetchval("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
    waiting = await depths(amqp_url)
    return [
        Sample(at_s, "ledger", CONNECTIONS, count),
        Sample(at_s, "broker", WAITING, sum(waiting.values())),
    ]


async def rows(ledger: asyncpg.Connection) -> Mapping[str, int]:
    """How many rows the ledger's tables have: some grow by design."""
    names = await ledger.fetch("SELECT tablename FROM pg_tables WHERE tablename LIKE 'rag_%' ORDER BY 1")
    return {each["tablename"]: await ledger.fetchval(f"SELECT count(*) FROM {each['tablename']}") for each in names}
