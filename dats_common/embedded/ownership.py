"""Who owns a data directory of the embedded engine: DIR/engine.lock, held by one process, which writes there where it
listens. What a process that was killed has left there counts for nothing: the system took its lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dats_common.errors import ConfigurationError

_LOCK = "engine.lock"
_TRIES, _PAUSE_S = 5, 0.05
"""A look at who owns the directory takes the lock for a moment; a start must not take that for an owner."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """The lock in hand."""

    descriptor: int

    def publish(self, *, port: int | None) -> None:
        """Tell in the lock file who we are and where we listen."""
        text = json.dumps({"pid": os.getpid(), "port": port}).encode()
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, text, 0)


@contextlib.contextmanager
def owned(data_dir: Path) -> Iterator[Ownership]:
    """Be the only process that has this data directory open; two owners would destroy it.

    Raises: ConfigurationError: another process owns it, or it cannot be written to; says what to do.
    """
    path = data_dir / _LOCK
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigurationError(
            f"cannot write to the index directory {data_dir}: {error.strerror}. "
            "Give this user write access to it, or choose another directory with --data."
        ) from error
    try:
        for _ in range(_TRIES):
            if _takes(descriptor, fcntl.LOCK_EX):
                break
            time.sleep(_PAUSE_S)
        else:
            raise ConfigurationError(_taken(data_dir, path))
        ownership = Ownership(descriptor)
        ownership.publish(port=None)
        try:
            yield ownership
        finally:
            os.ftruncate(descriptor, 0)  # Nobody is to call on a port that has been given back.
    finally:
        os.close(descriptor)


def served_port(data_dir: Path) -> int | None:
    """Where the engine that owns the directory listens; None: there is none, or it does not listen yet."""
    try:
        with (data_dir / _LOCK).open() as file:
            if _takes(file.fileno(), fcntl.LOCK_SH):
                return None
            return int(json.load(file)["port"] or 0) or None
    except (OSError, ValueError, KeyError):
        return None


def _takes(descriptor: int, lock: int) -> bool:
    """Take the lock unless somebody holds it; it is given back with the descriptor."""
    try:
        fcntl.flock(descriptor, lock | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _taken(data_dir: Path, lock: Path) -> str:
    try:
        holder = json.loads(lock.read_text())
    except (OSError, ValueError):
        holder = {}
    pid, port = holder.get("pid", "unknown"), holder.get("port") or "not open yet"
    return (
        f"the index directory {data_dir} is in use by the engine with pid {pid} (port {port}). "
        f"Stop that process, or use its index with QDRANT_HOST=127.0.0.1 and QDRANT_GRPC_PORT={port}, "
        "or choose another directory with --data."
    )
