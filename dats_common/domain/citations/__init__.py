"""Citations: what a model wrote as a marker becomes the id of an issued source, or leaves the text. Pure.

A prompt shows its sources as `[1]` to `[n]`, because a small model copies a short alias better than a full id. What
leaves us names sources in full: `[SourceId: {document_id}:{chunk_index}]`. Only ids issued for this very request can
come out, whatever the model was talked into, and whichever letters, brackets and spaces it wrote them with.

A marker in an answer is
- a number, a list or a range in square brackets, with or without "source" before it: `[1]`, `[1, 3]`, `[1-3]`,
  `[source 2]`; but not a subscript (`a[1]`, `f(x)[0]`), the value of an assignment (`x = [1, 2]`) or code;
- a SourceId in square brackets, right, wrong or broken;
- a full id on its own, with or without "SourceId" before it: no such text leaves unless it was issued.
In Markdown code the second kind is removed if it was not issued; all else there is the author's own text.

`lookalikes` says what a character reads as, `issued` holds what may be cited, `candidate` is what may still become a
marker, `reading` what it says then, `markdown_code` where code is; `stream` puts them together for a text in pieces,
`resolving` for whole ones.
"""

from __future__ import annotations

from dats_common.domain.citations.candidate import LONGEST_MARKER
from dats_common.domain.citations.issued import SOURCE_ID_PATTERN, Issued, Resolved, Span, canonical
from dats_common.domain.citations.lookalikes import fold
from dats_common.domain.citations.resolving import defuse_markers, resolve, strip_markers
from dats_common.domain.citations.stream import MarkerStream

__all__ = [
    "LONGEST_MARKER",
    "SOURCE_ID_PATTERN",
    "Issued",
    "MarkerStream",
    "Resolved",
    "Span",
    "canonical",
    "defuse_markers",
    "fold",
    "resolve",
    "strip_markers",
]
