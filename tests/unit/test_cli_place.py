"""What the command line says of a source's place."""

import pytest

from dats_common.contracts.api import SourceLocation
from services.cli.commands import place


@pytest.mark.parametrize(
    ("location", "said"),
    [
        (None, ""),
        (SourceLocation(), ""),
        (SourceLocation(line_start=4, line_end=9), "lines 4-9"),
        (SourceLocation(page=3, line_start=4, line_end=9), "page 3"),
        (SourceLocation(line_start=4), "line 4"),
        (SourceLocation(uri="https://wiki/page", line_start=4, line_end=4), "https://wiki/page, line 4"),
        (SourceLocation(uri="https://x/a.md", page=3), "https://x/a.md, page 3"),
        (SourceLocation(heading_path=["Guide", "Install"]), "Guide > Install"),
        (
            SourceLocation(heading_path=["Guide"], line_start=4, line_end=9, uri="docs/guide.md#L4-L9"),
            "docs/guide.md#L4-L9, Guide",
        ),
    ],
)
def test_a_place_is_what_to_open_and_the_headings_above_it(location: SourceLocation | None, said: str) -> None:
    assert place(location) == said
