"""Passages ordered by a cross-encoder with a single output: the relevance of a passage to a query."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from dats_common.adapters.cross_encoder.model import BATCH_SIZE, CrossEncoder, open_model
from dats_common.errors import ConfigurationError, RerankerUnavailable, Unavailable


class CrossEncoderReranker:
    """Implements `ports.Reranker`; made by `open_reranker`."""

    def __init__(self, encoder: CrossEncoder, *, model: str) -> None:
        """Raises: ConfigurationError: several outputs, which are classes and no relevance."""
        if len(encoder.labels) != 1:
            raise ConfigurationError(f"{model!r} is no reranker: it has {len(encoder.labels)} outputs and not one")
        self.model = model
        self._encoder = encoder

    async def rerank(self, query: str, passages: Sequence[str]) -> list[float]:
        """See `ports.Reranker`. A passage beyond the model's window counts up to it."""
        relevance = [0.0] * len(passages)
        try:
            async for positions, probabilities in self._encoder.read([(query, passage) for passage in passages]):
                for position, probability in zip(positions, probabilities[:, 0], strict=True):
                    relevance[position] = float(probability)
        except Unavailable as error:
            raise RerankerUnavailable(str(error)) from error
        except Exception as error:  # torch's, OpenVINO's and the tokenizer's have no common base
            raise RerankerUnavailable(f"the reranker failed: {type(error).__name__}") from error
        if not all(map(math.isfinite, relevance)):
            raise RerankerUnavailable("the reranker gave what is no number")
        return relevance

    async def ping(self) -> None:
        """See `ports.Reranker`."""
        try:
            self._encoder.check()
        except Unavailable as error:
            raise RerankerUnavailable(str(error)) from error


@asynccontextmanager
async def open_reranker(
    model: str, *, batch_size: int = BATCH_SIZE, threads: int = 0
) -> AsyncIterator[CrossEncoderReranker]:
    """Load a model that is on this machine; a start never waits for a hub. See `open_model`.

    Raises: ConfigurationError: the library or the model is not there, or it is no reranker.
    """
    async with open_model(model, batch_size=batch_size, threads=threads, may_download=False) as encoder:
        yield CrossEncoderReranker(encoder, model=model)
