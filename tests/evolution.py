"""Whether a JSON schema may follow another: what was sent stays readable, what is read stays where it was.

Only the words of JSON Schema that our models produce are known; another one is an error, not a guess.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

Schema = Mapping[str, Any]
Direction = Literal["in", "out"]

_SILENT = {"title", "description", "default", "$defs", "format"}
_KNOWN = _SILENT | {
    *("$ref", "additionalProperties", "anyOf", "const", "enum", "items", "maxItems", "maxLength", "maximum"),
    *("minItems", "minLength", "minimum", "properties", "required", "type"),
}


def breaks(old: Schema, new: Schema, *, direction: Direction) -> list[str]:
    """What `new` breaks for those who know `old`.

    Args:
        direction: `in`, others send it: whatever was right stays right. `out`, others read it: whatever may come now
            could come before, besides more fields, which a tolerant reader ignores.
    """
    wide, narrow = (new, old) if direction == "in" else (old, new)
    return [*_lost(_inlined(old), _inlined(new), "$"), *_outside(_inlined(wide), _inlined(narrow), "$")]


def _inlined(schema: Any, parts: Mapping[str, Any] | None = None) -> Any:
    """References replaced by what they lead to."""
    if isinstance(schema, list):
        return [_inlined(each, parts) for each in schema]
    if not isinstance(schema, dict):
        return schema
    parts = schema.get("$defs", {}) if parts is None else parts
    if "$ref" in schema:
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return _inlined({**parts[schema["$ref"].rpartition("/")[2]], **rest}, parts)
    return {key: _inlined(value, parts) for key, value in schema.items() if key != "$defs"}


def _lost(old: Schema, new: Schema, path: str) -> Iterator[str]:
    """Fields that are gone, or have another name now."""
    for name, field in old.get("properties", {}).items():
        if name not in new.get("properties", {}):
            yield f"{path}.{name}: is gone"
        else:
            yield from _lost(field, new["properties"][name], f"{path}.{name}")
    if "items" in old and "items" in new:
        yield from _lost(old["items"], new["items"], f"{path}[]")


def _outside(wide: Schema, narrow: Schema, path: str) -> Iterator[str]:
    """Why something that `narrow` allows is not allowed by `wide`."""
    if unknown := (wide.keys() | narrow.keys()) - _KNOWN:
        raise ValueError(f"{path}: {sorted(unknown)} cannot be compared yet")
    if "anyOf" in wide or "anyOf" in narrow:
        for choice in narrow.get("anyOf", [narrow]):
            reasons = [list(_outside(other, choice, path)) for other in wide.get("anyOf", [wide])]
            if all(reasons):
                yield min(reasons, key=len)[0]
        return
    kinds = wide.get("type"), narrow.get("type")
    if kinds[0] != kinds[1] and kinds != ("number", "integer"):
        yield f"{path}: {narrow.get('type')} against {wide.get('type')}"
        return
    allowed = _values(wide)
    if allowed is not None and not (_values(narrow) or {"anything else"}) <= allowed:
        yield f"{path}: more values than {sorted(allowed, key=repr)}"
    for least, most in (("minLength", "maxLength"), ("minItems", "maxItems"), ("minimum", "maximum")):
        if narrow.get(least, float("-inf")) < wide.get(least, float("-inf")):
            yield f"{path}: {least} {wide[least]} against {narrow.get(least)}"
        if narrow.get(most, float("inf")) > wide.get(most, float("inf")):
            yield f"{path}: {most} {wide[most]} against {narrow.get(most)}"
    for name in sorted(set(wide.get("required", ())) - set(narrow.get("required", ()))):
        yield f"{path}.{name}: may be missing"
    for name, field in wide.get("properties", {}).items():
        if name in narrow.get("properties", {}):
            yield from _outside(field, narrow["properties"][name], f"{path}.{name}")
    if "items" in wide and "items" in narrow:
        yield from _outside(wide["items"], narrow["items"], f"{path}[]")


def _values(schema: Schema) -> set[Any] | None:
    return {schema["const"]} if "const" in schema else set(schema["enum"]) if "enum" in schema else None
