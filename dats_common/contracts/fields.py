"""The field types that events and HTTP share: what an id, a tag, a title or a content may be.

Nothing is coerced: a number where text is asked is refused. A lone surrogate is refused by pydantic itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from dats_common.errors import InvalidInput

MIN_CONTENT_CHARS = 10  # Source: spec 1, EmbedRequest
MAX_CONTENT_CHARS = 1_000_000
MAX_CONTENT_BYTES = 1024 * 1024
MAX_ID_CHARS = 256
MAX_TAGS = 64
MAX_TAG_CHARS = 128

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SHOWN_ERRORS = 3
_WORDS = {
    "missing": "is required",
    "extra_forbidden": "is not a known field",
    "string_unicode": "a lone surrogate is not text",
}
_SHOWN_KEY = re.compile(r"[\w .\-/\[\]]{1,64}", re.ASCII)


def printable(text: str) -> str:
    """`text` without control characters: it can stand in a header, a log line and a heading."""
    if _CONTROL.search(text):
        raise ValueError("control characters are not allowed")
    return text


def identifier(text: str) -> str:
    """Not blank and printable; spaces and slashes are fine."""
    if not text.strip():
        raise ValueError("must not be blank")
    return printable(text)


def without_nul(text: str) -> str:
    """`text` that every database takes."""
    if "\0" in text:
        raise ValueError("the null character is not allowed")
    return text


def storable_content(text: str) -> str:
    """Content that is not blank, has no null character and is at most 1 MiB of UTF-8."""
    if not text.strip():
        raise ValueError("must not be blank")
    if len(text.encode()) > MAX_CONTENT_BYTES:
        raise ValueError(f"more than {MAX_CONTENT_BYTES} bytes of UTF-8")
    return without_nul(text)


def unique(items: Iterable[str]) -> list[str]:
    """Each item once, in the order of its first appearance."""
    return list(dict.fromkeys(items))


Identifier = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS), AfterValidator(identifier)]
ArtifactId = Identifier
TenantId = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(identifier)]
Tag = Annotated[str, Field(min_length=1, max_length=MAX_TAG_CHARS), AfterValidator(identifier)]
Label = Annotated[str, Field(max_length=MAX_ID_CHARS), AfterValidator(printable)]
Line = Annotated[str, Field(max_length=2048), AfterValidator(printable)]
FreeText = Annotated[str, Field(max_length=4096), AfterValidator(without_nul)]
Content = Annotated[str, Field(min_length=1, max_length=MAX_CONTENT_CHARS), AfterValidator(storable_content)]
"""However short: what was approved is knowledge (`x[::-1]`)."""
RequestedContent = Annotated[Content, Field(min_length=MIN_CONTENT_CHARS)]


class Wire(BaseModel):
    """What comes in from another process: no coercion, unknown fields ignored, frozen once read."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, hide_input_in_errors=True)


def explain(errors: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(field, message) of each pydantic error, without the input.

    A field is a dotted path such as `metadata.tags[3]`. A key is shown only when it is short and plain: it comes from
    the sender.
    """
    return [(_path(error["loc"]), _WORDS.get(error["type"]) or _message(error)) for error in errors]


def refusal(error: ValidationError, *, at: str = "") -> InvalidInput:
    """One short message for a dead letter's `x-reason`. `at` is where the model stood, such as `data`."""
    above = (at,) if at else ()
    found = explain([{**each, "loc": above + each["loc"]} for each in error.errors(include_input=False)])
    shown = [f"{field}: {message}" for field, message in found[:_SHOWN_ERRORS]]
    if len(found) > _SHOWN_ERRORS:
        shown.append(f"and {len(found) - _SHOWN_ERRORS} more")
    return InvalidInput("; ".join(shown))


def _message(error: Mapping[str, Any]) -> str:
    # Our own validators raise ValueError; pydantic puts this in front of their text.
    return str(error["msg"]).removeprefix("Value error, ")


def _path(location: Sequence[int | str]) -> str:
    path = ""
    # A web framework puts in front where the value came from.
    for part in location[1:] if len(location) > 1 and location[0] == "body" else location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            key = part if _SHOWN_KEY.fullmatch(part) else "(unprintable key)"
            path += f".{key}" if path else key
    return path or "body"
