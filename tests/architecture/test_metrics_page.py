"""docs/metrics.md is what processes declare."""

from __future__ import annotations

from pathlib import Path

from dats_common.telemetry.page import page

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_page_of_metrics_is_written_from_the_code() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m dats_common.telemetry --write`"
