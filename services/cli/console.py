"""How commands speak: tables and bars for people, one JSON document for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

# One word wraps badly at 80 columns when output is piped; a terminal's own width is kept.
_PIPED_WIDTH = 110


# Everything that could move the cursor, rename the window or hide a line; not tab and newline.
_CONTROLS = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code not in (9, 10)}


def visible(text: str) -> str:
    """What a document says, without what would command the terminal that it is shown on."""
    return text.translate(_CONTROLS)


class Voice:
    """Where a command's output goes."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        width = None if sys.stdout.isatty() else _PIPED_WIDTH
        self.console = Console(width=width, highlight=False)
        self._notes = Console(stderr=True, highlight=False, width=width)

    def say(self, text: str = "") -> None:
        """A line for people; silent in JSON mode."""
        if not self.as_json:
            self.console.print(visible(text), markup=False)

    def note(self, text: str) -> None:
        """A line on stderr, in both modes."""
        self._notes.print(visible(text), markup=False)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table for people; silent in JSON mode."""
        if self.as_json:
            return
        table = Table(title=Text(visible(title)), title_justify="left", expand=False)
        for column in columns:
            table.add_column(column, overflow="fold", no_wrap=column == "id")  # ids are there to be copied
        for row in rows:
            table.add_row(*(Text(visible(cell)) for cell in row))  # Text: what looks like markup is a document's
        self.console.print(table)

    def result(self, document: Mapping[str, Any] | Sequence[Any]) -> None:
        """The answer for machines; silent for people."""
        if self.as_json:
            sys.stdout.write(json.dumps(document, ensure_ascii=False, default=str) + "\n")

    @contextmanager
    def progress(self, label: str, total: int | None) -> Iterator[Bar]:
        """A bar on stderr, so that piped output stays clean."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._notes, transient=False) as progress:
            yield Bar(progress, label, total)


class Bar:
    """One line of progress."""

    def __init__(self, progress: Progress, label: str, total: int | None) -> None:
        self._progress = progress
        self._task = progress.add_task(label, total=total)

    def set(self, done: int, *, of: int | None = None) -> None:
        """So much is done, of so much if that is known only now."""
        self._progress.update(self._task, completed=done, total=of)
