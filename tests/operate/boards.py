"""Grafana's files as Grafana reads them, down to the queries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GRAFANA = Path(__file__).parents[2] / "deploy" / "grafana"
DASHBOARDS = GRAFANA / "dashboards"
ONLY_WITH = "Only with "


@dataclass(frozen=True)
class Asked:
    """One query of one panel.

    Attributes:
        expr: with variables replaced by what Grafana takes for "All".
        server_only: the panel says that it needs a server that a fleet on embedded engines does not have.
    """

    board: str
    panel: str
    expr: str
    server_only: bool


def dashboards() -> dict[str, dict[str, Any]]:
    """Every file by its name."""
    return {path.name: json.loads(path.read_text()) for path in sorted(DASHBOARDS.glob("*.json"))}


def panels(board: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All but the headings."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def queries(*, rate_interval_s: int) -> list[Asked]:
    """Every query of every panel of every dashboard."""
    return [
        Asked(name, panel["title"], filled(target["expr"], rate_interval_s), ONLY_WITH in panel["description"])
        for name, board in dashboards().items()
        for panel in panels(board)
        for target in panel["targets"]
    ]


def filled(expr: str, rate_interval_s: int) -> str:
    """A query as Grafana sends it when everything is chosen."""
    whole = expr.replace("$__rate_interval", f"{rate_interval_s}s").replace("$job", ".+").replace("$instance", ".+")
    assert "$" not in whole, whole
    return whole
