"""Reading evaluation sets: a folder for each, JSON lines, gzipped."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from dats_common.errors import ConfigurationError

T = TypeVar("T")
Kind = Literal["answerable", "adversarial", "offcorpus"]
KINDS: tuple[Kind, ...] = ("answerable", "offcorpus", "adversarial")


@dataclass(frozen=True, slots=True)
class Document:
    """A document to index."""

    document_id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A question; a right answer holds one of `answers`, of which there are none where nothing can be answered."""

    text: str
    kind: Kind
    answers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Said:
    """A sentence, what it is said to rest on, and whether it does."""

    text: str
    context: str
    supported: bool


def questions(folder: Path) -> tuple[list[Document], list[Asked]]:
    """A set of documents and questions, as squad2. Raises: ConfigurationError: it cannot be read."""
    documents = [Document(each["id"], each.get("title", ""), each["text"]) for each in _lines(folder / "corpus")]
    asked = [
        Asked(each["text"], each["kind"], tuple(answer["text"] for answer in each.get("answers", ())))
        for each in _lines(folder / "queries")
    ]
    return documents, asked


def replies(folder: Path) -> list[Said]:
    """Replies and the knowledge they were given, as begin_wow."""
    return [
        Said(each["response"], each["knowledge"], each["label"] == "Fully attributable")
        for each in _lines(folder / "responses")
        if each["label"] != "Generic"
    ]


def claims(folder: Path) -> list[Said]:
    """Claims against each abstract that they cite, as scifact."""
    texts = {each["id"]: each["text"] for each in _lines(folder / "corpus")}
    return [
        Said(
            each["text"],
            texts[document_id],
            any(item["doc"] == document_id and item["label"] == "SUPPORT" for item in each["evidence"]),
        )
        for each in _lines(folder / "queries")
        for document_id in each["cited_doc_ids"]
        if document_id in texts
    ]


def sample(items: Sequence[T], most: int) -> list[T]:
    """At most so many, evenly spread; the same ones every time."""
    if len(items) <= most:
        return list(items)
    return [items[number * len(items) // most] for number in range(most)]


def _lines(path: Path) -> list[dict[str, Any]]:
    file = path.with_name(f"{path.name}.jsonl.gz")
    try:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{file} cannot be read: {type(error).__name__}") from error
