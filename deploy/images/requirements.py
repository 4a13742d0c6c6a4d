"""The packages of one of our extras, those of the extras that it contains included: one a line, for pip."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

OWN_EXTRA = re.compile(r"dats-rag\[(?P<extra>[a-z]+)\]")


def requirements(project: dict[str, object], extra: str) -> list[str]:
    """Raises: KeyError: there is no such extra."""
    of_extras: dict[str, list[str]] = project["optional-dependencies"]  # type: ignore[assignment]
    found = []
    for requirement in of_extras[extra]:
        inner = OWN_EXTRA.fullmatch(requirement)
        found += requirements(project, inner["extra"]) if inner else [requirement]
    return found


if __name__ == "__main__":
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    sys.stdout.write("".join(f"{line}\n" for line in [*project["dependencies"], *requirements(project, sys.argv[1])]))
