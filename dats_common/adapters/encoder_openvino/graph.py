"""all-MiniLM-L6-v2 in OpenVINO's operations: token ids of one text in, its vector out.

Written out, because the runtime is at its best without the masks, branches and padding that an exported file carries:
every text runs alone (see `encoder`), so nothing is masked.
Source: Devlin et al., BERT, arXiv:1810.04805; the model card: mean pooling, then L2 normalisation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

LAYERS, HEADS, HEAD_SIZE = 6, 12, 32
_EPSILON = 1e-12  # of layer normalisation. Source: the model's config.json


def build_minilm(weights: Mapping[str, npt.NDArray[np.float32]]) -> Any:
    """An `openvino.Model` from ids, int64 of shape (1, tokens), to the text's unit vector, float32 of shape (1, 384).

    Args:
        weights: by their names in the original model; matrices are (outputs, inputs).
    """
    import numpy as np
    from openvino import Model
    from openvino import opset13 as op

    def array(name: str) -> Any:
        return op.constant(np.ascontiguousarray(weights[name]))

    def integers(*values: int) -> Any:
        return op.constant(np.array(values, np.int64))

    def linear(x: Any, name: str) -> Any:
        return op.add(op.matmul(x, array(f"{name}.weight"), False, True), array(f"{name}.bias"))

    def normalised(x: Any, name: str) -> Any:
        centred = op.mvn(x, integers(-1), True, _EPSILON, "inside_sqrt")
        return op.add(op.multiply(centred, array(f"{name}.weight")), array(f"{name}.bias"))

    def heads(x: Any) -> Any:
        return op.transpose(op.reshape(x, integers(1, -1, HEADS, HEAD_SIZE), False), integers(0, 2, 1, 3))

    def attended(x: Any, name: str) -> Any:
        query, key, value = (heads(linear(x, f"{name}.self.{part}")) for part in ("query", "key", "value"))
        scores = op.multiply(op.matmul(query, key, False, True), op.constant(np.float32(HEAD_SIZE**-0.5)))
        mixed = op.transpose(op.matmul(op.softmax(scores, -1), value, False, False), integers(0, 2, 1, 3))
        merged = op.reshape(mixed, integers(1, -1, HEADS * HEAD_SIZE), False)
        return normalised(op.add(x, linear(merged, f"{name}.output.dense")), f"{name}.output.LayerNorm")

    def layer(x: Any, name: str) -> Any:
        x = attended(x, f"{name}.attention")
        inner = op.gelu(linear(x, f"{name}.intermediate.dense"), "erf")
        return normalised(op.add(x, linear(inner, f"{name}.output.dense")), f"{name}.output.LayerNorm")

    ids = op.parameter([1, -1], np.int64, name="input_ids")
    x = normalised(_embedded(op, ids, array), "embeddings.LayerNorm")
    for number in range(LAYERS):
        x = layer(x, f"encoder.layer.{number}")
    mean = op.reduce_mean(x, integers(1))
    return Model([op.normalize_l2(mean, integers(1), _EPSILON, "max")], [ids], "all-MiniLM-L6-v2")


def _embedded(op: Any, ids: Any, array: Callable[[str], Any]) -> Any:
    """Words, their positions, and the one segment there is."""
    import numpy as np

    zero, one = (op.constant(np.int64(number)) for number in (0, 1))
    length = op.gather(op.shape_of(ids), one, zero)
    places = op.range(zero, length, one, output_type="i64")
    words = op.gather(array("embeddings.word_embeddings.weight"), ids, zero)
    positions = op.gather(array("embeddings.position_embeddings.weight"), places, zero)
    segment = op.gather(array("embeddings.token_type_embeddings.weight"), zero, zero)
    return op.add(op.add(words, positions), segment)
