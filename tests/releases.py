"""What was released before: its contracts, its schema, and its code from the repository's history.

`tests/released/` has a folder of frozen JSON schemas for each release and a list of them, the last one at the end.
`python -m tests.releases 0.2.0`, run when that version is tagged, adds to both.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
RELEASED = ROOT / "tests" / "released"
_LIST = RELEASED / "releases.json"
_GIT_TIMEOUT_S = 60.0


class ReleaseMissing(Exception):
    """The repository at hand does not have the release's code."""


@dataclass(frozen=True)
class Release:
    """One release: the tag `v{version}`, or where that is not at hand its commit; `schema` is its newest revision."""

    version: str
    commit: str
    schema: str

    @property
    def schemas(self) -> Path:
        return RELEASED / self.version


def releases() -> list[Release]:
    """All of them, the oldest first."""
    return [Release(**each) for each in json.loads(_LIST.read_text(encoding="utf-8"))]


def last_release() -> Release:
    return releases()[-1]


def check_out(release: Release, into: Path, *, repository: Path = ROOT) -> str:
    """Write the release's code below `into`; the name by which it was found. Raises: ReleaseMissing."""
    found = [name for name in (f"v{release.version}", release.commit) if _has(name, repository)]
    if not found:
        raise ReleaseMissing(
            f"neither the tag v{release.version} nor the commit {release.commit[:12]} is in this repository: a shallow "
            "clone, or no clone. `git fetch --unshallow --tags` brings them"
        )
    archive = into.with_suffix(".tar")
    _git(repository, "archive", "--output", str(archive), found[0], "dats_common", "services", "config")
    with tarfile.open(archive) as tar:
        tar.extractall(into, filter="data")
    archive.unlink()
    return found[0]


def _has(name: str, repository: Path) -> bool:
    return _git(repository, "cat-file", "-e", f"{name}^{{commit}}", check=False).returncode == 0


def _git(repository: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = ["git", "-C", str(repository), *arguments]
    return subprocess.run(command, check=check, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S)


def freeze(version: str, *, schema: str) -> Release:
    """Take down this state of the repository as a release."""
    release = Release(version, _git(ROOT, "rev-parse", "HEAD").stdout.strip(), schema)
    shutil.copytree(ROOT / "docs" / "schemas", release.schemas)
    _LIST.write_text(json.dumps([asdict(each) for each in [*releases(), release]], indent=2) + "\n", encoding="utf-8")
    return release


if __name__ == "__main__":
    from dats_common.adapters.sql.schema import newest_version

    print(freeze(sys.argv[1], schema=newest_version()))
