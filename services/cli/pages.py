"""Reference pages: `python -m services.cli.pages --write` writes docs/http-api.md and docs/cli.md, else compares."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from typer.main import get_command

from services.cli.cli_page import cli_page
from services.cli.commands import app
from services.query.http_page import http_page
from services.query.openapi import routed_app

DOCS = Path("docs")
COMMAND = "python -m services.cli.pages --write"


def pages() -> Mapping[str, str]:
    """Each generated page's text, by its name in docs/."""
    return {"http-api.md": http_page(routed_app().openapi()), "cli.md": cli_page(get_command(app))}


def main() -> int:
    """0 when the pages are written or up to date, else 1."""
    if "--write" in sys.argv[1:]:
        for name, text in pages().items():
            (DOCS / name).write_text(text, encoding="utf-8")
        return 0
    stale = [name for name, text in pages().items() if not _is(DOCS / name, text)]
    if stale:
        sys.stderr.write(f"{', '.join(stale)}: out of date; run `{COMMAND}`\n")
    return 1 if stale else 0


def _is(file: Path, text: str) -> bool:
    return file.is_file() and file.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    raise SystemExit(main())
