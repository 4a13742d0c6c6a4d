"""Bytes to one JSON object, or a refusal that says why without quoting what was sent.

Python's own parser takes NaN, keeps the last of two equal keys and lets a deep document end the process; a message that
two parsers read differently must not decide what is visible.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from dats_common.errors import InvalidInput

MAX_BODY_BYTES = 8 * 1024 * 1024
"""1 MiB of content is at most 6 MiB of JSON when every character is escaped; the rest is for metadata."""

MAX_DEPTH = 32
"""Nested arrays and objects. Our own messages need four."""


def parse_object(body: bytes, *, max_bytes: int = MAX_BODY_BYTES) -> dict[str, Any]:
    """The one JSON object in `body` (RFC 8259, UTF-8 without a byte order mark).

    Raises:
        InvalidInput: too large, not UTF-8, not JSON, NaN or Infinity, a number out of range, duplicate keys, too deep,
            or not an object.
    """
    try:
        text = _bounded(body, max_bytes).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"body: not valid UTF-8 at byte {error.start}") from None
    value = _loaded(
        text, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite, parse_int=_integer
    )
    _check_depth(value)
    return value


def read_object(body: bytes, *, max_bytes: int = MAX_BODY_BYTES) -> dict[str, Any]:
    """What can be read of an object that `parse_object` refuses; only for what need not be right as a whole.

    Bytes that are not UTF-8 become lone surrogates, a key that comes twice keeps the values of both, numbers may be
    anything.

    Raises: InvalidInput: too large, not JSON, nested too deep to read, or not an object.
    """
    text = _bounded(body, max_bytes).decode("utf-8-sig", errors="surrogateescape")
    return _loaded(text, object_pairs_hook=_joined, parse_int=float)


def _bounded(body: bytes, max_bytes: int) -> bytes:
    if len(body) > max_bytes:
        raise InvalidInput(f"body: {len(body)} bytes, at most {max_bytes}")
    return body


def _loaded(text: str, **hooks: Any) -> dict[str, Any]:
    try:
        value = json.loads(text, **hooks)
    except json.JSONDecodeError as error:
        raise InvalidInput(f"body: not JSON ({error.msg}, line {error.lineno} column {error.colno})") from None
    except RecursionError:
        raise InvalidInput(f"body: nested deeper than {MAX_DEPTH}") from None
    if not isinstance(value, dict):
        raise InvalidInput("body: a JSON object is needed")
    return value


def _joined(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, list[Any]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return {name: _all_of(several) if len(several) > 1 else several[0] for name, several in values.items()}


def _all_of(values: list[Any]) -> Any:
    if all(isinstance(value, dict) for value in values):
        return _joined([pair for value in values for pair in value.items()])
    return [item for value in values for item in (value if isinstance(value, list) else [value])]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise InvalidInput("body: an object has the same key twice")
    return fields


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidInput(f"body: {name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise InvalidInput("body: a number is out of range")
    return number


def _integer(digits: str) -> int:
    if len(digits) > 19 or not -(2**63) <= (number := int(digits)) < 2**63:
        raise InvalidInput("body: an integer does not fit 64 bits")
    return number


def _check_depth(value: object) -> None:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise InvalidInput(f"body: nested deeper than {MAX_DEPTH}")
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)  # type: ignore[attr-defined]
            if isinstance(inner, dict | list)
        ]
