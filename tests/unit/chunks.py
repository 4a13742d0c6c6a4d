"""What every profile's chunks must be, and a tokenizer of words for tests."""

import re

from dats_common.domain.chunking import Chunker
from dats_common.domain.model import SourceMetadata


def words(text):
    """Spans as a word tokenizer gives them: punctuation alone, long words in pieces."""
    return [match.span() for match in re.finditer(r"\w{1,6}|[^\w\s]", text)]


def cut(
    text, *, max_tokens=8, overlap_tokens=0, window_tokens=None, find_definitions=None, strategy="semantic", **said
):
    """Chunks of `text`; what is said besides goes into its metadata."""
    chunker = Chunker(
        token_spans=words,
        window_tokens=window_tokens or max_tokens,
        max_tokens=max_tokens,
        overlap_tokens=overlap_tokens,
        strategy=strategy,
        **({"find_definitions": find_definitions} if find_definitions else {}),
    )
    return chunker.cut(text, SourceMetadata("p", **said))


def check_slices(text, chunks, *, window_tokens):
    """They are slices of the source, cover its visible characters, fit the window, and tell their lines."""
    covered = set()
    lines = text.split("\n")
    for number, each in enumerate(chunks):
        assert each.index == number
        assert each.text == text[each.char_start : each.char_end] == each.text.strip() != ""
        assert 1 <= each.token_count <= window_tokens
        covered.update(range(each.char_start, each.char_end))
        place = each.location
        shown = "\n".join(lines[place.line_start - 1 : place.line_end])
        assert each.text in shown
        assert text.count("\n", 0, each.char_start) == place.line_start - 1
        assert each.text.count("\n") == place.line_end - place.line_start
    assert [letter for position, letter in enumerate(text) if not letter.isspace() and position not in covered] == []


def paths(chunks):
    """Heading paths, joined."""
    return [" > ".join(each.location.heading_path) for each in chunks]
