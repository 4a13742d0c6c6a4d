"""What a GGUF file says of itself, without loading it.

Source: the format's specification, ggml/docs/gguf.md, versions 2 and 3 (little-endian).
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MOST_BYTES = 64 * 1024 * 1024
"""Of one text or name: a damaged length must not be allocated. Chat templates and tokens are far smaller."""
_MOST_ITEMS = 16 * 1024 * 1024
"""Of entries, tensors and an array: the largest vocabularies have 300 000 tokens."""
_MOST_DIMENSIONS = 8

_NUMBERS: Mapping[int, struct.Struct] = {
    number: struct.Struct("<" + form)
    for number, form in {
        0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
    }.items()
}  # fmt: skip
_TEXT, _ARRAY = 8, 9

# Source: `llama_ftype` of llama.cpp's llama.h; the kinds that files in use have.
_QUANTISATIONS: Mapping[object, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 25: "IQ4_NL", 30: "IQ4_XS",
    32: "BF16",
}  # fmt: skip


class NotGguf(Exception):
    """The file does not begin as a GGUF file does; the message says how."""


@dataclass(frozen=True, slots=True)
class Header:
    """What stands before the weights.

    Attributes:
        metadata: every entry; of an array only that it is there, as None, unless arrays were asked for.
        parameters: numbers in all tensors.
        size: bytes of the header.
        digest: SHA-256 hex of the header. It tells models apart; it does not vouch for the weights.
    """

    metadata: Mapping[str, object]
    parameters: int
    size: int
    digest: str

    @property
    def architecture(self) -> str:
        """As in `general.architecture`: llama, qwen2."""
        return str(self.metadata.get("general.architecture", "unknown"))

    @property
    def trained_window_tokens(self) -> int | None:
        """The longest context that the model was trained for."""
        length = self.metadata.get(f"{self.architecture}.context_length")
        return length if isinstance(length, int) else None

    @property
    def quantisation(self) -> str:
        """How most weights are stored."""
        return _QUANTISATIONS.get(self.metadata.get("general.file_type"), "unknown")


def read_header(path: Path, *, arrays: bool = False) -> Header:
    """Read all of the file but its weights.

    Args:
        arrays: keep them too: a vocabulary with its merges takes tens of megabytes.

    Raises: OSError, NotGguf.
    """
    with path.open("rb") as file:
        reader = _Reader(file, keeps_arrays=arrays)
        if reader.take(4) != _MAGIC:
            raise NotGguf("it does not begin with GGUF")
        if (version := reader.number(4)) not in _VERSIONS:
            raise NotGguf(f"its version is {version}, known are {_VERSIONS}")
        tensors, entries = reader.count(), reader.count()
        metadata = {reader.text(): reader.value(int(reader.number(4))) for _ in range(entries)}
        parameters = sum(reader.tensor_size() for _ in range(tensors))
        return Header(metadata, parameters, file.tell(), reader.digest)


class _Reader:
    """Reads values in their order, and never past a bound or the end."""

    def __init__(self, file: BinaryIO, *, keeps_arrays: bool) -> None:
        self._file = file
        self._keeps_arrays = keeps_arrays
        self._hash = hashlib.sha256()

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def take(self, size: int) -> bytes:
        if size > _MOST_BYTES:
            raise NotGguf(f"it has a value of {size} bytes")
        taken = self._file.read(size)
        if len(taken) < size:
            raise NotGguf("it ends inside its header")
        self._hash.update(taken)
        return taken

    def number(self, kind: int) -> int | float:
        form = _NUMBERS.get(kind)
        if form is None:
            raise NotGguf(f"it has a value of the unknown type {kind}")
        value: int | float = form.unpack(self.take(form.size))[0]
        return value

    def count(self) -> int:
        count = int(self.number(10))
        if count > _MOST_ITEMS:
            raise NotGguf(f"it has {count} items of one kind")
        return count

    def text(self) -> str:
        return self.take(int(self.number(10))).decode(errors="replace")

    def value(self, kind: int) -> object:
        if kind == _TEXT:
            return self.text()
        if kind != _ARRAY:
            return self.number(kind)
        inner, count = int(self.number(4)), self.count()
        if inner in _NUMBERS:
            packed = self.take(_NUMBERS[inner].size * count)
            return [one for (one,) in _NUMBERS[inner].iter_unpack(packed)] if self._keeps_arrays else None
        if inner != _TEXT:
            raise NotGguf(f"it has an array of the type {inner}")
        if self._keeps_arrays:
            return [self.text() for _ in range(count)]
        for _ in range(count):
            self.take(int(self.number(10)))
        return None

    def tensor_size(self) -> int:
        self.text()
        dimensions = int(self.number(4))
        if dimensions > _MOST_DIMENSIONS:
            raise NotGguf(f"it has a tensor of {dimensions} dimensions")
        size = math.prod(int(self.number(10)) for _ in range(dimensions))
        self.number(4)  # Its type and
        self.number(10)  # where it begins.
        return size
