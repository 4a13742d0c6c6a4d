"""Reading evaluation sets: a folder for each, JSON lines, gzipped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from dats_common.errors import ConfigurationError
from services.evaluate.files import Record, fingerprint, json_lines, table

T = TypeVar("T")
Kind = Literal["answerable", "adversarial", "offcorpus"]
KINDS: tuple[Kind, ...] = ("answerable", "offcorpus", "adversarial")
CORPUS, QUERIES, QRELS, REPLIES = "corpus.jsonl.gz", "queries.jsonl.gz", "qrels.tsv", "responses.jsonl.gz"
PROSE_DOMAIN, CODE_DOMAIN = "docs", "code"


@dataclass(frozen=True, slots=True)
class Document:
    """A document to index.

    Attributes:
        language: the programming language of code; empty for prose.
    """

    document_id: str
    title: str
    text: str
    language: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question; a right answer holds one of `answers`, of which there are none where nothing can be answered."""

    text: str
    kind: Kind
    answers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sought:
    """A question for documents.

    Attributes:
        relevant: gain by document id; empty if nothing in the set is about it (`offcorpus`).
    """

    text: str
    relevant: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RetrievalSet:
    """Documents and questions with judgements.

    Attributes:
        domain: what a caller who knows what this is would send; None where documents of several kinds are mixed.
        offcorpus: questions that nothing in the set is about.
        loose: judgements that name a question or a document that is not there.
        fingerprint: of the files: another half of the same set has another one.
    """

    name: str
    documents: Sequence[Document]
    judged: Sequence[Sought]
    offcorpus: Sequence[Sought]
    domain: str | None
    loose: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Said:
    """A sentence, what it is said to rest on, and whether it does."""

    text: str
    context: str
    supported: bool


def is_retrieval_set(folder: Path) -> bool:
    """Whether it is meant as one: a file that is missing of those it needs is then an error."""
    return any((folder / name).is_file() for name in (CORPUS, QUERIES, QRELS))


def retrieval_set(folder: Path) -> RetrievalSet:
    """A folder with documents, questions and judgements, whatever it is called.

    Raises: ConfigurationError: a file is missing or broken (with its line), or no question has a judgement.
    """
    documents = _documents(folder)
    relevant, judgements = _judgements(folder / QRELS)
    judged, offcorpus, known = [], [], set()
    for each in json_lines(folder / QUERIES):
        question_id = each.text("id")
        known.add(question_id)
        text, gains = each.text("text"), relevant.get(question_id, {})
        if any(gain > 0 for gain in gains.values()):
            judged.append(Sought(text, gains))
        elif each.text("kind", default="") == "offcorpus":
            offcorpus.append(Sought(text, {}))
    if not judged:
        raise ConfigurationError(f"{folder / QRELS} names no relevant document for any question of {QUERIES}")
    ids = {document.document_id for document in documents}
    tight = sum(len(ids.intersection(of_one)) for question, of_one in relevant.items() if question in known)
    return RetrievalSet(
        name=folder.name,
        documents=documents,
        judged=judged,
        offcorpus=offcorpus,
        domain=_domain(documents),
        loose=judgements - tight,
        fingerprint=fingerprint(folder / name for name in (CORPUS, QUERIES, QRELS)),
    )


def _documents(folder: Path) -> list[Document]:
    documents: dict[str, Document] = {}
    for each in json_lines(folder / CORPUS):
        document_id = each.text("id")
        if document_id in documents:
            raise ConfigurationError(f"{each.where}: a second document {document_id!r}")
        documents[document_id] = Document(
            document_id, each.text("title", default=""), each.text("text"), each.text("lang", default="")
        )
    if not documents:
        raise ConfigurationError(f"{folder / CORPUS} has no document")
    return list(documents.values())


def _domain(documents: Sequence[Document]) -> str | None:
    """Prose or code, by whether the documents have a programming language."""
    languages = {document.language for document in documents}
    if len(languages) == 1:
        language = languages.pop()
        return f"{CODE_DOMAIN}-{language}" if language else PROSE_DOMAIN
    return None if "" in languages else CODE_DOMAIN


def _judgements(file: Path) -> tuple[dict[str, dict[str, float]], int]:
    """Gain by document by question, and how many there are."""
    relevant: dict[str, dict[str, float]] = {}
    for where, (question, document, score) in table(file, ("query-id", "corpus-id", "score")):
        try:
            gain = float(score)
        except ValueError:
            gain = math.nan
        if not (math.isfinite(gain) and gain >= 0):
            raise ConfigurationError(f"{where}: the score {score!r} is no number of at least 0")
        if document in relevant.setdefault(question, {}):
            raise ConfigurationError(f"{where}: a second judgement of {document!r} for {question!r}")
        relevant[question][document] = gain
    return relevant, sum(map(len, relevant.values()))


def questions(folder: Path) -> list[Asked]:
    """Questions with answers, as squad2. Raises: ConfigurationError: they cannot be read."""
    return [_asked(each) for each in json_lines(folder / QUERIES)]


def _asked(each: Record) -> Asked:
    kind = next((known for known in KINDS if known == each.text("kind")), None)
    if kind is None:
        raise ConfigurationError(f"{each.where}: 'kind' is none of {', '.join(KINDS)}")
    answers = (Record(each.where, answer).text("text") for answer in each.of("answers", list, default=[]))
    return Asked(each.text("text"), kind, tuple(answers))


def replies(folder: Path) -> list[Said]:
    """Replies and the knowledge they were given, as begin_wow."""
    return [
        Said(each.text("response"), each.text("knowledge"), each.text("label") == "Fully attributable")
        for each in json_lines(folder / REPLIES)
        if each.text("label") != "Generic"
    ]


def claims(folder: Path) -> list[Said]:
    """Claims against each abstract that they cite, as scifact."""
    texts = {each.text("id"): each.text("text") for each in json_lines(folder / CORPUS)}
    return [
        Said(
            each.text("text"),
            texts[document_id],
            any(_supports(Record(each.where, item), document_id) for item in each.of("evidence", list)),
        )
        for each in json_lines(folder / QUERIES)
        for document_id in each.of("cited_doc_ids", list)
        if document_id in texts
    ]


def _supports(evidence: Record, document_id: str) -> bool:
    return evidence.text("doc") == document_id and evidence.text("label") == "SUPPORT"


def sample(items: Sequence[T], most: int | None) -> list[T]:
    """At most so many (None: all), evenly spread; the same ones every time."""
    if most is None or len(items) <= most:
        return list(items)
    return [items[number * len(items) // most] for number in range(most)]
