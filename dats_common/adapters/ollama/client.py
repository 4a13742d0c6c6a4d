"""HTTP to Ollama: one pool of connections, every wait bounded, every answer bounded, and the library's errors ours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from typing import Any

import aiohttp
from yarl import URL

from dats_common.adapters.ollama.wire import failure, read_object, said
from dats_common.errors import ConfigurationError, LLMConnectionError, LLMTimeoutError

MAX_LINE_BYTES = 256 * 1024
"""A line is a piece of a few characters in some 200 bytes; a server that buffers sends hundreds of them at once."""

MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""65,536 tokens, one a line of 256 bytes: more than any model of the allowlist may write."""

MAX_REFUSAL_BYTES = 64 * 1024

_NO_CONNECTION = "there is no connection to the model server"
_JSON = ("application/x-ndjson", "application/json")


class TooManyBytes(LLMConnectionError):
    """An answer is longer than it may be; the same question would have it again."""


class OllamaClient:
    """Asks one Ollama; made by `open_client`. Moments are those of the loop's clock."""

    def __init__(self, http: aiohttp.ClientSession, base_url: URL) -> None:
        self._http = http
        self._base_url = base_url

    async def ask(self, method: str, path: str, *, within_s: float, body: Mapping[str, Any] | None = None) -> Any:
        """One JSON object, whole. Raises: LLMConnectionError: late too; what `wire.failure` makes of a refusal."""
        try:
            return read_object(await self.fetch(method, path, within_s=within_s, max_bytes=MAX_ANSWER_BYTES, body=body))
        except TooManyBytes as error:
            raise LLMConnectionError(str(error)) from None

    async def fetch(
        self, method: str, path: str, *, within_s: float, max_bytes: int, body: Mapping[str, Any] | None = None
    ) -> bytes:
        """A whole answer, not yet read as JSON. Raises: as `ask`; TooManyBytes."""
        until = asyncio.get_running_loop().time() + within_s
        try:
            async with self.answering(method, path, until=until, body=body) as response:
                if (whole := await _read(response, until=until, max_bytes=max_bytes)) is None:
                    raise TooManyBytes("the model server answered with too many bytes")
                return whole
        except LLMTimeoutError as error:
            raise LLMConnectionError(f"the model server did not answer in {within_s} s") from error

    @asynccontextmanager
    async def answering(
        self, method: str, path: str, *, until: float, body: Mapping[str, Any] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A good answer, not yet read; its connection closes with the context, which stops the model.

        Raises: LLMTimeoutError: no answer has begun by `until`; LLMConnectionError; what `wire.failure` makes of a
            refusal.
        """
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if body is not None else None
        with _translated():
            async with asyncio.timeout_at(until):
                url = self._base_url.joinpath(path.lstrip("/"))
                try:
                    response = await self._http.request(
                        method, url, data=content, headers=headers, allow_redirects=False
                    )
                except aiohttp.ClientOSError:  # also of one that lay idle, and whose server has gone meanwhile
                    raise LLMConnectionError(_NO_CONNECTION) from None
        try:
            if response.status != HTTPStatus.OK:
                words = said(await _read(response, until=until, max_bytes=MAX_REFUSAL_BYTES) or b"")
                model = body["model"] if body else None
                retry_after = response.headers.get("retry-after")
                raise failure(response.status, words, model=model, retry_after=retry_after)
            if not response.headers.get("content-type", "").startswith(_JSON):
                raise LLMConnectionError("what answers is no model server: its answer is not JSON")
            yield response
        finally:
            response.close()  # One that was read to its end has given its connection back already.


async def lines_of(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    """The lines of an answer, without the empty ones. Raises: LLMConnectionError: a line, or all, too long."""
    line, received = bytearray(), 0
    with _translated():
        async for chunk in response.content.iter_any():
            received += len(chunk)
            *ends, rest = chunk.split(b"\n")
            for end in ends:
                line += end
                if line.strip():
                    yield bytes(line)
                line.clear()
            line += rest
            if len(line) > MAX_LINE_BYTES or received > MAX_ANSWER_BYTES:
                raise LLMConnectionError("the model server sent more than an answer can be")
    if line.strip():
        yield bytes(line)


async def next_line(lines: AsyncGenerator[bytes], *, until: float) -> bytes | None:
    """None: there are no more. Raises: LLMTimeoutError: it did not come by `until`; LLMConnectionError."""
    # The wait is bounded here and not around the loop that yields: a timeout must never strike in the reader's code.
    with _translated():
        async with asyncio.timeout_at(until):
            return await anext(lines, None)


async def _read(response: aiohttp.ClientResponse, *, until: float, max_bytes: int) -> bytes | None:
    """The whole answer; None: it has more than `max_bytes`."""
    body = bytearray()
    with _translated():
        async with asyncio.timeout_at(until):
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > max_bytes:
                    return None
    return bytes(body)


@contextmanager
def _translated() -> Iterator[None]:
    """The library's errors become ours, once; none is kept as a cause: it holds the request, and with it the prompt."""
    try:
        yield
    except aiohttp.ConnectionTimeoutError:
        raise LLMConnectionError(_NO_CONNECTION) from None
    except TimeoutError:
        raise LLMTimeoutError("the model did not answer in time") from None
    except (aiohttp.ClientError, OSError) as error:
        raise LLMConnectionError(f"the model server broke off: {type(error).__name__}") from None


@asynccontextmanager
async def open_client(base_url: str, *, connect_timeout_s: float) -> AsyncIterator[OllamaClient]:
    """The pool. It follows no redirect and no proxy of the environment: a prompt goes to `base_url` or nowhere.

    Raises: ConfigurationError: not the address of an HTTP server.
    """
    try:
        url = URL(base_url)
        known = url.scheme in ("http", "https") and bool(url.host) and url.port is not None
        (url.host or "").encode("idna")  # what the resolver does, and its error is none of HTTP's
    except ValueError as error:
        raise ConfigurationError(f"OLLAMA_BASE_URL is not an address: {error}") from error
    if not known:
        raise ConfigurationError("OLLAMA_BASE_URL must begin with http:// or https:// and name a host")
    async with aiohttp.ClientSession(
        # Chats are bounded by slots, the rest by its haste: a look-up must not wait for a chat's connection.
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Accept-Encoding": "identity"},
        auto_decompress=False,  # what is compressed has no bound
        # All other waits have a moment of their own.
        timeout=aiohttp.ClientTimeout(total=None, connect=connect_timeout_s),
        trust_env=False,
    ) as http:
        yield OllamaClient(http, url)
