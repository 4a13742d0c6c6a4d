from itertools import pairwise

import pytest

from dats_common.domain.chunking.outline import NO_OUTLINE, Outline, Section
from dats_common.domain.chunking.packing import Limits
from dats_common.domain.chunking.profiles import Profile, limits_of, profile_of
from dats_common.domain.model import SourceMetadata
from tests.unit.chunks import cut, words


@pytest.mark.parametrize(
    ("said", "profile"),
    [
        ({}, Profile()),
        ({"domain": "docs", "title": "Caching"}, Profile()),
        ({"source_uri": "README.md"}, Profile("markdown")),
        ({"source_uri": "https://host/a/Page.HTML?x=1#y"}, Profile("html")),
        ({"source_uri": "https://host/a.py#L10"}, Profile("code", "python")),
        ({"source_uri": "src/App.tsx"}, Profile("code", "tsx")),
        ({"title": "fibonacci.py", "domain": "docs"}, Profile("code", "python")),
        ({"title": "What is new in a.py"}, Profile()),
        ({"source_id": "schema.sql"}, Profile("code", "sql")),
        ({"source_uri": "https://host/a/", "title": "a.md"}, Profile("markdown")),
        ({"domain": "code-python"}, Profile("code", "python")),
        ({"domain": "code/TypeScript"}, Profile("code", "typescript")),
        ({"domain": "code"}, Profile()),
        ({"domain": "code", "language": "Rust"}, Profile("code", "rust")),
        ({"domain": "encoder-python"}, Profile()),
        ({"language": "en"}, Profile()),
        ({"doc_type": "markdown"}, Profile("markdown")),
        ({"doc_type": "readme", "source_uri": "README.rst"}, Profile("markdown")),
        ({"source_type": "web_page"}, Profile("html")),
        ({"doc_type": "html", "domain": "code-python"}, Profile("html")),
        ({"source_uri": "notes.txt", "domain": "code-python"}, Profile()),
        ({"source_uri": ".project-spec.yaml"}, Profile(size="whole")),
        ({"source_type": "project_spec"}, Profile(size="whole")),
        ({"doc_type": "ADR"}, Profile("markdown", size="whole")),
        ({"source_uri": "docs/adr/0001-two-databases.md"}, Profile("markdown", size="whole")),
        ({"doc_type": "decision", "source_uri": "d.txt"}, Profile(size="whole")),
        ({"doc_type": "help_article", "source_uri": "https://help.host/a.html"}, Profile("html", size="article")),
        ({"doc_type": "help article"}, Profile(size="article")),
        ({"source_uri": "http://[broken"}, Profile()),
        ({"source_uri": "docs/My first guide.md"}, Profile("markdown")),
        ({"source_id": "my scripts/a b.py"}, Profile("code", "python")),
        ({"title": "Vue.js", "doc_type": "html"}, Profile("html")),
        ({"title": "Vue.js", "source_type": "markdown", "source_uri": "https://host/a"}, Profile("markdown")),
        ({"title": "notes.txt", "domain": "code-python"}, Profile()),
        ({"title": "page.html"}, Profile("html")),
        ({"source_uri": "https://host/wiki/Node.js", "doc_type": "html"}, Profile("html")),
        ({"source_uri": "https://host/wiki/Node.js", "source_type": "markdown"}, Profile("markdown")),
        ({"source_uri": "https://host/wiki/Node.js"}, Profile("code", "javascript")),
        ({"source_uri": "src/page.js", "doc_type": "html"}, Profile("code", "javascript")),
        ({"source_uri": "v1.2", "source_id": "example.com", "title": "a.md"}, Profile("markdown")),
        ({"source_uri": "https://host/example.com", "domain": "code-go"}, Profile("code", "go")),
        ({"domain": "code-go-to-market"}, Profile()),
        ({"domain": "code_Python"}, Profile("code", "python")),
        ({"domain": "barcode-python"}, Profile()),
    ],
)
def test_what_is_said_of_a_document_chooses_its_profile(said, profile):
    assert profile_of(SourceMetadata("p", **said)) == profile


def test_the_sizes_of_a_profile_keep_the_window():
    usual = Limits(500, 50)
    assert limits_of(Profile(), usual, window_tokens=8192) == usual
    assert limits_of(Profile(size="whole"), usual, window_tokens=8192) == Limits(8192, 50)
    assert limits_of(Profile(size="article"), usual, window_tokens=8192) == Limits(1200, 150, 800, 130)
    assert limits_of(Profile(size="article"), usual, window_tokens=254) == Limits(254, 31, 169, 27)


def test_a_decision_is_one_chunk_where_the_window_allows_it():
    text = "# Context\n\n" + "why " * 200 + "\n\n# Decision\n\n" + "what " * 200
    (only,) = cut(text, max_tokens=100, window_tokens=1000, doc_type="adr")
    assert only.text == text.strip()
    assert all(each.token_count <= 150 for each in cut(text, max_tokens=100, window_tokens=150, doc_type="adr"))
    assert len(cut(text, max_tokens=100, window_tokens=1000, doc_type="note")) > 4


def test_a_help_article_has_chunks_of_800_to_1200_tokens_that_overlap_by_about_150():
    text = "\n\n".join(f"## Step {n}\n\n" + "Click the button, then wait for it. " * (n % 9 + 3) for n in range(80))
    chunks = cut(text, max_tokens=500, window_tokens=8192, doc_type="help-article", source_uri="a.md")
    assert len(chunks) > 3
    assert all(800 <= each.token_count <= 1200 for each in chunks[:-1])
    for before, after in pairwise(chunks):
        assert 130 <= len(words(text[after.char_start : before.char_end])) <= 150
    assert all(each.text.startswith("## Step") or each.text[0].isupper() for each in chunks[1:])


def test_code_is_cut_by_the_definitions_that_were_found():
    text = "import os\n\ndef one():\n    return os.path\n\ndef two():\n    pass\n"

    def found(source, language):
        assert (source, language) == (text, "python")
        return Outline((Section(0, 0, ()), Section(11, 1, ("one",)), Section(42, 1, ("two",))))

    chunks = cut(text, max_tokens=9, source_uri="a.py", find_definitions=found)
    assert [(each.text, each.location.heading_path) for each in chunks] == [
        ("import os", ()),
        ("def one():\n    return os.path", ("one",)),
        ("def two():\n    pass", ("two",)),
    ]
    without = cut(text, max_tokens=9, source_uri="a.py", find_definitions=lambda *_: NO_OUTLINE)
    assert without == cut(text, max_tokens=9)


def test_a_parser_that_fails_leaves_the_text():
    def failing(source, language):
        raise RecursionError(language)

    text = "def one():\n    return 1\n\ndef two():\n    pass\n"
    assert cut(text, max_tokens=9, source_uri="a.py", find_definitions=failing) == cut(text, max_tokens=9)


def test_what_says_that_it_is_a_page_is_one_whatever_its_address():
    page = "<!doctype html><title>x</title><p>Node is a runtime."
    assert [each.text for each in cut(page, max_tokens=20, source_uri="https://host/wiki/Node.js")] == [
        "Node is a runtime."
    ]
