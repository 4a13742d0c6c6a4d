"""A cross-encoder on PyTorch: whatever sentence-transformers can load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dats_common.adapters.cross_encoder.activation import probabilities
from dats_common.errors import ConfigurationError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class TorchModel:
    """A `PairModel` around a `sentence_transformers.CrossEncoder`."""

    def __init__(self, encoder: Any) -> None:
        self._encoder = encoder
        self.labels = tuple(label for _, label in sorted(encoder.config.id2label.items()))

    def probabilities(self, pairs: Sequence[tuple[str, str]]) -> npt.NDArray[np.float64]:
        """See `PairModel`. A model's own activation is left out: some carry none, and then scores have no bounds."""
        import torch

        logits = self._encoder.predict(
            list(pairs),
            batch_size=len(pairs),
            show_progress_bar=False,
            activation_fn=torch.nn.Identity(),
            convert_to_numpy=True,
        )
        return probabilities(logits.reshape(len(pairs), len(self.labels)))


def load_torch(model: str, *, local_files_only: bool) -> TorchModel:
    """Raises: ConfigurationError: the library is not there; and what the libraries raise for a model that is not."""
    try:
        from sentence_transformers import CrossEncoder
    except ImportError as error:
        raise ConfigurationError(
            "a cross-encoder without a graph for OpenVINO needs sentence-transformers: pip install 'dats-rag[gpu]'"
        ) from error
    return TorchModel(CrossEncoder(model, device="cpu", trust_remote_code=False, local_files_only=local_files_only))
