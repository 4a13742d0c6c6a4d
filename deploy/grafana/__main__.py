"""`python -m deploy.grafana`: write the dashboards' JSON, from the root of the checkout."""

from __future__ import annotations

import json
from pathlib import Path

from deploy.grafana.boards import BOARDS

DASHBOARDS = Path(__file__).parent / "dashboards"


def rendered() -> dict[str, str]:
    """Text of each file by its name."""
    return {f"{board.name}.json": json.dumps(board.as_json(), indent=1) + "\n" for board in BOARDS}


if __name__ == "__main__":
    for name, text in rendered().items():
        (DASHBOARDS / name).write_text(text, encoding="utf-8")
