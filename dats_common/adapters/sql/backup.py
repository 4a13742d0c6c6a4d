"""A copy of the ledger's SQLite file, taken while a fleet is at work. PostgreSQL has tools of its own for that."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from dats_common.errors import ConfigurationError, LedgerUnavailable


def copy_file(source: Path, target: Path, *, timeout_s: float) -> int:
    """Copy a ledger as of one moment, look whether the copy is whole, and return its size in bytes.

    Blocks; writers go on meanwhile. The target appears only when it is complete and would outlive a power cut.

    Raises: ConfigurationError: the target exists or cannot be written. LedgerUnavailable: the source cannot be read.
    """
    if not target.parent.is_dir():
        raise ConfigurationError(f"cannot write {target}: there is no such directory")
    if target.exists():
        raise ConfigurationError(f"{target} exists already; choose another name")
    part = target.with_name(f"{target.name}.part")
    try:
        part.unlink(missing_ok=True)
        _copy(source, part, timeout_s=timeout_s)
        with part.open("rb+") as written:
            os.fsync(written.fileno())
        part.rename(target)
        directory = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise ConfigurationError(f"cannot write {target}: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)
    return target.stat().st_size


def _copy(source: Path, part: Path, *, timeout_s: float) -> None:
    try:
        with (
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=rw", uri=True, timeout=timeout_s)) as ledger,
            closing(sqlite3.connect(part)) as copy,
        ):
            ledger.backup(copy)  # all pages in one read transaction: no writer makes it begin anew
            # The file is one file then, which may be moved about without its write-ahead log.
            copy.execute("PRAGMA journal_mode = DELETE")
            [(verdict,)] = copy.execute("PRAGMA integrity_check(1)").fetchall()
    except sqlite3.Error as error:
        raise LedgerUnavailable(f"copying the ledger: {error}") from error
    if verdict != "ok":
        raise LedgerUnavailable(f"the ledger is damaged: {verdict}; restore an older backup")
