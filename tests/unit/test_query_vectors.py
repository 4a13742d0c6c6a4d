import numpy as np
import pytest

from dats_common.adapters.memory_encoder import MemoryEncoder
from dats_common.errors import EncoderUnavailable
from services.query.query_vectors import QueryVectors


class Counting(MemoryEncoder):
    """Says what it was asked for, and fails on demand."""

    def __init__(self):
        super().__init__()
        self.asked = []
        self.is_away = False

    async def encode(self, texts, *, kind):
        self.asked += [(text, kind) for text in texts]
        if self.is_away:
            raise EncoderUnavailable("away")
        return await super().encode(texts, kind=kind)


async def test_a_question_asked_again_is_not_encoded_again():
    encoder = Counting()
    vectors = QueryVectors(encoder)
    first = await vectors.of("who approves?", tenant_id="a")
    again = await vectors.of("who approves?", tenant_id="a")
    assert encoder.asked == [("who approves?", "query")]
    assert np.array_equal(first, again)
    assert np.array_equal(first, (await encoder.encode(["who approves?"], kind="query"))[0])


async def test_what_another_tenant_asked_makes_nothing_faster():
    encoder = Counting()
    vectors = QueryVectors(encoder)
    await vectors.of("who approves?", tenant_id="a")
    await vectors.of("who approves?", tenant_id="b")
    assert len(encoder.asked) == 2


async def test_the_vectors_asked_for_last_are_kept():
    encoder = Counting()
    vectors = QueryVectors(encoder, most=2)
    for text in ("one", "two", "one", "three"):
        await vectors.of(text, tenant_id="a")
    assert [text for text, _ in encoder.asked] == ["one", "two", "three"]
    for text in ("one", "three", "two"):
        await vectors.of(text, tenant_id="a")
    assert [text for text, _ in encoder.asked] == ["one", "two", "three", "two"]


async def test_a_failure_is_not_kept():
    encoder = Counting()
    vectors = QueryVectors(encoder)
    encoder.is_away = True
    with pytest.raises(EncoderUnavailable):
        await vectors.of("who approves?", tenant_id="a")
    encoder.is_away = False
    assert (await vectors.of("who approves?", tenant_id="a")).shape == (encoder.dimension,)


async def test_nobody_can_change_what_is_kept():
    vector = await QueryVectors(MemoryEncoder()).of("who approves?", tenant_id="a")
    with pytest.raises(ValueError, match="read-only"):
        vector[0] = 2.0


async def test_text_that_no_encoding_has_is_a_question_too():
    assert (await QueryVectors(MemoryEncoder()).of("half \ud800 a pair", tenant_id="a")).shape == (64,)
