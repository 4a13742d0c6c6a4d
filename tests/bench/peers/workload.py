"""Documents, questions and their known answers: the same for every peer, from the same seed.

Each document is one chunk for every peer: it fits the embedding model's window, so that no peer's way of cutting text
is compared. The text is the Python language reference, which every machine with Python has. Most documents have a text
of their own; some texts exist once for every pair of project and tag, and only a filter tells these copies apart: who
narrows the first few hits after the search instead of the search itself does not find them all.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tests.bench.corpus import pages

PROJECTS = ("atlas", "borealis", "cygnus", "dorado")
TAGS = ("api", "design", "guide", "notes", "review")
WORDS = 90
MOST_MARKS = 150
"""Words and punctuation marks of a text: at most 219 tokens of all-MiniLM-L6-v2, whose window is 256."""
QUESTION_WORDS = 8
LIMIT = 10
"""Results that are asked for."""


@dataclass(frozen=True, slots=True)
class Document:
    """A text and what it may be narrowed by."""

    id: str
    text: str
    project: str
    tag: str

    def as_json(self) -> dict[str, str]:
        """For the adapter."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Question:
    """A run of words out of one document.

    Attributes:
        relevant: the id of that document.
        where: metadata that results must have; empty: no filter.
    """

    text: str
    relevant: str
    where: dict[str, str]


@dataclass(frozen=True, slots=True)
class Workload:
    """Everything that is done to a peer.

    Attributes:
        documents: the index.
        plain: questions without a filter; only about documents that are the only ones with their text.
        filtered: questions with project and tag; about the shared texts.
        repeated: documents of the index that are handed in a second time, unchanged.
        idle, busy: documents that are deleted while nothing else goes on, and while `backlog` is ingested.
    """

    documents: tuple[Document, ...]
    plain: tuple[Question, ...]
    filtered: tuple[Question, ...]
    repeated: tuple[Document, ...]
    idle: tuple[Document, ...]
    busy: tuple[Document, ...]
    backlog: tuple[Document, ...]


def make(*, quick: bool, seed: int = 7) -> Workload:
    """600 documents and 400 questions; about a fifth of that in the quick run."""
    singles, shared, questions, victims = (60, 2, 40, 6) if quick else (400, 10, 200, 20)
    chance = random.Random(seed)
    texts = _texts()
    chance.shuffle(texts)
    pairs = [(project, tag) for project in PROJECTS for tag in TAGS]
    alone = [_document(f"single-{n}", text, *pairs[n % len(pairs)]) for n, text in enumerate(texts[:singles])]
    several = [
        _document(f"shared-{n}-{project}-{tag}", text, project, tag)
        for n, text in enumerate(texts[singles : singles + shared])
        for project, tag in pairs
    ]
    rest = texts[singles + shared :][: 60 if quick else len(texts)]
    backlog = [_document(f"backlog-{n}", text, *pairs[n % len(pairs)]) for n, text in enumerate(rest)]
    asked, deleted = alone[: singles - 3 * victims], alone[singles - 3 * victims :]
    documents = [*alone, *several]
    chance.shuffle(documents)
    return Workload(
        documents=tuple(documents),
        plain=tuple(_question(chance.choice(asked), {}, chance) for _ in range(questions)),
        filtered=tuple(
            _question(each, {"project": each.project, "tag": each.tag}, chance)
            for each in chance.sample(several, min(questions, len(several)))
        ),
        repeated=tuple(asked[: max(20, questions // 2)]),
        idle=tuple(deleted[:victims]),
        busy=tuple(deleted[victims:]),
        backlog=tuple(backlog),
    )


def _texts() -> list[str]:
    """Pieces of the reference that are prose rather than a table or an index, each of them different."""
    found = [page.partition("\n\n")[2] for page in pages(950, label="", words=WORDS)]
    return [
        text
        for text in found
        if len(re.findall(r"\w+|[^\w\s]", text)) <= MOST_MARKS and len(text.split()) >= WORDS // 2
    ]


def _document(id_: str, text: str, project: str, tag: str) -> Document:
    return Document(id_, f"From the {tag} of {project}:\n\n{text}", project, tag)


def _question(about: Document, where: dict[str, str], chance: random.Random) -> Question:
    words = about.text.partition("\n\n")[2].split()
    first = chance.randrange(len(words) - QUESTION_WORDS)
    return Question(" ".join(words[first : first + QUESTION_WORDS]), about.id, where)


def fingerprint(workload: Workload) -> str:
    """Changes with the workload: a cached result of another one is no result."""
    return hashlib.sha256(repr(workload).encode()).hexdigest()[:16]


def as_json(documents: Sequence[Document]) -> list[dict[str, Any]]:
    """For the adapter."""
    return [each.as_json() for each in documents]
