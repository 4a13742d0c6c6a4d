"""Importing a module does nothing, and imports go one way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Everything that a module could do at import shows as an audit event of the interpreter.
IMPORT_ALL = """
import importlib, json, os, pkgutil, sys, threading

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
DEEDS = ("os.mkdir", "os.remove", "os.rename", "os.fork", "os.posix_spawn", "subprocess.Popen",
         "socket.__new__", "socket.bind", "socket.connect", "sqlite3.connect")
deeds, module = [], ""

def by_a_library():
    # What somebody else's module does when it is imported is not ours; what we call is.
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] in ("dats_common", "services"):
            return False
        if "importlib._bootstrap" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False

def watch(event, details):
    if event not in DEEDS and event != "open" or by_a_library():
        return
    if event == "open" and isinstance(details[2], int) and details[2] & WRITING and details[0] != os.devnull:
        deeds.append(f"{module}: writes {details[0]}")
    elif event in DEEDS:
        deeds.append(f"{module}: {event}")

start_thread = threading.Thread.start

def start(thread):
    if not by_a_library():
        deeds.append(f"{module}: starts a thread")
    start_thread(thread)

threading.Thread.start = start  # no audit event tells before Python 3.12
modules = sorted(found.name for name in ("dats_common", "services")
                 for found in pkgutil.walk_packages(importlib.import_module(name).__path__, name + "."))
environment = dict(os.environ)
sys.addaudithook(watch)
for module in modules:
    importlib.import_module(module)
    if dict(os.environ) != environment:
        deeds.append(f"{module}: changes the environment")
        environment = dict(os.environ)
print(json.dumps({"modules": modules, "deeds": deeds, "threads": [each.name for each in threading.enumerate()]}))
"""


def test_importing_any_module_starts_nothing_and_writes_nothing(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-B", "-c", IMPORT_ALL],
        cwd=tmp_path,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    seen = json.loads(ran.stdout.splitlines()[-1])
    assert {"dats_common.ports", "services.writer.__main__", "services.cli.commands"} <= set(seen["modules"])
    assert seen["deeds"] == []
    assert seen["threads"] == ["MainThread"]
    assert list(tmp_path.iterdir()) == []


def test_the_import_contracts_hold() -> None:
    command = Path(sys.executable).with_name("lint-imports")
    ran = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stdout
    assert " 0 broken" in ran.stdout
