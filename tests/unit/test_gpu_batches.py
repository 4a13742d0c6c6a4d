"""How many texts run together on a GPU, and what is said where it is missing."""

from __future__ import annotations

import re

import pytest

from dats_common.adapters.encoder_st.batches import MOST, BatchSize, Shape, largest_batch
from dats_common.adapters.encoder_st.devices import missing_gpu

MINI_LM = Shape(window=256, hidden=384, intermediate=1536, heads=12)
BGE_LARGE = Shape(window=512, hidden=1024, intermediate=4096, heads=16)
GIB = 1024**3


@pytest.mark.parametrize(
    ("free_gib", "shape", "texts"),
    [
        (78, MINI_LM, MOST),
        (8, MINI_LM, 256),
        (1, MINI_LM, 32),
        (0.001, MINI_LM, 1),
        (0, MINI_LM, 1),
        (78, BGE_LARGE, 512),
        (8, BGE_LARGE, 64),
    ],
)
def test_a_batch_is_as_large_as_half_of_the_free_memory_allows(free_gib: float, shape: Shape, texts: int) -> None:
    assert largest_batch(round(free_gib * GIB), shape) == texts
    assert texts in (1, MOST) or texts * shape.text_bytes <= free_gib * GIB / 2 < 2 * texts * shape.text_bytes


def test_half_the_bytes_a_number_take_half_the_memory() -> None:
    halved = Shape(window=256, hidden=384, intermediate=1536, heads=12, bytes_per_number=2)
    assert halved.text_bytes * 2 == MINI_LM.text_bytes


def test_a_batch_that_was_too_large_is_halved_and_grows_again_after_a_while() -> None:
    size = BatchSize(64)
    size.ran_out(64)
    size.ran_out(32)
    assert size.now == 16
    for _ in range(99):
        size.fitted(16)
    assert size.now == 16
    size.fitted(16)
    assert size.now == 32
    for _ in range(500):
        size.fitted(size.now)
    assert size.now == 64


def test_batches_that_are_not_full_prove_nothing() -> None:
    size = BatchSize(64)
    size.ran_out(64)
    for _ in range(500):
        size.fitted(31)
    assert size.now == 32


def test_a_failure_of_a_smaller_batch_than_the_largest_counts_as_its_own() -> None:
    size = BatchSize(64)
    size.ran_out(10)
    assert size.now == 5
    size.ran_out(1)
    assert size.now == 1


@pytest.mark.parametrize(
    ("device", "built_for", "seen", "visible", "said"),
    [
        ("cuda", "12.8", 1, None, None),
        ("cuda:1", "12.8", 2, "2,3", None),
        ("cuda:0", None, 0, None, "a build for the CPU"),
        ("cuda:0", "12.8", 0, None, r"no GPU is seen; look at the driver \(nvidia-smi\)"),
        ("cuda", "12.8", 0, "", "no GPU is seen with CUDA_VISIBLE_DEVICES=''"),
        ("cuda:1", "12.8", 1, "1", "this process sees cuda:0 with CUDA_VISIBLE_DEVICES='1', counted from 0"),
        ("cuda:4", "12.8", 4, None, "this process sees cuda:0 to cuda:3, counted"),
    ],
)
def test_a_gpu_that_is_missing_is_explained(
    device: str, built_for: str | None, seen: int, visible: str | None, said: str | None
) -> None:
    found = missing_gpu(device, built_for=built_for, seen=seen, visible=visible)
    assert found is None if said is None else re.search(said, found or "")
