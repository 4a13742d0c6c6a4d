"""How a document is cut, by what its producer says about it. Pure.

Source: spec 4, "Chunking Strategy"; spec 5, axiom A6.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
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
_LINE_SUFFIXES = frozenset({"txt", "text", "log", "csv", "json", "yaml", "yml", "toml", "rst"})
_PLAIN_SUFFIXES = _LINE_SUFFIXES | {"pdf"}
_SUFFIXES = _LANGUAGES_BY_SUFFIX.keys() | _MARKDOWN_SUFFIXES | _HTML_SUFFIXES | _PLAIN_SUFFIXES
_MARKDOWN_NAMES = frozenset({"markdown", "md", "readme"})
_HTML_NAMES = frozenset({"html", "xhtml", "webpage", "web-page"})

_DECISION_NAMES = frozenset({"adr", "decision", "decision-record"})
_DECISION_FOLDERS = frozenset({"adr", "adrs", "decisions"})
_SPEC_NAMES = frozenset({"project-spec"})
_SPEC_FILES = frozenset({".project-spec.yaml", ".project-spec.yml"})
_ARTICLE_NAMES = frozenset({"help", "help-article", "knowledge-base"})

_SEPARATORS = re.compile(r"[\s_./:]+")
_CODE_DOMAIN = re.compile(r"code[\s_./:-]+(.+)")


def profile_of(metadata: SourceMetadata) -> Profile:
    """By the file's name first, since it says what the bytes are; by `doc_type` and `source_type`; by a title that is a
    file's name; then by `language` and `domain`. What is said to be Markdown or HTML is that, but for files of code."""
    path, is_web = _file_of(metadata)
    titled = _titled_file_of(metadata)
    kinds = {_SEPARATORS.sub("-", kind.strip().lower()) for kind in (metadata.doc_type, metadata.source_type)}
    folders, _, name = (path or titled).rpartition("/")
    is_decision = bool(kinds & _DECISION_NAMES or _DECISION_FOLDERS.intersection(folders.split("/")))
    if is_decision or kinds & _SPEC_NAMES or name in _SPEC_FILES:
        size: Size = "whole"
    else:
        size = "article" if kinds & _ARTICLE_NAMES else "usual"
    language = metadata.language.strip().lower()
    named = _named_format(kinds | {language})
    suffix = _suffix(path)
    if suffix in _LANGUAGES_BY_SUFFIX and not (is_web and _named_format(kinds)):  # Such as a page about Node.js.
        return Profile("code", _LANGUAGES_BY_SUFFIX[suffix], size)
    if suffix in _MARKDOWN_SUFFIXES or named == "markdown":
        return Profile("markdown", size=size)
    if suffix in _HTML_SUFFIXES or named == "html":
        return Profile("html", size=size)
    if suffix in _PLAIN_SUFFIXES:
        return Profile(size=size)
    if titled:
        return _profile_by_suffix(_suffix(titled), size)
    if is_decision:
        return Profile("markdown", size=size)  # Their name and folder say no more; this is how they are written.
    for word in (language, _code_word(metadata.domain)):
        if word in _LANGUAGES_BY_NAME:
            return Profile("code", _LANGUAGES_BY_NAME[word], size)
    return Profile(size=size)


def has_lines(metadata: SourceMetadata) -> bool:
    """Whether the source opens as lines of text that can be pointed at: code, Markdown, a text file."""
    found = profile_of(metadata).format
    return found in {"code", "markdown"} or (found == "text" and _suffix(_file_of(metadata)[0]) in _LINE_SUFFIXES)


def _named_format(names: Set[str]) -> Format | None:
    if names & _MARKDOWN_NAMES:
        return "markdown"
    return "html" if names & _HTML_NAMES else None


def _profile_by_suffix(suffix: str, size: Size) -> Profile:
    if suffix in _LANGUAGES_BY_SUFFIX:
        return Profile("code", _LANGUAGES_BY_SUFFIX[suffix], size)
    if suffix in _MARKDOWN_SUFFIXES:
        return Profile("markdown", size=size)
    return Profile("html" if suffix in _HTML_SUFFIXES else "text", size=size)


def _file_of(metadata: SourceMetadata) -> tuple[str, bool]:
    """Path of the file as the producer names it, in lower case, and whether the web has it; empty without a suffix that
    we know: `example.com` and `v1.2` name no file."""
    for said in (metadata.source_uri, metadata.source_id):
        try:
            address = urlsplit(said)
        except ValueError:  # such as brackets that are no address: not a place, then
            continue
        path = address.path.lower()
        if _suffix(path):
            return path, address.scheme in {"http", "https"}
    return "", False


def _titled_file_of(metadata: SourceMetadata) -> str:
    """A title in lower case where it looks like a file's name; otherwise empty."""
    title = metadata.title.strip().lower()
    return title if _suffix(title) and not any(letter.isspace() for letter in title) else ""


def _suffix(path: str) -> str:
    """Empty where it is none that we know."""
    _, dot, suffix = path.rpartition("/")[2].rpartition(".")
    return suffix if dot and suffix in _SUFFIXES else ""


def _code_word(domain: str) -> str:
    """What follows `code` in a domain such as `code-python`, all of it: `code-go-to-market` is not about Go."""
    found = _CODE_DOMAIN.fullmatch(domain.strip().lower())
    return found[1] if found else ""


def language_of(domain: str) -> str:
    """Of a domain such as `code-python`, as the grammars name it; another word behind `code` as it is; else empty."""
    word = _code_word(domain)
    return _LANGUAGES_BY_NAME.get(word, word)


def limits_of(profile: Profile, usual: Limits, *, window_tokens: int) -> Limits:
    """How long the chunks of a document may be, never longer than the model's window."""
    if profile.size == "article":
        return ARTICLE.within(window_tokens)
    if profile.size == "whole":
        return Limits(window_tokens, min(usual.overlap_tokens, window_tokens // 2))
    return usual
