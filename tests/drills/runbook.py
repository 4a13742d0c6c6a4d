"""The runbook's own commands, so that what is drilled is what an operator types."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

RUNBOOK = Path(__file__).parents[2] / "docs" / "runbook.md"
BIN = Path(sys.executable).parent
COMMAND_TIMEOUT_S = 120.0


def commands_under(heading: str, *, number: int = 0) -> str:
    """The text of a fenced bash block in the section of this heading."""
    text = RUNBOOK.read_text(encoding="utf-8")
    section = re.split(rf"^#+ {re.escape(heading)}$", text, flags=re.MULTILINE)[1]
    section = re.split(r"^#{1,6} ", section, maxsplit=1, flags=re.MULTILINE)[0]
    blocks: list[str] = re.findall(r"^```bash\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL)
    return blocks[number]


def run_commands(
    text: str, *, directory: Path, environment: Mapping[str, str], status: int = 0
) -> subprocess.CompletedProcess[str]:
    """As in a terminal in `directory`, stopping at the first command that fails."""
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=directory,
        env={**environment, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == status, f"exit {ran.returncode}:\n{ran.stdout}\n{ran.stderr}"
    return ran


def headings() -> set[str]:
    """Of the runbook."""
    return set(re.findall(r"^#+ (.+)$", RUNBOOK.read_text(encoding="utf-8"), re.MULTILINE))
