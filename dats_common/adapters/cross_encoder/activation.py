"""From a model's outputs to probabilities. In float64, or certain pairs would all be 1 and have no order."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def probabilities(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """The sigmoid of a single column, else the softmax of each row; shape as `logits`, (pairs, outputs)."""
    import numpy as np

    exact = np.asarray(logits, dtype=np.float64)
    if exact.shape[1] == 1:
        return np.asarray(0.5 * (1.0 + np.tanh(0.5 * exact)))  # the sigmoid, without an overflow
    powers = np.exp(exact - exact.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))
