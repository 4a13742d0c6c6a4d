"""A server of vectors for tests: a real socket, the vectors of an encoder, a script of how it fails, and a record.

It speaks Ollama's `/api/embed` and `/api/show`, and OpenAI's embeddings below `/v1`.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from dats_common.ports import Encoder

EMBED, SHOW, EMBEDDINGS = "/api/embed", "/api/show", "/v1/embeddings"
MODEL = "nomic-embed-text"
TOO_LONG = "the input length exceeds the context length"
WAIT_S = 20.0


@dataclass(frozen=True)
class Reply:
    """What to answer one request with.

    Attributes:
        body: a mapping is sent as JSON.
        ends: `cut`: the connection is closed in the middle of the body; `dropped`: before its first byte; `never`:
            nothing is ever sent.
        after: waited for before the first byte.
    """

    body: Mapping[str, Any] | bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    ends: Literal["well", "cut", "dropped", "never"] = "well"
    after: asyncio.Event | None = None


@dataclass(frozen=True)
class Request:
    """A request as it was received."""

    path: str
    headers: Mapping[str, str]
    body: Any


HANGS = Reply(ends="never")


def refused(status: int, error: str, **headers: str) -> Reply:
    """A refusal in Ollama's form; header names with `_` for `-`."""
    return Reply({"error": error}, status, {name.replace("_", "-"): value for name, value in headers.items()})


class ScriptedEncoder:
    """The server; made by `open_scripted_encoder`. All of it may be changed while it runs.

    Attributes:
        url: its address, without a path.
        encoder: what makes the vectors; they are sent longer than unit vectors, a gateway's in another order.
        shown: what Ollama says of the model.
        api_key: the only one that is good; None: no key is asked for.
        shortens: whether `dimensions`, a divisor of the encoder's, is heeded.
        reads: from a text to whether it fits; one that does not is refused.
        requests: all that came, in their order.
        most_in_hand: the most requests that were answered at one moment.
    """

    def __init__(self, encoder: Encoder) -> None:
        self.url = ""
        self.encoder = encoder
        self.shown: dict[str, Any] = {"model_info": {"nomic-bert.context_length": 2048}}
        self.api_key: str | None = None
        self.shortens = True
        self.reads: Callable[[str], bool] = lambda text: True
        self.requests: list[Request] = []
        self.most_in_hand = 0
        self.in_hand = 0
        self._script: deque[Reply] = deque()
        self._serving: set[asyncio.Task[Any]] = set()
        self._changed = asyncio.Condition()

    def answers(self, *replies: Reply) -> None:
        """Answer the next requests for vectors with these, in turn; those after them as without a script."""
        self._script.extend(replies)

    @property
    def asked(self) -> list[dict[str, Any]]:
        """What was sent for vectors."""
        return [request.body for request in self.requests if request.path != SHOW]

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait for something that a request makes true."""
        async with asyncio.timeout(WAIT_S), self._changed:
            await self._changed.wait_for(true)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            while await self._answered(await _read(reader), writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client has gone, or the server goes
        finally:
            self._serving.discard(task)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def close(self) -> None:
        """End every connection."""
        serving = list(self._serving)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    async def _answered(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        self.in_hand += 1
        async with self._changed:
            self.requests.append(request)
            self.most_in_hand = max(self.most_in_hand, self.in_hand)
            self._changed.notify_all()
        try:
            return await _send(await self._reply(request), writer)
        finally:
            self.in_hand -= 1

    async def _reply(self, request: Request) -> Reply:
        if self.api_key and request.headers.get("authorization") != f"Bearer {self.api_key}":
            return refused(401, f"Incorrect API key provided: {request.headers.get('authorization')}")
        if request.body["model"].lower().removesuffix(":latest") != MODEL:
            return refused(404, f"model '{request.body['model']}' not found")
        if request.path == SHOW:
            return Reply(self.shown)
        if self._script:
            return self._script.popleft()
        texts = request.body["input"]
        if not all(map(self.reads, texts)):
            return refused(400, TOO_LONG)
        vectors = 3 * await self.encoder.encode(texts, kind="document")
        if self.shortens and (dimensions := request.body.get("dimensions")):
            vectors = vectors.reshape(len(texts), -1, dimensions).sum(axis=1)
        if request.path == EMBED:
            return Reply({"model": MODEL, "embeddings": vectors.tolist()})
        entries = [{"object": "embedding", "index": at, "embedding": row.tolist()} for at, row in enumerate(vectors)]
        return Reply({"object": "list", "model": MODEL, "data": entries[::-1]})


@asynccontextmanager
async def open_scripted_encoder(encoder: Encoder) -> AsyncIterator[ScriptedEncoder]:
    """A server on a free port of 127.0.0.1, for as long as the context lasts."""
    scripted = ScriptedEncoder(encoder)
    server = await asyncio.start_server(scripted.serve, "127.0.0.1", 0)
    scripted.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield scripted
    finally:
        server.close()
        await scripted.close()


def vectors_of(request_path: str, *vectors: Any) -> Reply:
    """These vectors as the path's protocol has them."""
    if request_path == EMBED:
        return Reply({"embeddings": list(vectors)})
    return Reply({"data": [{"index": at, "embedding": vector} for at, vector in enumerate(vectors)]})


async def _read(reader: asyncio.StreamReader) -> Request:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[:-1])}
    body = await reader.readexactly(int(headers["content-length"]))
    return Request(first.split()[1], headers, json.loads(body))


async def _send(reply: Reply, writer: asyncio.StreamWriter) -> bool:
    """Returns whether the connection is good for another request."""
    if reply.after is not None:
        await reply.after.wait()
    if reply.ends == "never":
        await asyncio.Event().wait()
    if reply.ends == "dropped":
        return False
    body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **reply.headers}
    lines = [f"HTTP/1.1 {reply.status} Scripted", *(f"{name}: {value}" for name, value in headers.items())]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    writer.write(body[: len(body) // 2] if reply.ends == "cut" else body)
    await writer.drain()
    return reply.ends == "well"
