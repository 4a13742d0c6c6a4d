"""A TCP hop to the broker for each writer, so that one writer's connections can be closed and kept closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

_CHUNK_BYTES = 65_536


class Link:
    """Passes bytes on until it is cut."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._up = True
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Link]:
        """`url` leads through this hop for as long as the context lasts."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        credentials = self._target.netloc.rpartition("@")[0]
        self.url = self._target._replace(netloc=f"{credentials}@127.0.0.1:{port}").geturl()
        try:
            yield self
        finally:
            server.close()
            self.cut()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """The broker sees the connections close, and brings what was not acknowledged to another; new ones fail."""
        self._up = False
        for writer in self._open:
            writer.close()
        self._open.clear()

    def mend(self) -> None:
        """New connections are taken again."""
        self._up = True

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._up:
            writer.close()
            return
        far_reader, far_writer = await asyncio.open_connection(self._target.hostname, self._target.port)
        self._open |= {writer, far_writer}
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(self._pass_on(source, sink), name="link")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(_CHUNK_BYTES):
                sink.write(data)
                await sink.drain()
        sink.close()
        self._open.discard(sink)
