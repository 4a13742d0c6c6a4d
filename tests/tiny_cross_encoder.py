"""A cross-encoder for tests: a real BERT of a few thousand random weights. It proves the way, not wisdom."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

TEXT = "refunds are paid within fourteen days owls hoot invoices sent leave on monday at night word null . , [ ]"


def save_cross_encoder(folder: Path, *, labels: Sequence[str]) -> None:
    """A folder that sentence-transformers loads as a cross-encoder with these outputs; the same weights each time."""
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
        BertForSequenceClassification(config).save_pretrained(folder)
