"""The models that are served, and whose turn it is with each."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dats_common.embedded.ollama.engine import Llama, open_llama
from dats_common.embedded.ollama.gguf import Header, NotGguf, read_header
from dats_common.embedded.ollama.protocol import BUSY, OllamaError, canonical, unknown_model
from dats_common.errors import ConfigurationError

TURN_TIMEOUT_S = 600.0
"""Longest wait for the answers before this one."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What every model gets.

    Attributes:
        window_tokens: the context window, prompt and answer together; less where a model was trained for less.
        threads: that compute one token.
        pending: requests that may wait for a model while it answers another one.
    """

    window_tokens: int
    threads: int
    pending: int


class Model:
    """One file: loaded for its first request, and kept until it is told to unload or the facade ends.

    It answers one request at a time. One whose engine has died is loaded anew for the next request.
    """

    def __init__(self, name: str, path: Path, header: Header, limits: Limits) -> None:
        self.name = name
        self.path = path
        self.header = header
        self.window_tokens = min(limits.window_tokens, header.trained_window_tokens or limits.window_tokens)
        self._threads = limits.threads
        self._most = limits.pending + 1
        self._taken = 0
        self._turn = asyncio.Semaphore(1)
        self._engine: Llama | None = None
        self._opened = contextlib.AsyncExitStack()

    @property
    def is_loaded(self) -> bool:
        """Whether its engine runs."""
        return self._engine is not None and self._engine.runs

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Nobody else's request is answered meanwhile.

        Raises: OllamaError: 503: too many wait already, or the answers before took too long.
        """
        if self._taken >= self._most:
            raise OllamaError(503, BUSY)
        self._taken += 1
        try:
            try:
                async with asyncio.timeout(TURN_TIMEOUT_S):
                    await self._turn.acquire()
            except TimeoutError:
                raise OllamaError(503, BUSY) from None
            try:
                yield
            finally:
                self._turn.release()
        finally:
            self._taken -= 1

    async def load(self) -> Llama:
        """Its engine; for whoever has the turn. Raises: OllamaError: 500: llama.cpp cannot load the file."""
        if self._engine is None or not self._engine.runs:
            await self.unload()
            try:
                self._engine = await self._opened.enter_async_context(
                    open_llama(self.path, window_tokens=self.window_tokens, threads=self._threads)
                )
            except ConfigurationError as error:
                raise OllamaError(500, str(error)) from error
        return self._engine

    async def unload(self) -> None:
        """End its engine, if it has one; for whoever has the turn."""
        self._engine = None
        await self._opened.aclose()


class Models:
    """Every model that is served, by name; made by `open_models`."""

    def __init__(self, models: Mapping[str, Model]) -> None:
        self._models = models

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models.values())

    def named(self, name: str) -> Model:
        """Whatever the case, and with `:latest` or without. Raises: OllamaError: 404."""
        try:
            return self._models[canonical(name)]
        except KeyError:
            raise unknown_model(name) from None


@contextlib.asynccontextmanager
async def open_models(files: Mapping[str, Path], limits: Limits) -> AsyncIterator[Models]:
    """Look at the files; loads none. What is loaded later is unloaded at the end.

    Raises: ConfigurationError: llama.cpp is not installed, no file or one twice is named, or one is no GGUF file.
    """
    if importlib.util.find_spec("xllamacpp") is None:
        raise ConfigurationError("llama.cpp is not installed: pip install 'dats-rag[facade]'")
    if not files:
        raise ConfigurationError("no model is named: name at least one GGUF file")
    models: dict[str, Model] = {}
    for name, path in files.items():
        if canonical(name) in models:
            raise ConfigurationError(f"the model {name!r} is named twice: names differ in more than case or `:latest`")
        models[canonical(name)] = Model(canonical(name), path, await asyncio.to_thread(_header, name, path), limits)
    try:
        yield Models(models)
    finally:
        for model in models.values():
            await model.unload()


def _header(name: str, path: Path) -> Header:
    try:
        return read_header(path)
    except OSError as error:
        raise ConfigurationError(
            f"cannot read the model {name!r} from {path}: {error.strerror}. Name a GGUF file that this user can read."
        ) from error
    except NotGguf as error:
        raise ConfigurationError(
            f"the model {name!r} is no GGUF file: {path}: {error}. Name a complete one, as downloaded."
        ) from error


def default_threads() -> int:
    """Half of the cores that this process may use.

    A token is done when the slowest thread is: on two cores that others wanted too, two threads took 3 s a token and
    one took 18 ms (measured, 135 million parameters).
    """
    return max(1, len(os.sched_getaffinity(0)) // 2)
