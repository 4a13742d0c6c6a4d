"""The GPU that was promised: refused in words where it is missing, and where there is one, used and not run out of.

What needs a GPU is skipped without one, in CI too. `python -m tests.bench gpu` measures.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from fleet import bare_environment

from dats_common.adapters.encoder_openvino import open_openvino_encoder
from dats_common.adapters.encoder_st import open_sentence_transformers_encoder
from dats_common.errors import ConfigurationError
from dats_common.fingerprint import agree, fingerprint
from dats_common.settings.load import load_settings
from services.backends import open_encoder

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here, or a PyTorch without CUDA")


def writer_with(directory: Path, embedding: str, **environment: str) -> subprocess.CompletedProcess[str]:
    configuration = directory / "rag-service.yaml"
    configuration.write_text(f"embedding:\n{embedding}")
    return subprocess.run(
        [sys.executable, "-m", "services.writer"],
        env=bare_environment(DATS_CONFIG=str(configuration), DATS_DATA_DIR=str(directory / "data"), **environment),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_writer_whose_gpu_is_hidden_refuses_to_start(tmp_path: Path) -> None:
    """Whatever this machine has: CUDA_VISIBLE_DEVICES leaves nothing of it."""
    ended = writer_with(tmp_path, "  device: cuda:1\n", CUDA_VISIBLE_DEVICES="")
    assert ended.returncode == 78
    assert "device 'cuda:1' is not there" in ended.stdout + ended.stderr
    assert "set embedding.device to cpu" in ended.stdout + ended.stderr


async def test_a_backend_that_has_no_gpu_does_not_take_the_promise_of_one(tmp_path: Path) -> None:
    configuration = tmp_path / "rag-service.yaml"
    configuration.write_text("embedding:\n  device: cuda:0\n  backend: openvino\n")
    with pytest.raises(ConfigurationError, match=r"embedding\.backend openvino computes on the CPU"):
        async with open_encoder(load_settings(configuration, {}), for_writer=True):
            pass


async def test_a_replica_encodes_on_the_cpu_whatever_the_writer_was_promised(tmp_path: Path) -> None:
    configuration = tmp_path / "rag-service.yaml"
    configuration.write_text("embedding:\n  device: cuda:97\n")
    settings = load_settings(configuration, {})
    async with open_encoder(settings, for_writer=False) as encoder:
        assert "cpu" in encoder.backend  # type: ignore[attr-defined]


@needs_gpu
def test_a_gpu_beyond_the_last_one_is_refused_and_the_others_are_named(tmp_path: Path) -> None:
    ended = writer_with(tmp_path, "  device: cuda:1\n", CUDA_VISIBLE_DEVICES="0")
    assert ended.returncode == 78
    assert "this process sees cuda:0 with CUDA_VISIBLE_DEVICES='0'" in ended.stdout + ended.stderr


@needs_gpu
async def test_vectors_of_the_gpu_are_those_that_replicas_compare_with() -> None:
    texts = [f"The invoice number {number} was approved." for number in range(500)] + ["word " * 3000]
    async with open_sentence_transformers_encoder(device="cuda:0") as gpu, open_openvino_encoder() as cpu:
        assert gpu.backend == "sentence-transformers:cuda:0"
        assert agree(await fingerprint(gpu), await fingerprint(cpu)) == []
        ours, theirs = await gpu.encode(texts, kind="document"), await cpu.encode(texts, kind="document")
    assert (ours * theirs).sum(axis=1).min() > 0.999
    assert np.allclose(np.linalg.norm(ours, axis=1), 1, atol=1e-5)


@needs_gpu
async def test_a_gpu_that_fills_up_meanwhile_loses_no_text() -> None:
    """Somebody else takes all but 64 MiB once the batches' size is known."""
    texts = [f"{'word ' * 300}{number}" for number in range(2000)]
    async with open_sentence_transformers_encoder(device="cuda:0") as gpu:
        whole = await gpu.encode(texts, kind="document")
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info(0)[0]
        taken = torch.empty(max(0, free - 64 * 1024**2), dtype=torch.uint8, device="cuda:0")
        squeezed = await gpu.encode(texts, kind="document")
        del taken
    torch.cuda.empty_cache()
    assert np.allclose(whole, squeezed, atol=1e-3)


@needs_gpu
async def test_a_full_gpu_stops_the_start() -> None:
    torch.cuda.empty_cache()
    taken = torch.empty(torch.cuda.mem_get_info(0)[0] - 2**20 * 8, dtype=torch.uint8, device="cuda:0")
    with pytest.raises(ConfigurationError):
        async with open_sentence_transformers_encoder(device="cuda:0"):
            pass
    del taken
    torch.cuda.empty_cache()
