"""The registry page: `python -m dats_common.telemetry --write` writes docs/metrics.md; without it, compares."""

from __future__ import annotations

import sys
from pathlib import Path

from dats_common.telemetry.page import page

PAGE = Path("docs/metrics.md")


def main() -> int:
    """0 when the page is written or up to date, else 1."""
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page():
        return 0
    sys.stderr.write(f"{PAGE} is out of date: run `python -m dats_common.telemetry --write`\n")
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
