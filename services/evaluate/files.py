"""The files of evaluation sets: gzipped JSON lines and tables. What is wrong with one is said with file and line."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dats_common.errors import ConfigurationError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Record:
    """One line of a file of JSON lines.

    Attributes:
        where: file and line, for people.
    """

    where: str
    fields: Mapping[str, Any]

    def text(self, name: str, *, default: str | None = None) -> str:
        """Raises: ConfigurationError: it is no string, or missing and without a default."""
        found = self.of(name, str, default=default)
        if default is None and not found.strip():
            raise ConfigurationError(f"{self.where}: {name!r} is blank")
        return found

    def of(self, name: str, kind: type[T], *, default: T | None = None) -> T:
        """Raises: ConfigurationError: another kind, or missing and without a default."""
        found = self.fields.get(name, default)
        if not isinstance(found, kind):
            problem = "is missing" if found is None else f"is no {kind.__name__}"
            raise ConfigurationError(f"{self.where}: {name!r} {problem}")
        return found


def json_lines(file: Path) -> Iterator[Record]:
    """The records of a gzipped file, blank lines left out. Raises: ConfigurationError: it cannot be read."""
    for number, line in _lines(file, _unpacked(file)):
        where = f"{file}, line {number}"
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise ConfigurationError(f"{where}: no JSON: {error}") from error
        if not isinstance(fields, dict):
            raise ConfigurationError(f"{where}: no JSON object")
        yield Record(where, fields)


def table(file: Path, columns: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(file and line, cells) of each row of a tab-separated file whose first line names the columns.

    Raises: ConfigurationError: it cannot be read, or has other columns.
    """
    rows = _lines(file, _read(file))
    _, header = next(rows, (1, ""))
    if tuple(header.split("\t")) != columns:
        raise ConfigurationError(f"{file}, line 1: the columns {', '.join(columns)} are needed, between tabs")
    for number, line in rows:
        cells = tuple(line.split("\t"))
        if len(cells) != len(columns):
            raise ConfigurationError(f"{file}, line {number}: {len(cells)} columns instead of {len(columns)}")
        yield f"{file}, line {number}", cells


def fingerprint(files: Iterable[Path]) -> str:
    """Of what the files hold, unpacked: how they were packed does not matter."""
    digest = hashlib.sha256()
    for file in files:
        content = _unpacked(file) if file.suffix == ".gz" else _read(file)
        digest.update(f"{file.name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def _lines(file: Path, content: bytes) -> Iterator[tuple[int, str]]:
    """Numbered from 1, blank ones left out. Not split at all that Unicode calls the end of a line: JSON may hold such
    characters within a string."""
    for number, raw in enumerate(content.split(b"\n"), start=1):
        try:
            line = raw.decode("utf-8").rstrip("\r")
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{file}, line {number}: no UTF-8") from error
        if line.strip():
            yield number, line


def _unpacked(file: Path) -> bytes:
    try:
        return gzip.decompress(_read(file))
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigurationError(f"{file} cannot be unpacked: {error}") from error


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from error
