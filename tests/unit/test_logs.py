"""What a process writes to stderr: JSON lines with listed keys for machines, a readable form on a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

SPEAKS = """
import logging
from dats_common.telemetry.logs import configure_logs, log
from dats_common.trace_context import TraceContext, within_trace
import structlog
configure_logs(service="query")
with structlog.contextvars.bound_contextvars(request_id="r-1"), within_trace(TraceContext("a" * 32, "b" * 16, True)):
    log("query").info("answered", answer_id="a-1", event_id="e-1", query="secret")
    logging.getLogger("library").warning("went wrong: %s", 7)
    try:
        raise ValueError("in a library")
    except ValueError:
        logging.getLogger("library").exception("broke")
log("query").info("stopped")
"""


def test_for_machines_every_line_is_json_with_listed_keys_and_ids() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SPEAKS], capture_output=True, text=True, check=True, cwd=Path.cwd(), timeout=30
    )
    started, answered, warned, broke, stopped = map(json.loads, done.stderr.splitlines())
    assert started["event"] == "process_started"
    assert answered == {
        "event": "answered",
        "level": "info",
        "service": "query",
        "timestamp": answered["timestamp"],
        "answer_id": "a-1",
        "event_id": "e-1",
        "request_id": "r-1",
        "trace_id": "a" * 32,
        "span_id": "b" * 16,
    }
    assert (warned["event"], warned["level"], warned["component"]) == ("library_warned", "warning", "library")
    assert (warned["detail"], warned["trace_id"]) == ("went wrong: 7", "a" * 32)
    assert broke["detail"].startswith("broke\nTraceback")
    assert "trace_id" not in stopped
    assert "request_id" not in stopped


def test_on_a_terminal_a_person_can_read_it() -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    speaking = subprocess.Popen([sys.executable, "-c", SPEAKS], stderr=theirs, env=environment)
    os.close(theirs)
    read = b""
    try:
        while part := os.read(ours, 4096):
            read += part
    except OSError:
        pass  # how Linux says that the other end was closed
    finally:
        os.close(ours)
    assert speaking.wait(30) == 0
    lines = re.sub(r"\x1b\[[0-9;]*m", "", read.decode()).splitlines()
    (answered,) = [line for line in lines if "answered" in line]
    assert "answer_id=a-1" in answered
    assert not any(line.lstrip().startswith("{") for line in lines)
    assert "secret" not in read.decode()
