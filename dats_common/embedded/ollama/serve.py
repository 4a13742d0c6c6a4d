"""The facade on a port."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dats_common.errors import ConfigurationError

LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 11434  # Ollama's own.
DEFAULT_WINDOW_TOKENS = 4096  # Ollama's own without a large GPU.
DEFAULT_PENDING = 512
"""Source: Ollama, OLLAMA_MAX_QUEUE."""
STOP_GRACE_S = 5
"""How long answers in hand may go on once a stop is asked for."""
_BACKLOG = 512


@dataclass(frozen=True, slots=True)
class Facade:
    """A running facade, and where an Ollama client finds it."""

    base_url: str


@contextlib.asynccontextmanager
async def open_facade(
    models: Mapping[str, Path],
    *,
    host: str = LOOPBACK,
    port: int = 0,
    window_tokens: int = DEFAULT_WINDOW_TOKENS,
    threads: int | None = None,
    pending: int = DEFAULT_PENDING,
) -> AsyncIterator[Facade]:
    """Serve these GGUF files on this loop, each model in a child process of its own from its first request on.

    Args:
        models: files by the names that clients ask for.
        port: 0: any free one.
        window_tokens: the context window, prompt and answer together; less where a model was trained for less. A
            request's `num_ctx` can only make it smaller.
        threads: that compute one token; by default half of the cores.
        pending: requests that may wait for a model while it answers another one; beyond it they get a 503.

    Raises: ConfigurationError: llama.cpp is not installed, a file is no GGUF file, or the port is taken; says what to
        do.
    """
    import uvicorn

    from dats_common.embedded.ollama.app import build_app
    from dats_common.embedded.ollama.models import Limits, default_threads, open_models

    limits = Limits(window_tokens, threads or default_threads(), pending)
    with _listening(host, port) as listener:
        async with open_models(models, limits) as served:
            config = uvicorn.Config(
                build_app(served),
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=STOP_GRACE_S,
            )
            server = uvicorn.Server(config)
            # Signals are for whoever owns the process.
            server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
            serving = asyncio.create_task(server.serve(sockets=[listener]), name="ollama-facade")
            try:
                yield Facade(f"http://{_in_url(host)}:{listener.getsockname()[1]}")
            finally:
                server.should_exit = True
                await serving


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """From here on clients may connect: they wait until they are served. Raises: ConfigurationError."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(_BACKLOG)
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on {host}:{port}: {error.strerror}. "
                "Stop the process that has it, maybe a real Ollama, or choose another port."
            ) from error
        yield listener


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
