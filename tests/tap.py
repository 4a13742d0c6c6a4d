"""A relay before a server that keeps what clients sent: what a model was told is read on the wire, not asked of us."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

_LENGTH = re.compile(rb"content-length: *(\d+)", re.I)


@dataclass
class Tap:
    """Made by `tapped`.

    Attributes:
        url: to use instead of the server's.
        sent: every byte that clients sent, a buffer for each connection in the order they were opened.
    """

    url: str = ""
    sent: list[bytearray] = field(default_factory=list)

    def bodies(self) -> list[Any]:
        """The JSON of every whole request that had one."""
        return [json.loads(body) for connection in self.sent for body in _bodies(bytes(connection)) if body]


@asynccontextmanager
async def tapped(url: str) -> AsyncIterator[Tap]:
    """A relay to the HTTP server at `url`, on a free port of 127.0.0.1."""
    tap, server = Tap(), urlsplit(url)

    async def relay(from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        sent = bytearray()
        tap.sent.append(sent)
        from_server, to_server = await asyncio.open_connection(server.hostname, server.port)
        with suppress(ConnectionError):
            await asyncio.gather(_pass_on(from_client, to_server, sent), _pass_on(from_server, to_client, bytearray()))

    listening = await asyncio.start_server(relay, "127.0.0.1", 0)
    tap.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield tap
    finally:
        listening.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray) -> None:
    try:
        while data := await reader.read(65_536):
            kept += data
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


def _bodies(sent: bytes) -> Iterator[bytes]:
    """Of one connection's requests; each has its length declared."""
    while sent:
        head, _, rest = sent.partition(b"\r\n\r\n")
        declared = _LENGTH.search(head)
        size = int(declared[1]) if declared else 0
        yield rest[:size]
        sent = rest[size:]
