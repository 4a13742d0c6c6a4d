"""A cross-encoder on OpenVINO: a graph that its folder carries, in OpenVINO's or ONNX's format. No PyTorch.

Every pair runs alone, without padding, and the cores are filled by running one pair on each: a score is the same bits
whatever else is asked. Where the CPU has instructions for it, OpenVINO computes in bfloat16.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dats_common.adapters.cross_encoder.activation import probabilities
from dats_common.errors import ConfigurationError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_GRAPHS = ("openvino/openvino_model.xml", "openvino_model.xml", "onnx/model.onnx", "model.onnx")
"""Source: sentence-transformers, "Speeding up Inference": where its exports lie."""

_MAX_TOKENS = 512  # of BERT, where the model's files do not tell
_PAIRS_A_CORE = 2  # while one is computed the next waits in OpenVINO


def find_graph(folder: Path) -> Path | None:
    """The graph in a model's folder; None: it carries none that can be used without its library."""
    if not (folder / "tokenizer.json").is_file():
        return None
    return next((folder / name for name in _GRAPHS if (folder / name).is_file()), None)


class OpenVinoModel:
    """A `PairModel` around compiled requests."""

    def __init__(
        self, requests: Sequence[Any], tokenizer: Any, *, inputs: Sequence[str], labels: Sequence[str]
    ) -> None:
        """Wrap a loaded model.

        Args:
            requests: an `openvino.InferRequest` for each pair that may run at the same time.
            tokenizer: a tokenizer of the `tokenizers` library that truncates to the window and does not pad.
            inputs: names of the graph's inputs.
        """
        self.labels = tuple(labels)
        self._requests = requests
        self._tokenizer = tokenizer
        self._inputs = inputs

    def probabilities(self, pairs: Sequence[tuple[str, str]]) -> npt.NDArray[np.float64]:
        """See `PairModel`."""
        import numpy as np

        logits = np.empty((len(pairs), len(self.labels)), np.float32)
        running: list[int] = []
        try:
            for position, pair in enumerate(pairs):
                if len(running) == len(self._requests):
                    self._take(running.pop(0), logits)
                self._request(position).start_async(self._tensors(pair), share_inputs=False)
                running.append(position)
            while running:
                self._take(running.pop(0), logits)
        finally:
            for position in running:  # something failed: no request may be running when the next batch comes
                self._request(position).wait()
        return probabilities(logits)

    def _request(self, position: int) -> Any:
        return self._requests[position % len(self._requests)]

    def _take(self, position: int, logits: npt.NDArray[np.float32]) -> None:
        request = self._request(position)
        request.wait()
        logits[position] = request.get_output_tensor(0).data[0]

    def _tensors(self, pair: tuple[str, str]) -> dict[str, npt.NDArray[np.int64]]:
        import numpy as np

        read = self._tokenizer.encode(*pair)
        columns = {"input_ids": read.ids, "attention_mask": read.attention_mask, "token_type_ids": read.type_ids}
        return {name: np.array([columns[name]], np.int64) for name in self._inputs}


def load_openvino(folder: Path, graph: Path, *, threads: int) -> OpenVinoModel:
    """Raises: ConfigurationError: OpenVINO is not installed; and what the libraries raise for files of no use."""
    try:
        import openvino
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ConfigurationError("OpenVINO is not installed: pip install 'dats-rag[query]'") from error
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(_window(folder))
    model = openvino.Core().read_model(str(graph))
    without_rounded_activations(model)
    threads = threads or len(os.sched_getaffinity(0))
    compiled = openvino.Core().compile_model(
        model,
        "CPU",
        # Writer and replicas share a laptop's cores; pinned, all of them would sit on the first ones.
        {"NUM_STREAMS": threads, "INFERENCE_NUM_THREADS": threads, "ENABLE_CPU_PINNING": False},
    )
    loaded = OpenVinoModel(
        [compiled.create_infer_request() for _ in range(_PAIRS_A_CORE * threads)],
        tokenizer,
        inputs=[each.get_any_name() for each in compiled.inputs],
        labels=_labels(folder, outputs=compiled.output(0).get_partial_shape()[1].get_length()),
    )
    loaded.probabilities([("warm", "up")])  # OpenVINO allocates at a first call
    return loaded


def _window(folder: Path) -> int:
    told = [
        _read(folder, "tokenizer_config.json").get("model_max_length"),
        _read(folder, "config.json").get("max_position_embeddings"),
    ]
    return min([_MAX_TOKENS, *(int(each) for each in told if each)])


def _labels(folder: Path, *, outputs: int) -> list[str]:
    named = _read(folder, "config.json").get("id2label", {})
    return [named.get(str(number), f"LABEL_{number}") for number in range(outputs)]


def _read(folder: Path, name: str) -> dict[str, Any]:
    file = folder / name
    read: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    return read


def without_rounded_activations(model: Any) -> None:
    """Take what int8 exports do to activations out of a graph, in place; stored weights stay as they are.

    Dynamic quantisation rounds every activation to int8 by its own range before each product. OpenVINO has no kernel
    for that and runs it as a dozen operations: without them a pair costs a third, and scores are rounded less.
    """
    import numpy as np
    from openvino import opset13 as op

    found = False
    for product in (node for node in model.get_ordered_ops() if node.get_type_name() == "MatMul"):
        scaled = _rounded_from(product)
        if scaled is None:
            continue
        found = True
        one = op.constant(np.float32(1)).output(0)
        for reader in list(scaled.input(1).get_source_output().get_target_inputs()):
            reader.replace_source_output(one)  # the scale, by which the product is multiplied again
        product.input(0).replace_source_output(scaled.input(0).get_source_output())
        weights = op.convert(product.input(1).get_source_output(), "f32")
        product.input(1).replace_source_output(weights.output(0))
    if found:
        model.validate_nodes_and_infer_types()


_ROUNDING = frozenset({"Subtract", "Convert", "Clamp", "Add", "Round"})


def _rounded_from(product: Any) -> Any:
    """The division by the scale that a product's first operand was rounded after; None: it was not rounded."""
    node = product.input(0).get_source_output().get_node()
    steps = set()
    while node.get_type_name() in _ROUNDING:
        steps.add(node.get_type_name())
        node = node.input(0).get_source_output().get_node()
    return node if node.get_type_name() == "Divide" and {"Round", "Convert"} <= steps else None
