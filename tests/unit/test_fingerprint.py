import math
from dataclasses import replace

import pytest

from dats_common.adapters.memory_encoder import MemoryEncoder
from dats_common.domain import sparse
from dats_common.fingerprint import LEAST_COSINE, PROBE_TEXTS, agree, fingerprint
from dats_common.records import Fingerprint

PRINT = Fingerprint("m", 2, 256, "v1", ((1.0, 0.0), (0.0, 1.0)))


def turned(cosine):
    return replace(PRINT, probe=((1.0, 0.0), (math.sqrt(1 - cosine**2), cosine)))


async def test_a_fingerprint_tells_of_the_model_and_its_answers():
    encoder = MemoryEncoder(dimension=32)
    print_ = await fingerprint(encoder)
    assert (print_.model, print_.dimension, print_.max_tokens) == (encoder.model, 32, encoder.max_tokens)
    assert print_.sparse_version == sparse.VERSION
    assert [len(vector) for vector in print_.probe] == [32] * len(PROBE_TEXTS)
    assert agree(print_, await fingerprint(MemoryEncoder(dimension=32))) == []


def test_small_differences_of_a_backend_agree():
    assert agree(PRINT, turned(LEAST_COSINE + 1e-4)) == []


def test_one_probe_that_differs_is_enough():
    (difference,) = agree(PRINT, turned(LEAST_COSINE - 1e-4))
    assert "cosine" in difference


@pytest.mark.parametrize("value", [math.nan, 0.0])
def test_a_probe_without_direction_disagrees(value):
    assert agree(PRINT, replace(PRINT, probe=((1.0, 0.0), (value, value)))) != []


@pytest.mark.parametrize(
    "change",
    [{"model": "n"}, {"dimension": 3}, {"max_tokens": 512}, {"sparse_version": "v2"}, {"probe": ((1.0, 0.0),)}],
)
def test_every_difference_is_named(change):
    (difference,) = agree(PRINT, replace(PRINT, **change))
    assert next(iter(change)) in difference
