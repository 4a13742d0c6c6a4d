"""How many texts run together on a GPU: as many as its memory holds, fewer when that was too many."""

from __future__ import annotations

from dataclasses import dataclass

MOST = 1024
"""More do not make a GPU faster, and a query would wait behind them."""
_SHARE = 0.5
"""Of the memory that is free: the other half is for the allocator's gaps, and for who else comes to the GPU."""
_CALM = 100
"""Batches without a failure before a larger one is tried again."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a transformer needs memory for. Units: tokens and numbers.

    Attributes:
        window: tokens of the longest text.
        hidden: numbers of a token between layers.
        intermediate: numbers of a token within a layer.
        heads: of the attention, each with a number for every pair of tokens.
        bytes_per_number: 4 in fp32, 2 in fp16 and bf16.
    """

    window: int
    hidden: int
    intermediate: int
    heads: int
    bytes_per_number: int = 4

    @property
    def text_bytes(self) -> int:
        """The most that one text takes while it runs: one layer, since nothing is kept for gradients.

        Scores and their softmax in full, which fused attention avoids; of each token what comes in, query, key, value,
        what comes out and the sum, and twice the layer's inside: before and after the activation.
        """
        pairs = 2 * self.heads * self.window**2
        tokens = self.window * (6 * self.hidden + 2 * self.intermediate)
        return self.bytes_per_number * (pairs + tokens)


def largest_batch(free_bytes: int, shape: Shape) -> int:
    """A power of two of texts that should fit; 1 at least, `MOST` at most."""
    fitting = int(free_bytes * _SHARE) // shape.text_bytes
    return min(MOST, 1 << (fitting.bit_length() - 1)) if fitting else 1


class BatchSize:
    """Halved where memory ran out, doubled again after a while without that, never beyond where it began."""

    def __init__(self, most: int) -> None:
        self.now = most
        self._most = most
        self._fitted = 0

    def ran_out(self, texts: int) -> None:
        """So many were too many."""
        self.now = min(self.now, max(1, texts // 2))
        self._fitted = 0

    def fitted(self, texts: int) -> None:
        """So many were not."""
        if self.now == self._most or texts < self.now:
            return
        self._fitted += 1
        if self._fitted == _CALM:
            self.now, self._fitted = min(2 * self.now, self._most), 0
