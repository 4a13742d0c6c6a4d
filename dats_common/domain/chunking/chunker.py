"""From a document to its chunks: read it as what it is, cut it by its profile, say where each chunk stands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dats_common.domain.chunking.html import is_page, read_html
from dats_common.domain.chunking.markdown import read_markdown
from dats_common.domain.chunking.outline import NO_OUTLINE, Outline, Places, Reading
from dats_common.domain.chunking.packing import Limits, Strategy, pack, within_window
from dats_common.domain.chunking.profiles import Profile, limits_of, profile_of
from dats_common.domain.model import Chunk, SourceMetadata

FindDefinitions = Callable[[str, str], Outline]
"""From source code and its language to its outline; one without sections where it cannot tell."""


def no_definitions(source: str, language: str) -> Outline:
    """Where no grammars are at hand."""
    return NO_OUTLINE


@dataclass(frozen=True, slots=True)
class Chunker:
    """Cuts documents for one encoder.

    Attributes:
        token_spans: (start, end) offsets of the encoder's tokens in a text.
        window_tokens: the longest text that it reads whole, its special tokens left out.
        max_tokens, overlap_tokens: of documents that no profile gives other sizes; both shrink with the window.
        strategy: `semantic` cuts by the document's structure; `fixed` and `sentence` only by what they say.
    """

    token_spans: Callable[[str], Sequence[tuple[int, int]]]
    window_tokens: int
    max_tokens: int = 500
    overlap_tokens: int = 50
    strategy: Strategy = "semantic"
    find_definitions: FindDefinitions = no_definitions

    def cut(self, content: str, metadata: SourceMetadata) -> list[Chunk]:
        """The chunks of a document, in order; together they hold every visible character of its readable text.

        Each is at most `window_tokens` long. None for a document without visible characters.
        Raises: ValueError: sizes that cannot be.
        """
        profile = profile_of(metadata)
        reading = self._read(content, profile)
        is_semantic = self.strategy == "semantic"
        cuts = pack(
            reading.text,
            self.token_spans,
            limits=limits_of(profile, self._usual, window_tokens=self.window_tokens),
            strategy=self.strategy,
            outline=reading.outline if is_semantic else NO_OUTLINE,
            is_bounded=profile.size != "article",
        )
        places = Places(content, reading)
        return [
            Chunk(
                number,
                reading.text[cut.start : cut.end],
                cut.tokens,
                *places.source_span(cut.start, cut.end),
                places.location(cut.start, cut.end),
            )
            for number, cut in enumerate(cuts)
        ]

    @property
    def _usual(self) -> Limits:
        size, overlap = within_window(
            max_tokens=self.max_tokens, overlap_tokens=self.overlap_tokens, window_tokens=self.window_tokens
        )
        return Limits(size, overlap)

    def _read(self, content: str, profile: Profile) -> Reading:
        """Its structure; a parser that fails on it costs the document that and nothing else."""
        try:
            return self._parsed(content, profile)
        except Exception:  # Parsers are others' code, and a document is whatever someone sent.
            return Reading(content)

    def _parsed(self, content: str, profile: Profile) -> Reading:
        if profile.format in {"text", "code"} and is_page(content):  # No code begins so: an address named it wrong.
            return read_html(content) or Reading(content)
        match profile.format:
            case "markdown":
                return read_markdown(content)
            case "code":
                return Reading(content, self.find_definitions(content, profile.language))
            case "html":
                return read_html(content) or Reading(content)
            case "text":
                return Reading(content)
