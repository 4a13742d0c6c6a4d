"""A name server for one name: its addresses can be changed while it runs, as an orchestrator's do."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

_HEADER = struct.Struct(">HHHHHH")
_A, _IN, _TTL_S = 1, 1, 1
_RESPONSE = 0x8580  # a response, authoritative, recursion desired and available


@dataclass
class Names(asyncio.DatagramProtocol):
    """Answers every question for an IPv4 address with all of `addresses`. Source: RFC 1035, section 4."""

    addresses: list[str] = field(default_factory=list)
    asked: int = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.asked += 1
        identity = _HEADER.unpack_from(data)[0]
        end = data.index(b"\0", _HEADER.size) + 5
        question, (kind, _) = data[_HEADER.size : end], struct.unpack_from(">HH", data, end - 4)
        found = self.addresses if kind == _A else []
        answers = b"".join(
            struct.pack(">HHHIH", 0xC00C, _A, _IN, _TTL_S, 4) + socket.inet_aton(address) for address in found
        )
        self._transport.sendto(_HEADER.pack(identity, _RESPONSE, 1, len(found), 0, 0) + question + answers, addr)


@asynccontextmanager
async def open_names(*addresses: str) -> AsyncIterator[tuple[str, Names]]:
    """Its own address, such as `127.0.0.1:5353`, and the server."""
    transport, names = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: Names(list(addresses)), local_addr=("127.0.0.1", 0)
    )
    try:
        host, port = transport.get_extra_info("sockname")
        yield f"{host}:{port}", names
    finally:
        transport.close()
