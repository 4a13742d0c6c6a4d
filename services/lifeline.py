"""A child process that stops when its parent ends, however violently that was."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence

WITH_PARENT = "--with-parent"
"""The argument that says: stdin is a pipe whose other end the parent holds and never writes to."""


def follow_parent(arguments: Sequence[str]) -> None:
    """If asked to, stop in order (SIGTERM to ourselves) at the end of stdin: the kernel closes it with the parent."""
    if WITH_PARENT in arguments:
        threading.Thread(target=_wait, name="lifeline", daemon=True).start()


def _wait() -> None:
    # Not sys.stdin: a thread inside a buffered read holds a lock that the interpreter wants at its end.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
