"""From where a chunk stands to what a person opens. Pure."""

from __future__ import annotations

from urllib.parse import quote, urlsplit

from dats_common.domain.chunking.profiles import has_lines, profile_of
from dats_common.domain.model import Location, SourceMetadata

SECTION_GAP = " > "
"""Between the headings of a section."""


def section_of(location: Location) -> str | None:
    """The headings above it in one line; None where there are none."""
    return SECTION_GAP.join(location.heading_path) or None


def openable(metadata: SourceMetadata, location: Location) -> str | None:
    """The source's address with the place in it: an anchor, a page, or lines; None without an address, and for one that
    no browser should open, such as `javascript:`. Names and passwords of users in it are left out.

    An anchor stands instead of the address's own, being more exact; lines do not. They are written as code hosts read
    them; what opens files without knowing them opens the file.
    Source: RFC 3986, section 3.5; RFC 8118 for pages.
    """
    address = _address(metadata.source_uri)
    if not address:
        return None
    base, has_fragment, _ = address.partition("#")
    if location.anchor is not None:
        return f"{base}#{quote(location.anchor, safe=_IN_FRAGMENTS)}"
    if location.page is not None and profile_of(metadata).format == "text":  # Form feeds part pages in text alone.
        return f"{base}#page={location.page}"
    if location.line_start is not None and not has_fragment and has_lines(metadata):
        last = "" if location.line_end in {None, location.line_start} else f"-L{location.line_end}"
        return f"{base}#L{location.line_start}{last}"
    return address


def _address(said: str) -> str | None:
    """As it may be opened; None where it may not."""
    said = said.strip(_IGNORED_AROUND)
    try:
        parts = urlsplit(said)
    except ValueError:
        return None
    if parts.scheme not in _OPENABLE_SCHEMES:
        return None
    host = parts.netloc.rpartition("@")[2]
    return said if host == parts.netloc else parts._replace(netloc=host).geturl()


_OPENABLE_SCHEMES = frozenset({"", "file", "http", "https"})
_IGNORED_AROUND = "".join(map(chr, range(0x21)))  # By browsers. Source: WHATWG URL, "basic URL parser".
_IN_FRAGMENTS = "!$&'()*+,;=:@/?-._~"  # Source: RFC 3986, section 3.5
