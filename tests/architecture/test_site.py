"""The pages as a site: built strictly, complete, self-contained, and read there as in the repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from justhtml import JustHTML
from markdown_it import MarkdownIt

from services.cli.pages import COMMAND, DOCS, pages

ROOT = Path(__file__).parents[2]
ROOT_PAGES = {"README.md": "index.html", "CHANGELOG.md": "changelog.html"}
BUILD_TIMEOUT_S = 60.0


def build(source: Path, site: Path) -> subprocess.CompletedProcess[str]:
    mkdocs = Path(sys.executable).parent / "mkdocs"  # not with --quiet: it drops warnings before they are counted
    return subprocess.run(
        [str(mkdocs), "build", "--config-file", str(source / "mkdocs.yml"), "--site-dir", str(site)],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does."""
    built = tmp_path_factory.mktemp("site")
    done = build(ROOT, built)
    assert done.returncode == 0, done.stdout
    return built


def html_of(page: Path) -> str:
    """Where the site has a page of the repository."""
    if page.parent == ROOT:
        return ROOT_PAGES[page.name]
    path = page.relative_to(ROOT / "docs")
    return str(path.with_name("index.html") if path.name == "README.md" else path.with_suffix(".html"))


SOURCES = sorted([*(ROOT / name for name in ROOT_PAGES), *ROOT.glob("docs/**/*.md")])


def test_the_site_has_every_page_and_every_file_that_pages_link_to(site: Path) -> None:
    wanted = {html_of(page) for page in SOURCES[2:]} | {
        str(file.relative_to(ROOT / "docs"))
        for file in ROOT.glob("docs/**/*")
        if file.suffix in {".json", ".svg", ".png"}
    }
    assert {name for name in wanted if not (site / name).is_file()} == set()


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loaded = []
    for file in site.rglob("*.html"):
        document = JustHTML(file.read_text(encoding="utf-8"), sanitize=False)
        for selector, attribute in (("script[src]", "src"), ("img[src]", "src"), ("link[href]", "href")):
            loaded += [element.attrs[attribute] for element in document.query(selector)]
    for file in site.rglob("*.css"):
        loaded += re.findall(r"(?:@import\s+|url\()[\"']?([^\"')\s]+)", file.read_text(encoding="utf-8"))
    assert loaded
    assert [address for address in loaded if re.match(r"(?:https?:)?//", address)] == []


def shape(html: str, selector: str) -> Counter[str]:
    """How many of each kind of block there are below `selector`."""
    kinds = ("h1", "h2", "h3", "h4", "li", "table", "td", "pre", "img", "blockquote")
    document = JustHTML(html, sanitize=False)
    return Counter({kind: found for kind in kinds if (found := len(document.query(f"{selector} {kind}")))})


@pytest.mark.parametrize("page", SOURCES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_reads_on_the_site_as_in_the_repository(page: Path, site: Path) -> None:
    """Two dialects of Markdown: a list right below a paragraph is run-on text on the site alone."""
    rendered = MarkdownIt("commonmark", {"html": True}).enable("table").render(page.read_text(encoding="utf-8"))
    shown = (site / html_of(page)).read_text(encoding="utf-8")
    assert shape(shown, "article")["h1"] == 1
    assert shape(shown, "article") == shape(f"<article>{rendered}</article>", "article")


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        ("[here](brewing.md)", "brewing.md"),
        ("[here](concepts.md#brewing)", "#brewing"),
        ("![cup](cup.svg)", "cup.svg"),
        ("[here](schemas)", "schemas"),
    ],
)
def test_a_link_that_leads_nowhere_fails_the_build(lie: str, said: str, tmp_path: Path) -> None:
    source = copied(tmp_path)
    with (source / "docs" / "concepts.md").open("a", encoding="utf-8") as page:
        page.write(f"\nSee {lie}.\n")
    done = build(source, tmp_path / "site")
    assert done.returncode != 0
    assert said in done.stdout


def test_a_page_that_is_not_in_the_navigation_fails_the_build(tmp_path: Path) -> None:
    source = copied(tmp_path)
    (source / "docs" / "brewing.md").write_text("# Brewing\n", encoding="utf-8")
    done = build(source, tmp_path / "site")
    assert done.returncode != 0
    assert "brewing.md" in done.stdout


def copied(directory: Path) -> Path:
    """What a build reads: small pages only, for the sake of time."""
    source = directory / "source"
    (source / "docs").mkdir(parents=True)
    (source / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "site_pages.py", source / "scripts")
    for name in ROOT_PAGES:
        (source / name).write_text("# Page\n", encoding="utf-8")
    (source / "docs" / "concepts.md").write_text("# Concepts\n", encoding="utf-8")
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    navigation = "nav:\n  - index.md\n  - concepts.md\n  - changelog.md\n"
    (source / "mkdocs.yml").write_text(settings[: settings.index("nav:\n  - ")] + navigation, encoding="utf-8")
    return source


@pytest.mark.parametrize("name", sorted(pages()))
def test_a_generated_page_is_up_to_date(name: str) -> None:
    assert (ROOT / DOCS / name).read_text(encoding="utf-8") == pages()[name], f"run `{COMMAND}`"
