"""llama.cpp's own server with one model, in a child process (`runner`), and its calls.

The child keeps llama.cpp's crashes (a failed assertion ends the process) and its threads away from the service, and its
end gives all of the model's memory back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from dats_common.embedded.ollama.protocol import RUNNER_STOPPED, Message, OllamaError, refusal, template_body
from dats_common.embedded.ollama.runner import LOOPBACK
from dats_common.errors import ConfigurationError

log = logging.getLogger(__name__)

SILENCE_TIMEOUT_S = 300.0
"""Longest silence of the engine, which is silent while it reads a prompt."""
CHILD_STOP_TIMEOUT_S = 5.0


class Llama:
    """A running engine's calls. For one event loop; made by `open_llama`."""

    def __init__(self, process: asyncio.subprocess.Process, client: httpx.AsyncClient) -> None:
        self._process = process
        self._client = client
        self._is_lost = False

    @property
    def base_url(self) -> str:
        """Where llama.cpp's own API is, for whoever has its key."""
        return str(self._client.base_url)

    @property
    def runs(self) -> bool:
        """False once the child has ended or did not answer a call."""
        return self._process.returncode is None and not self._is_lost

    async def count(self, messages: Sequence[Message]) -> int:
        """Tokens of the prompt that the model's chat template makes of these. Raises: OllamaError."""
        counted = await self.call("/v1/chat/completions/input_tokens", template_body(messages))
        return int(counted["input_tokens"])

    async def tokenize(self, text: str) -> list[int]:
        """A text's tokens, with those that the model wants around every text. Raises: OllamaError."""
        answer = await self.call("/tokenize", {"content": text, "add_special": True})
        tokens: list[int] = answer["tokens"]
        return tokens

    async def embed(self, texts: Sequence[Sequence[int]]) -> list[list[float]]:
        """The mean of each text's last hidden states, from its tokens. Raises: OllamaError."""
        answer = await self.call("/v1/embeddings", {"input": texts})
        return [one["embedding"] for one in sorted(answer["data"], key=lambda one: int(one["index"]))]

    async def complete(self, body: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any]]:
        """The events of `/v1/chat/completions`; closing it early stops the model. Raises: OllamaError."""
        try:
            async with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code >= 400:
                    raise refusal(response.status_code, _object(await response.aread()))
                async for line in response.aiter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        yield _object(line.removeprefix("data: ").encode())
        except httpx.HTTPError as error:
            raise self._stopped() from error

    async def call(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """One call of llama.cpp's own API. Raises: OllamaError."""
        try:
            response = await self._client.post(path, json=body)
        except httpx.HTTPError as error:
            raise self._stopped() from error
        if response.status_code >= 400:
            raise refusal(response.status_code, _object(response.content))
        return _object(response.content)

    def _stopped(self) -> OllamaError:
        self._is_lost = True  # Whether it died or hangs: the next request is for a new one.
        return OllamaError(500, RUNNER_STOPPED)


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError as error:
        raise OllamaError(500, RUNNER_STOPPED) from error
    if not isinstance(value, dict):
        raise OllamaError(500, RUNNER_STOPPED)
    return value


@contextlib.asynccontextmanager
async def open_llama(
    path: Path, *, window_tokens: int, threads: int, start_timeout_s: float = 300.0
) -> AsyncIterator[Llama]:
    """Load a model in a child process; that is ended at the end, and by itself if this process dies.

    Raises: ConfigurationError: llama.cpp cannot load the file, or not in time.
    """
    key = secrets.token_urlsafe(32)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "dats_common.embedded.ollama.runner",
        str(path),
        f"--window={window_tokens}",
        f"--threads={threads}",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        try:
            async with asyncio.timeout(start_timeout_s):
                port = await _first_word(process, path, key=key)
        except TimeoutError as error:
            raise ConfigurationError(f"llama.cpp did not load {path} within {start_timeout_s:g} s") from error
        async with httpx.AsyncClient(
            base_url=f"http://{LOOPBACK}:{port}",
            headers={"Authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(30.0, read=SILENCE_TIMEOUT_S),
            # Its server closes connections that it says it keeps.
            limits=httpx.Limits(max_keepalive_connections=0),
            trust_env=False,
        ) as client:
            yield Llama(process, client)
    finally:
        await _stop(process)


async def _first_word(process: asyncio.subprocess.Process, path: Path, *, key: str) -> int:
    assert process.stdin is not None  # noqa: S101
    assert process.stdout is not None  # noqa: S101
    process.stdin.write(f"{key}\n".encode())
    line = await process.stdout.readline()
    try:
        said = json.loads(line)
    except ValueError as error:
        raise ConfigurationError(f"llama.cpp ended while it loaded {path}; its log says why") from error
    if "error" in said:
        raise ConfigurationError(said["error"])
    return int(said["port"])


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
    try:
        await asyncio.wait_for(process.communicate(), CHILD_STOP_TIMEOUT_S)
    except TimeoutError:
        log.warning("engine_killed", extra={"pid": process.pid})
        process.kill()
        await process.wait()
