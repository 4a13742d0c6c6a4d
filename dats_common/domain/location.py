"""From where a chunk stands to what a person opens. Pure."""

from __future__ import annotations

from urllib.parse import quote

from dats_common.domain.chunking.profiles import profile_of
from dats_common.domain.model import Location, SourceMetadata

SECTION_GAP = " > "
"""Between the headings of a section."""


def section_of(location: Location) -> str | None:
    """The headings above it in one line; None where there are none."""
    return SECTION_GAP.join(location.heading_path) or None


def openable(metadata: SourceMetadata, location: Location) -> str | None:
    """The source's address with the place in it: an anchor, a page, or lines; None without an address.

    Where the address names a place itself, ours is more exact and stands instead. Lines are written as code hosts
    read them; what opens files without knowing them opens the file.
    Source: RFC 3986, section 3.5; RFC 8118 for pages.
    """
    if not metadata.source_uri:
        return None
    base = metadata.source_uri.partition("#")[0]  # Whatever else it is: a producer may send what is no address.
    if location.anchor is not None:
        return f"{base}#{quote(location.anchor, safe=_IN_FRAGMENTS)}"
    if location.page is not None:
        return f"{base}#page={location.page}"
    if location.line_start is not None and profile_of(metadata).format != "html":
        last = "" if location.line_end in {None, location.line_start} else f"-L{location.line_end}"
        return f"{base}#L{location.line_start}{last}"
    return metadata.source_uri


_IN_FRAGMENTS = "!$&'()*+,;=:@/?-._~"  # Source: RFC 3986, section 3.5
