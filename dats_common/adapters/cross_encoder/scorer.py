"""An answer's sentences looked at by a cross-encoder: a reranker, or a model of entailment.

What it gives is blended with shared words (`domain.grounding.SIMILARITY_WEIGHT`), so a reranker's relevance, which is
not yet support, sways but does not decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from dats_common.adapters.cross_encoder.model import CrossEncoder, TextPair, open_model
from dats_common.domain.grounding import Pair
from dats_common.errors import ConfigurationError
from dats_common.records import Scored

MOST_INPUTS = 64
"""Of a sentence with one text each: twelve sentences that cite five sources each, about two seconds on two cores."""

TIMEOUT_S = 5.0

_ENTAILMENT = "entailment"


class CrossEncoderScorer:
    """Implements `ports.SupportScorer`; made by `open_cross_encoder`. Of several sources the best one counts."""

    name = "cross_encoder"

    def __init__(self, encoder: CrossEncoder, *, most_inputs: int = MOST_INPUTS, timeout_s: float = TIMEOUT_S) -> None:
        """Wrap a loaded model.

        Args:
            most_inputs: of one call, a sentence with each of its texts being one.
            timeout_s: of one call, its wait for other calls included.

        Raises: ConfigurationError: its outputs are no measure of support.
        """
        self._encoder = encoder
        self._entailment = _entailment(encoder.labels)
        self._most_inputs = most_inputs
        self._timeout_s = timeout_s

    async def score(self, pairs: Sequence[Pair]) -> Scored:
        """See `ports.SupportScorer`. A text beyond the model's window counts up to it."""
        inputs = [(number, source) for number, pair in enumerate(pairs) for source in pair.sources]
        trouble = ""
        if len(inputs) > self._most_inputs:
            trouble = f"{len(inputs)} texts to compare, more than the {self._most_inputs} that are at once"
            inputs = inputs[: self._most_inputs]
        found: list[list[float]] = [[] for _ in pairs]
        texts = [self._input(pairs[number].sentence, source) for number, source in inputs]
        try:
            async with asyncio.timeout(self._timeout_s):
                async for positions, probabilities in self._encoder.read(texts):
                    for position, score in zip(positions, probabilities[:, self._entailment or 0], strict=True):
                        found[inputs[position][0]].append(float(score))
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
        self._encoder.check()

    def _input(self, sentence: str, source: str) -> TextPair:
        """Rerankers take a query and a passage, models of entailment a premise and what follows from it."""
        return (sentence, source) if self._entailment is None else (source, sentence)


def _best(scores: Sequence[float], *, of: int) -> float | None:
    """None: not every text was compared, or a score is no number."""
    is_whole = len(scores) == of > 0 and all(0 <= score <= 1 for score in scores)
    return max(scores) if is_whole else None


def _entailment(labels: Sequence[str]) -> int | None:
    """Which of a model's outputs it is; None: there is only one."""
    if len(labels) == 1:
        return None
    for column, label in enumerate(labels):
        if label.casefold() == _ENTAILMENT:
            return column
    raise ConfigurationError(f"none of the cross-encoder's outputs {sorted(labels)} is called {_ENTAILMENT}")


@asynccontextmanager
async def open_cross_encoder(
    model: str, *, most_inputs: int = MOST_INPUTS, timeout_s: float = TIMEOUT_S
) -> AsyncIterator[CrossEncoderScorer]:
    """Load a model (seconds) and own its thread.

    Args:
        model: a folder, or a hub's name.

    Raises: ConfigurationError: the library or the model is not there, or it is no cross-encoder.
    """
    async with open_model(model, may_download=True) as encoder:
        yield CrossEncoderScorer(encoder, most_inputs=most_inputs, timeout_s=timeout_s)
