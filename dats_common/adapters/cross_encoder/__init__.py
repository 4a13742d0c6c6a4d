"""Cross-encoders: models that read two texts together, on the CPU.

`model` loads one and runs it batch by batch, on OpenVINO (`openvino_model`) where its folder has a graph, else on
PyTorch (`torch_model`). `reranker` orders passages with it (`ports.Reranker`), `scorer` looks at an answer's sentences
(`ports.SupportScorer`).
"""

from dats_common.adapters.cross_encoder.reranker import open_reranker
from dats_common.adapters.cross_encoder.scorer import TIMEOUT_S, CrossEncoderScorer, open_cross_encoder

__all__ = ["TIMEOUT_S", "CrossEncoderScorer", "open_cross_encoder", "open_reranker"]
