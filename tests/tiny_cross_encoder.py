"""Cross-encoders for tests: a real BERT of a few thousand weights. They prove the way, not wisdom."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TEXT = "refunds are paid within fourteen days owls hoot invoices sent leave on monday at night word null . , [ ]"


def save_cross_encoder(folder: Path, *, labels: Sequence[str], liked: str = "", openvino: bool = False) -> None:
    """A folder that sentence-transformers loads as a cross-encoder with these outputs; the same weights each time.

    Args:
        liked: the larger a text's share of this word of `TEXT`, the higher the first output; "": weights are random.
        openvino: put the graph for OpenVINO there too, and leave out PyTorch's weights.
    """
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *TEXT.split()]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    BertTokenizer(str(folder / "vocab.txt"), model_max_length=64).save_pretrained(folder)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        config = BertConfig(
            vocab_size=len(vocabulary),
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=64,
            initializer_range=1.0,
            num_labels=len(labels),
            id2label=dict(enumerate(labels)),
            label2id={label: number for number, label in enumerate(labels)},
            # As well-known rerankers have it: by themselves their scores have no bounds.
            sentence_transformers={"activation_fn": "torch.nn.modules.linear.Identity"},
        )
        model = BertForSequenceClassification(config).eval()
    if liked:
        _like(model, vocabulary.index(liked))
    if openvino:
        config.save_pretrained(folder)
        _save_graph(model, folder / "openvino" / "openvino_model.xml")
    else:
        model.save_pretrained(folder)


def _like(model: Any, word: int) -> None:
    """Every token counts alike for the first one, whose first axis is then the word's share."""
    import torch

    with torch.no_grad():
        for name, weights in model.named_parameters():
            if not name.endswith("LayerNorm.weight"):
                weights.zero_()
        words = model.bert.embeddings.word_embeddings.weight
        words[:, 2], words[:, 3] = 1.0, -1.0
        words[word] = 0.0
        words[word, 0], words[word, 1] = 1.0, -1.0
        for layer in model.bert.encoder.layer:
            torch.nn.init.eye_(layer.attention.self.value.weight)
            torch.nn.init.eye_(layer.attention.output.dense.weight)
        torch.nn.init.eye_(model.bert.pooler.dense.weight)
        model.classifier.weight[0, 0] = 4.0


def _save_graph(model: Any, file: Path) -> None:
    import openvino
    import torch

    example = {
        name: torch.ones((1, 4), dtype=torch.int64) for name in ("input_ids", "attention_mask", "token_type_ids")
    }
    file.parent.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # OpenVINO traces with what PyTorch calls deprecated
        graph = openvino.convert_model(model, example_input=example)
    openvino.save_model(graph, file, compress_to_fp16=False)
