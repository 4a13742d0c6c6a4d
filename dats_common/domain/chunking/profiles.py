"""How a document is cut, by what its producer says about it. Pure.

Source: spec 4, "Chunking Strategy"; spec 5, axiom A6.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal
from urllib.parse import urlsplit

from dats_common.domain.chunking.packing import Limits
from dats_common.domain.model import SourceMetadata

Format = Literal["text", "markdown", "html", "code"]
Size = Literal["usual", "whole", "article"]

ARTICLE = Limits(max_tokens=1200, overlap_tokens=150, min_tokens=800, min_overlap_tokens=130)
"""Source: spec 5, A6: 800 to 1200 tokens, an overlap of about 150 ± 20."""


@dataclass(frozen=True, slots=True)
class Profile:
    """How to read a document and how long its chunks may be.

    Attributes:
        format: `text` has no structure that we read.
        language: of code, as the grammars name it; empty: not known.
        size: `usual` as the settings say; `whole` one chunk where the model's window allows it; `article` long chunks
            that overlap across sections.
    """

    format: Format = "text"
    language: str = ""
    size: Size = "usual"


_LANGUAGES_BY_SUFFIX: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("py", "pyi"), "python"),
        **dict.fromkeys(("js", "mjs", "cjs", "jsx"), "javascript"),
        **dict.fromkeys(("ts", "mts", "cts"), "typescript"),
        "tsx": "tsx",
        "go": "go",
        "rs": "rust",
        "java": "java",
        "sql": "sql",
    }
)
_LANGUAGES_BY_NAME: Mapping[str, str] = MappingProxyType(
    {
        **_LANGUAGES_BY_SUFFIX,
        **{name: name for name in set(_LANGUAGES_BY_SUFFIX.values())},
        "golang": "go",
        **dict.fromkeys(("postgresql", "plpgsql", "mysql", "sqlite"), "sql"),
    }
)
_MARKDOWN_SUFFIXES = frozenset({"md", "markdown", "mdx"})
_HTML_SUFFIXES = frozenset({"html", "htm", "xhtml"})
_PLAIN_SUFFIXES = frozenset({"txt", "text", "log", "csv", "json", "yaml", "yml", "toml", "rst", "pdf"})
_MARKDOWN_NAMES = frozenset({"markdown", "md", "readme"})
_HTML_NAMES = frozenset({"html", "xhtml", "webpage", "web-page"})

_DECISION_NAMES = frozenset({"adr", "decision", "decision-record"})
_DECISION_FOLDERS = frozenset({"adr", "adrs", "decisions"})
_SPEC_NAMES = frozenset({"project-spec"})
_SPEC_FILES = frozenset({".project-spec.yaml", ".project-spec.yml"})
_ARTICLE_NAMES = frozenset({"help", "help-article", "knowledge-base"})

_SEPARATORS = re.compile(r"[\s_./:]+")
_WORDS = re.compile(r"[a-z]+")


def profile_of(metadata: SourceMetadata) -> Profile:
    """By the file's name first, since it says what the bytes are, then by `doc_type` and `source_type`, then by
    `language` and `domain`."""
    path = _path_of(metadata)
    kinds = {_SEPARATORS.sub("-", kind.strip().lower()) for kind in (metadata.doc_type, metadata.source_type)}
    is_decision = bool(kinds & _DECISION_NAMES or _DECISION_FOLDERS.intersection(path.split("/")[:-1]))
    if is_decision or kinds & _SPEC_NAMES or path.rpartition("/")[2] in _SPEC_FILES:
        size: Size = "whole"
    else:
        size = "article" if kinds & _ARTICLE_NAMES else "usual"
    suffix = _suffix(path)
    if suffix in _LANGUAGES_BY_SUFFIX:
        return Profile("code", _LANGUAGES_BY_SUFFIX[suffix], size)
    language = metadata.language.strip().lower()
    if suffix in _MARKDOWN_SUFFIXES or (kinds | {language}) & _MARKDOWN_NAMES:
        return Profile("markdown", size=size)
    if suffix in _HTML_SUFFIXES or (kinds | {language}) & _HTML_NAMES:
        return Profile("html", size=size)
    if suffix in _PLAIN_SUFFIXES:
        return Profile(size=size)
    if is_decision:
        return Profile("markdown", size=size)  # Their name and folder say no more; this is how they are written.
    for name in (language, *_code_words(metadata.domain)):
        if name in _LANGUAGES_BY_NAME:
            return Profile("code", _LANGUAGES_BY_NAME[name], size)
    return Profile(size=size)


def _path_of(metadata: SourceMetadata) -> str:
    """Path of the file as the producer names it, in lower case; a title only where it looks like a file's name."""
    for said in (metadata.source_uri, metadata.source_id, metadata.title):
        try:
            path = urlsplit(said).path.lower()
        except ValueError:  # such as brackets that are no address: not a place, then
            continue
        if _suffix(path) and not any(letter.isspace() for letter in path):
            return path
    return ""


def _suffix(path: str) -> str:
    _, dot, suffix = path.rpartition("/")[2].rpartition(".")
    return suffix if dot else ""


def _code_words(domain: str) -> Iterator[str]:
    """What follows `code` in a domain such as `code-python`."""
    kind, *words = _WORDS.findall(domain.lower()) or [""]
    return iter(words if kind == "code" else ())


def limits_of(profile: Profile, usual: Limits, *, window_tokens: int) -> Limits:
    """How long the chunks of a document may be, never longer than the model's window."""
    if profile.size == "article":
        return ARTICLE.within(window_tokens)
    if profile.size == "whole":
        return Limits(window_tokens, min(usual.overlap_tokens, window_tokens // 2))
    return usual
