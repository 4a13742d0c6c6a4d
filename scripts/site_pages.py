"""What the site has besides docs/: README.md as its home page, and CHANGELOG.md. MkDocs calls these by their names."""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
_PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The files with those of the repository's root, whose links lead into docs/."""
    for name, page in _PAGES.items():
        files.append(File.generated(config, page, content=_moved((ROOT / name).read_text(encoding="utf-8"))))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """A page of docs/ whose links to the pages of the root lead into the site."""
    for name, moved in _PAGES.items():
        markdown = markdown.replace(f"../{name}", moved)
    return markdown


def _moved(text: str) -> str:
    text = text.replace("](docs/", "](")
    for name, page in _PAGES.items():
        text = text.replace(f"]({name}", f"]({page}")
    return text
