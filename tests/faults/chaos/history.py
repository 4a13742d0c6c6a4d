"""What was asked of the fleet and what it answered, as JSON lines: written while it runs, judged by another program.

Each operation has one line with `"ph": "invoke"` and one that ends it: `ok`, `fail` (it surely did nothing) or
`unknown` (it may have worked). What was seen and not asked for is `info`. `t` is one machine's monotonic clock.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

Record = dict[str, Any]


@dataclass
class Operation:
    """An operation that was begun. Ended once."""

    history: History
    number: int
    worker: str
    name: str
    phase: str = "invoke"

    def end(self, phase: str, **fields: Any) -> None:
        """`ok`, `fail` or `unknown`, with what came back."""
        self.phase = phase
        self.history.write(self.worker, self.name, phase, n=self.number, **fields)


@dataclass
class History:
    """An open history."""

    output: TextIO
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def begin(self, worker: str, name: str, **fields: Any) -> Operation:
        """Written before the operation starts: what is known of its begin is not later than it."""
        operation = Operation(self, next(self._numbers), worker, name)
        self.write(worker, name, "invoke", n=operation.number, **fields)
        return operation

    def note(self, worker: str, name: str, **fields: Any) -> None:
        """Something that happened or was heard."""
        self.write(worker, name, "info", **fields)

    def write(self, worker: str, name: str, phase: str, **fields: Any) -> None:
        record = {"t": round(time.monotonic(), 6), "w": worker, "op": name, "ph": phase, **fields}
        self.output.write(json.dumps(record, separators=(",", ":")) + "\n")


@contextmanager
def open_history(path: Path) -> Iterator[History]:
    """A new history; lines are on disk when it is closed."""
    with path.open("w", encoding="utf-8") as output:
        yield History(output)


def read_history(path: Path) -> Iterator[Record]:
    """Its records in the order in which they were written."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)
