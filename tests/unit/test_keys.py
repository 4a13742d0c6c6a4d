"""API keys: what they look like, and that a look at one gives nothing away."""

from __future__ import annotations

import secrets

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dats_common.domain.keys import ENTROPY_BYTES, PlainKey, make_key, read_key

KEY = make_key(bytes(range(ENTROPY_BYTES)))


@given(st.binary(min_size=ENTROPY_BYTES, max_size=ENTROPY_BYTES))
def test_a_key_reads_back_as_it_was_made(entropy: bytes) -> None:
    key = make_key(entropy)
    assert read_key(str(key)) == key
    assert key.fits(key.secret_hash)


def test_a_key_holds_256_random_bits_besides_its_id() -> None:
    assert ENTROPY_BYTES == 10 + 32
    assert len({make_key(secrets.token_bytes(ENTROPY_BYTES)).secret for _ in range(100)}) == 100
    with pytest.raises(ValueError, match="42 random bytes"):
        make_key(b"short")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "drk",
        "drk__",
        str(KEY)[:-1],
        str(KEY) + "x",
        str(KEY) + "\n",
        " " + str(KEY),
        str(KEY).upper(),
        str(KEY).replace("drk_", "key_"),
        str(KEY)[:-1] + "\u0661",
        "drk_" + KEY.key_id,
        KEY.secret,
    ],
)
def test_what_is_not_exactly_a_key_is_none(text: str) -> None:
    assert read_key(text) is None


def test_a_secret_fits_its_own_hash_and_no_other() -> None:
    other = PlainKey(KEY.key_id, "x" * 43)
    assert not other.fits(KEY.secret_hash)
    assert not KEY.fits(None)
    assert not KEY.fits("0" * 64)


def test_the_secret_is_in_neither_the_repr_nor_the_hash() -> None:
    assert KEY.secret not in repr(KEY)
    assert KEY.secret not in f"{[KEY]}"
    assert KEY.secret not in KEY.secret_hash
