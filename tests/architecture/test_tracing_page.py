"""The page on traces says what the code tells: every attribute, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from dats_common.telemetry.tracing.attributes import ATTRIBUTES

ROOT = Path(__file__).resolve().parents[2]
TELLING = [*(ROOT / "dats_common/telemetry/tracing").glob("*.py"), ROOT / "services/query/tracing.py"]


def test_the_page_lists_every_attribute_with_its_meaning() -> None:
    page = (ROOT / "docs/tracing.md").read_text(encoding="utf-8")
    table = page.partition("| attribute | meaning |\n|---|---|\n")[2].partition("\n\n")[0]
    rows = [re.fullmatch(r"\| `([a-z_.]+)` \| (.+) \|", line) for line in table.splitlines()]
    assert [row.groups() for row in rows if row] == list(ATTRIBUTES.items())
    assert all(rows)


def test_what_is_told_is_listed_and_what_is_listed_is_told() -> None:
    """What is not listed would be left out without a word."""
    told = {
        name
        for path in TELLING
        if path.name != "attributes.py"
        for name in re.findall(
            r'"((?:http|rag|gen_ai|db|messaging|error)\.[a-z_.]+)": ', path.read_text(encoding="utf-8")
        )
    }
    assert told == ATTRIBUTES.keys()
