"""Any cross-encoder that sentence-transformers can load, on the CPU: a reranker, or a model of entailment.

What it gives is blended with shared words (`domain.grounding.SIMILARITY_WEIGHT`), so a reranker's relevance, which is
not yet support, sways but does not decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from dats_common.domain.grounding import Pair
from dats_common.errors import ConfigurationError, Unavailable
from dats_common.records import Scored

MOST_INPUTS = 64
"""Of a sentence with one text each: twelve sentences that cite five sources each, about two seconds on two cores."""

TIMEOUT_S = 5.0

_BATCH_SIZE = 8
"""So few run together that another answer's sentences wait for a fraction of a second."""

_ENTAILMENT = "entailment"


class CrossEncoderScorer:
    """Implements `ports.SupportScorer`; made by `open_cross_encoder`. Of several sources the best one counts."""

    name = "cross_encoder"

    def __init__(
        self,
        encoder: Any,
        *,
        executor: ThreadPoolExecutor,
        most_inputs: int = MOST_INPUTS,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Wrap a loaded model.

        Args:
            encoder: a `sentence_transformers.CrossEncoder`.
            executor: of one thread, in which the model runs; this object closes it.
            most_inputs: of one call, a sentence with each of its texts being one.
            timeout_s: of one call, its wait for other calls included.

        Raises: ConfigurationError: its outputs are no measure of support.
        """
        self._encoder = encoder
        self._entailment = _entailment(encoder.config.id2label)
        self._executor = executor
        self._most_inputs = most_inputs
        self._timeout_s = timeout_s
        self._closed = False

    async def score(self, pairs: Sequence[Pair]) -> Scored:
        """See `ports.SupportScorer`. A text beyond the model's window counts up to it."""
        inputs = [(position, source) for position, pair in enumerate(pairs) for source in pair.sources]
        trouble = ""
        if len(inputs) > self._most_inputs:
            trouble = f"{len(inputs)} texts to compare, more than the {self._most_inputs} that are at once"
            inputs = inputs[: self._most_inputs]
        found: list[list[float]] = [[] for _ in pairs]
        by_length = sorted(inputs, key=lambda each: len(each[1]))
        try:
            async with asyncio.timeout(self._timeout_s):
                # One batch of a call is in the thread's queue at a time, so that calls take turns.
                for first in range(0, len(by_length), _BATCH_SIZE):
                    batch = by_length[first : first + _BATCH_SIZE]
                    texts = [self._input(pairs[position].sentence, source) for position, source in batch]
                    scores = await asyncio.get_running_loop().run_in_executor(self._executor, self._scores, texts)
                    for (position, _), score in zip(batch, scores, strict=True):
                        found[position].append(score)
        except TimeoutError:
            trouble = f"the cross-encoder was not done within {self._timeout_s} s"
        except Exception as error:  # torch's and the tokenizer's have no common base; an answer must not end by them
            trouble = f"the cross-encoder failed: {type(error).__name__}"
        best = [_best(scores, of=len(pair.sources)) for pair, scores in zip(pairs, found, strict=True)]
        if not trouble and None in best:
            trouble = "the cross-encoder gave no number, or there was no text"
        return Scored(tuple(best), trouble)

    async def ping(self) -> None:
        """See `ports.SupportScorer`."""
        if self._closed:
            raise Unavailable("the cross-encoder is closed")

    async def close(self) -> None:
        """Wait for the batch that runs now and end the thread."""
        self._closed = True
        await asyncio.to_thread(self._executor.shutdown, wait=True, cancel_futures=True)

    def _input(self, sentence: str, source: str) -> tuple[str, str]:
        """Rerankers take a query and a passage, models of entailment a premise and what follows from it."""
        said, text = _encodable(sentence), _encodable(source)
        return (said, text) if self._entailment is None else (text, said)

    def _scores(self, texts: list[tuple[str, str]]) -> list[float]:
        """In the thread. A model's own activation is left out: some carry none, and then scores have no bounds."""
        import torch

        column = self._entailment
        outputs = self._encoder.predict(
            texts,
            batch_size=len(texts),
            show_progress_bar=False,
            activation_fn=torch.nn.Sigmoid() if column is None else torch.nn.Softmax(dim=-1),
            convert_to_numpy=True,
        )
        return [float(score) for score in (outputs if column is None else outputs[:, column])]


def _best(scores: Sequence[float], *, of: int) -> float | None:
    """None: not every text was compared, or a score is no number."""
    is_whole = len(scores) == of > 0 and all(0 <= score <= 1 for score in scores)
    return max(scores) if is_whole else None


def _entailment(labels: Mapping[int, str]) -> int | None:
    """Which of a model's outputs it is; None: there is only one."""
    if len(labels) == 1:
        return None
    for column, label in labels.items():
        if label.casefold() == _ENTAILMENT:
            return column
    raise ConfigurationError(f"none of the cross-encoder's outputs {sorted(labels.values())} is called {_ENTAILMENT}")


def _encodable(text: str) -> str:
    """Lone surrogates replaced: the tokenizer takes UTF-8 only."""
    return text if text.isascii() else text.encode(errors="replace").decode()


@asynccontextmanager
async def open_cross_encoder(
    model: str, *, most_inputs: int = MOST_INPUTS, timeout_s: float = TIMEOUT_S
) -> AsyncIterator[CrossEncoderScorer]:
    """Load a model (seconds) and own its thread.

    Args:
        model: a folder, or a hub's name.

    Raises: ConfigurationError: the library or the model is not there, or it is no cross-encoder.
    """
    # One thread: a model runs one batch at a time, and torch uses all cores for it.
    executor = ThreadPoolExecutor(1, thread_name_prefix="cross-encoder")
    try:
        encoder = await asyncio.get_running_loop().run_in_executor(executor, _load, model)
        scorer = CrossEncoderScorer(encoder, executor=executor, most_inputs=most_inputs, timeout_s=timeout_s)
        try:
            yield scorer
        finally:
            await scorer.close()
    finally:
        executor.shutdown(wait=False)  # a load that nobody waits for any more ends by itself


def _load(model: str) -> Any:
    try:
        from sentence_transformers import CrossEncoder
    except ImportError as error:
        raise ConfigurationError("sentence-transformers is not installed: pip install 'dats-rag[gpu]'") from error
    try:
        return CrossEncoder(model, device="cpu", trust_remote_code=False)
    except Exception as error:  # hub, configuration, tokenizer and weights have errors of their own, and no common base
        raise ConfigurationError(f"the cross-encoder {model!r} cannot be loaded: {error}") from error
