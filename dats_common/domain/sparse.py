"""BM25 term vectors for prose and code, without a model: text in, `SparseVector` out.

The index weighs terms by inverse document frequency (Qdrant's `Modifier.IDF`); the rest of BM25 is here. Any change to
a rule below changes what is stored, so it needs a new `VERSION`, which the collection remembers.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

import mmh3
import Stemmer

from dats_common.domain.model import SparseVector

VERSION = "en-code-2"

K1 = 1.2  # Source: Robertson & Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009, 3.5.
B = 0.75  # Source: as K1.
AVERAGE_TERMS = 128.0
"""Terms of a typical chunk. A constant: a corpus average would make a chunk's vector depend on the order of ingest."""

LONGEST_WHOLE = 64  # Longer identifiers and dotted names are hashes or paths: nobody types them as one word.
LONGEST_PART = 40  # Longer runs are encoded data (base64, hex dumps), not words.

_WORD = re.compile(r"[A-Za-z0-9]+(?:[-.][A-Za-z0-9]+)+|\w+")
_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z0-9]+")
_DIGIT = re.compile(r"[0-9]")
_IDENTIFIER = re.compile(r"[A-Za-z0-9]_[A-Za-z0-9]|\b[a-z]{2,}[0-9]*[A-Z]")
"""Names that nobody writes but code: with an underscore, or a capital within (`JavaScript` and `iPhone` are none)."""
_SEPARATOR = re.compile(r"[-.]")
_KEPT_WORDS = 100_000  # Whose terms are remembered: the vocabulary of a large corpus, some 20 MB.

# Source: NLTK's English stop words, without the contractions (the tokenizer splits those at the apostrophe).
_STOP_WORDS = """
a about above after again against all am an and any are as at be because been before being below between both but
by can did do does doing don down during each few for from further had has have having he her here hers herself him
himself his how i if in into is it its itself just me more most my myself no nor not now of off on once only or
other our ours ourselves out over own s same she should so some such t than that the their theirs them themselves
then there these they this those through to too under until up very was we were what when where which while who
whom why will with you your yours yourself yourselves
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())


class _Stemming(threading.local):
    """One stemmer for each thread: PyStemmer's objects must not be shared between threads."""

    def __init__(self) -> None:
        self.stem = Stemmer.Stemmer("english").stemWord


_stemming = _Stemming()


def keyword_text(text: str, *, title: str) -> str:
    """What the keywords know of a chunk: its document's title is a part of each, for a chunk in the middle seldom says
    what the document is about."""
    return f"{title}\n{text}" if title else text


def encode_document(text: str) -> SparseVector:
    """BM25 weights of a chunk's terms, without the document frequencies; the empty vector when it has no terms."""
    counts: dict[int, int] = {}
    for word, times in Counter(_words(text)).items():  # Each distinct word once: prose repeats itself.
        for index in _ids_of(word):
            counts[index] = counts.get(index, 0) + times
    saturation = K1 * (1 - B + B * sum(counts.values()) / AVERAGE_TERMS)
    indices = tuple(sorted(counts))
    return SparseVector(indices, tuple(counts[i] * (K1 + 1) / (counts[i] + saturation) for i in indices))


def encode_query(text: str) -> SparseVector:
    """A query's terms, each with weight 1: the dot product with a document is then its BM25 score."""
    indices = tuple(sorted(term_ids(text)))
    return SparseVector(indices, (1.0,) * len(indices))


def term_ids(text: str) -> set[int]:
    """The ids of a text's terms: the indices of its vectors, as a query and as a document."""
    return {index for word in set(_words(text)) for index in _ids_of(word)}


def identifier_ids(text: str) -> frozenset[int]:
    """The ids of the names of code in a text, each as a whole: `get_user_id` and `getUserId` are one, and neither is
    `get_user_ids`."""
    named = (word for word in _words(text) if len(word) <= LONGEST_WHOLE and _IDENTIFIER.search(word))
    return frozenset(_ids_of(word)[0] for word in named if len(_terms_of(word)) > 1)


def terms(text: str) -> Iterator[str]:
    """The terms of `text` in order, repeated as they occur.

    A whole identifier is kept joined, in lower case and unstemmed, beside its stemmed parts, so that `get_user_id`
    meets `getUserId`; dotted or hyphenated names with a digit are kept whole too (`CVE-2024-1234`, `1.20.3`).
    """
    for word in _words(text):
        # Long words are rare and would fill the cache with text nobody asks for again.
        yield from _terms_of(word) if len(word) <= LONGEST_WHOLE else _terms_of.__wrapped__(word)


def _words(text: str) -> list[str]:
    return _WORD.findall(text if text.isascii() else unicodedata.normalize("NFKC", text))


def _ids_of(word: str) -> tuple[int, ...]:
    return _kept_ids_of(word) if len(word) <= LONGEST_WHOLE else _kept_ids_of.__wrapped__(word)


@lru_cache(maxsize=_KEPT_WORDS)
def _kept_ids_of(word: str) -> tuple[int, ...]:
    return tuple(map(_term_id, _terms_of.__wrapped__(word)))


@lru_cache(maxsize=_KEPT_WORDS)
def _terms_of(word: str) -> tuple[str, ...]:
    segments = _SEPARATOR.split(word)
    if len(segments) == 1:
        return tuple(_identifier(word))
    found = [word.lower()] if len(word) <= LONGEST_WHOLE and _DIGIT.search(word) else []
    for segment in segments:
        found += _identifier(segment)
    return tuple(found)


def _identifier(word: str) -> list[str]:
    parts = _PART.findall(word) if word.isascii() else [part for part in word.split("_") if part]
    found = []
    if len(parts) > 1 and len(word) <= LONGEST_WHOLE:
        found.append(word.replace("_", "").casefold())
    for part in parts:
        term = part.casefold()
        if term in STOP_WORDS or len(term) > LONGEST_PART or (len(term) == 1 and len(parts) > 1):
            continue
        found.append(_stemming.stem(term) if term.isalpha() else term)
    return found


def _term_id(term: str) -> int:
    # Source: the ids of Qdrant's own BM25 (FastEmbed `Qdrant/bm25`): abs(murmur3_32(token, seed 0)).
    return abs(mmh3.hash(term, 0))
