"""A child started with its parent's pipe stops when the parent ends, also after kill -9."""

from __future__ import annotations

import signal
import subprocess
import sys

CHILD = (
    "import sys, signal, threading; from services.lifeline import follow_parent; follow_parent(sys.argv[1:]); "
    "print('ready', flush=True); signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); threading.Event().wait(30)"
)


def test_a_child_stops_in_order_when_its_parent_is_gone() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, "--with-parent"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == b"ready\n"
        assert child.poll() is None
        child.stdin.close()  # what the kernel does when the parent is killed
        assert child.wait(timeout=20) in (7, -signal.SIGTERM)


def test_without_the_argument_the_end_of_stdin_means_nothing() -> None:
    code = (
        "import threading; from services.lifeline import follow_parent; "
        "follow_parent([]); print(threading.active_count())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=True
    )
    assert done.stdout == b"1\n"
