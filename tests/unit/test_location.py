import pytest

from dats_common.domain.location import openable, section_of
from dats_common.domain.model import Location, SourceMetadata


@pytest.mark.parametrize(
    ("source_uri", "location", "opened"),
    [
        ("", Location(line_start=1, line_end=2), None),
        ("src/a.py", Location(line_start=3, line_end=9), "src/a.py#L3-L9"),
        ("src/a.py", Location(line_start=3, line_end=3), "src/a.py#L3"),
        ("src/a.py", Location(), "src/a.py"),
        ("https://h/a.html", Location(line_start=3, line_end=9, anchor="use"), "https://h/a.html#use"),
        ("https://h/a.html#top", Location(line_start=3, line_end=9, anchor="use"), "https://h/a.html#use"),
        ("https://h/a.html#top", Location(line_start=3, line_end=9), "https://h/a.html#top"),
        ("https://h/a.html?x=1", Location(anchor="é#<"), "https://h/a.html?x=1#%C3%A9%23%3C"),
        ("http://[no address", Location(line_start=3, line_end=9), None),
        ("https://h/a.pdf", Location(line_start=3, line_end=9, page=4), "https://h/a.pdf#page=4"),
        ("https://h/a.pdf", Location(line_start=3, line_end=9), "https://h/a.pdf"),
        ("https://h/manual", Location(line_start=3, line_end=9, page=4), "https://h/manual#page=4"),
        ("https://h/manual", Location(line_start=3, line_end=9), "https://h/manual"),
        ("src/a.py", Location(line_start=3, line_end=9, page=4), "src/a.py#L3-L9"),
        ("a.md", Location(line_start=3, line_end=9, page=4), "a.md#L3-L9"),
        ("logs/a.txt", Location(line_start=3, line_end=9), "logs/a.txt#L3-L9"),
        ("src/a.py#main", Location(line_start=3, line_end=9), "src/a.py#main"),
        ("my notes/a.md", Location(line_start=3), "my notes/a.md#L3"),
        ("file:///srv/a.md", Location(line_start=3), "file:///srv/a.md#L3"),
        ("javascript:alert(1)//a.py", Location(line_start=3), None),
        ("\x01 JavaScript:alert(1)", Location(), None),
        ("java\nscript:alert(1)", Location(), None),
        ("data:text/html,<p>a.html", Location(anchor="a"), None),
        ("https://me:secret@h/a.py", Location(line_start=3), "https://h/a.py#L3"),
        ("//me@h/a.html?x=a@b#c", Location(), "//h/a.html?x=a@b#c"),
    ],
)
def test_a_place_in_a_source_is_an_address_to_open(source_uri, location, opened):
    assert openable(SourceMetadata("p", source_uri=source_uri), location) == opened


def test_a_section_is_its_headings_in_one_line():
    assert section_of(Location(("Guide", "Use"))) == "Guide > Use"
    assert section_of(Location(line_start=1)) is None
