"""HTTP to an embedding server: every wait and every answer bounded, what passes tried again, errors ours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx

from dats_common.adapters.encoder_http.wire import KEY, EmbeddingProtocol, Hiccup, failure, read_object
from dats_common.errors import ConfigurationError, EncoderUnavailable

RETRY_PAUSES_S = (0.1, 0.5)
"""Before the second and the third try: a connection that was closed while it was idle, a worker that is replaced. What
lasts longer is for the writer's retry ladder, and a query's caller."""


class EmbeddingClient:
    """Asks one server; made by `open_client`."""

    def __init__(self, http: httpx.AsyncClient, protocol: EmbeddingProtocol) -> None:
        self._http = http
        self._protocol = protocol

    async def ask(self, path: str, body: Mapping[str, Any], *, max_bytes: int, within_s: float) -> dict[str, Any]:
        """The JSON object that answers a request, which is sent again where that may help and there is time.

        Args:
            max_bytes: longest answer.
            within_s: longest time for all of it.

        Raises: EncoderUnavailable; what `wire.failure` makes of a refusal.
        """
        until = asyncio.get_running_loop().time() + within_s
        for pause_s in RETRY_PAUSES_S:
            try:
                return await self._once(path, body, max_bytes=max_bytes, until=until)
            except Hiccup as error:
                pause_s = max(pause_s, error.wanted_pause_s)
                if asyncio.get_running_loop().time() + pause_s >= until:
                    raise
            await asyncio.sleep(pause_s)
        return await self._once(path, body, max_bytes=max_bytes, until=until)

    async def _once(self, path: str, body: Mapping[str, Any], *, max_bytes: int, until: float) -> dict[str, Any]:
        if self._http.is_closed:
            raise EncoderUnavailable("the encoder is closed")
        content = json.dumps(body).encode()
        with _translated():
            async with asyncio.timeout_at(until), self._http.stream("POST", path, content=content) as response:
                answer = bytearray()
                async for chunk in response.aiter_raw():  # raw: what is compressed has no bound
                    answer += chunk
                    if len(answer) > max_bytes:
                        raise EncoderUnavailable("the embedding server sent more than its answer can be")
        if response.status_code != httpx.codes.OK:
            retry_after = response.headers.get("retry-after")
            raise failure(self._protocol, response.status_code, bytes(answer), retry_after=retry_after)
        return read_object(bytes(answer))


@contextmanager
def _translated() -> Iterator[None]:
    """The library's errors become ours; none is kept as a cause: it holds the request, with its texts and the key."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout):
        raise Hiccup("there is no connection to the embedding server") from None
    except (httpx.TimeoutException, TimeoutError):
        raise EncoderUnavailable("the embedding server did not answer in time") from None
    except (httpx.HTTPError, httpx.StreamError) as error:
        raise Hiccup(f"the embedding server broke off: {type(error).__name__}") from None


@asynccontextmanager
async def open_client(
    base_url: str, protocol: EmbeddingProtocol, *, api_key: str | None, connect_timeout_s: float
) -> AsyncIterator[EmbeddingClient]:
    """The pool. It follows no redirect and no proxy of the environment: texts and key go to `base_url` or nowhere.

    Raises: ConfigurationError: not the address of an HTTP server, or a key that no header can hold.
    """
    headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
    if api_key:
        if not (api_key.isascii() and api_key.isprintable()):
            raise ConfigurationError(f"{KEY} has characters that a header cannot hold; a line break at its end?")
        headers["Authorization"] = f"Bearer {api_key}"
    async with httpx.AsyncClient(
        base_url=_address(base_url, protocol),
        trust_env=False,
        follow_redirects=False,
        headers=headers,
        timeout=httpx.Timeout(None, connect=connect_timeout_s),  # all else has a moment of its own
        limits=httpx.Limits(max_connections=None),  # the encoder bounds its requests
    ) as http:
        yield EmbeddingClient(http, protocol)


def _address(base_url: str, protocol: EmbeddingProtocol) -> httpx.URL:
    where = "the embedding server's address (MODEL_GATEWAY_URL, for Ollama also OLLAMA_BASE_URL)"
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL:
        raise ConfigurationError(f"{where} is none") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigurationError(f"{where} must begin with http:// or https:// and name a host")
    if url.userinfo or url.query or url.fragment:
        # The library's own log lines would hold them.
        raise ConfigurationError(f"{where} takes no password and nothing after a ? or #; a key goes into {KEY}")
    return url if url.path.strip("/") else url.copy_with(path=protocol.root)
