"""A score from 0 to 100 from whatever a model made of it. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

SCORE_SCHEMA = {
    "type": "object",
    "properties": {"score": {"type": "integer", "minimum": 0, "maximum": 100}},
    "required": ["score"],
}
"""What structured output is held to."""

_NUMBER = r"-?\d+(?:\.\d+)?"
_NUMBERS = re.compile(_NUMBER, re.ASCII)
_OF_HUNDRED = re.compile(r"(?<=\d)\s*(?:/|out of|of)\s*100\b", re.ASCII | re.IGNORECASE)
_LABELLED = re.compile(rf"\bscore\b[\s:=\"'*]*(?:is\s+)?({_NUMBER})(?!\d|\.\d|\s*/)", re.ASCII | re.IGNORECASE)


def read_score(text: str) -> int | None:
    """The one score in `text`: JSON, fenced or bare, else a number in prose; `85/100` and decimals are read too.

    None: there is none, there are several, it is out of range, or it is on another scale (`0.85`, `8/10`).
    """
    score = _of_json(text)
    return _of_prose(text) if score is None else _in_range(score)


def _of_json(text: str) -> Any:
    start = text.find("{")
    if start < 0:
        return None
    try:
        document, _ = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    return document.get("score")


def _of_prose(text: str) -> int | None:
    text = _OF_HUNDRED.sub("", text)
    found = set(_LABELLED.findall(text)) or set(_NUMBERS.findall(text))
    return _in_range(float(found.pop())) if len(found) == 1 else None


def _in_range(score: Any) -> int | None:
    if isinstance(score, str):
        return _of_prose(score)
    if isinstance(score, bool) or not isinstance(score, int | float) or 0 < score < 1 or not 0 <= score <= 100:
        return None
    return round(score)
