"""What a dashboard is made of, and its JSON as Grafana 11 and later read it from a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["timeseries", "stat", "bargauge", "heatmap", "state-timeline"]

RUNBOOK = "docs/runbook.md"
"""The default of each board's variable `runbook`: set it to where the documentation is served."""

HERE = 'job=~"$job", instance=~"$instance"'
"""The choice made at the head of a dashboard, as matchers."""

_COLUMNS = 24
_SCHEMA_VERSION = 39  # Grafana 11.0; later ones migrate it themselves
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_GREEN, _ORANGE, _RED = "green", "orange", "red"


@dataclass(frozen=True, slots=True)
class Query:
    """One expression of PromQL.

    Attributes:
        legend: how its series are called; labels as `{{mode}}`.
        exemplars: show single requests with their traces beside the line.
    """

    expr: str
    legend: str = ""
    exemplars: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """Where a value turns orange and red; `high` means that it is bad above, else below."""

    warn: float | None = None
    bad: float | None = None
    high: bool = True

    def steps(self) -> list[dict[str, Any]]:
        """As Grafana wants them: ascending, the first without a value."""
        if self.high:
            marks: list[tuple[str, float | None]] = [(_ORANGE, self.warn), (_RED, self.bad)]
            return [{"color": _GREEN, "value": None}, *_marked(marks)]
        marks = [(_ORANGE, self.bad), (_GREEN, self.warn)]
        return [{"color": _RED, "value": None}, *_marked(marks)]


def _marked(marks: Sequence[tuple[str, float | None]]) -> list[dict[str, Any]]:
    return [{"color": color, "value": value} for color, value in marks if value is not None]


@dataclass(frozen=True, slots=True)
class Panel:
    """A picture of some queries.

    Attributes:
        means: what one sees, and when it is trouble.
        unit: by Grafana's names: s, reqps, percentunit, bytes, short.
        width: of 24 columns.
        alert: whose heading of the runbook it leads to.
        only_with: the server that it needs and that a fleet on embedded engines does not have.
        words: what numbers are called, for states.
    """

    title: str
    means: str
    queries: Sequence[Query]
    unit: str = "short"
    kind: Kind = "timeseries"
    limits: Limits = Limits()
    width: int = 8
    height: int = 7
    alert: str = ""
    only_with: str = ""
    stacked: bool = False
    words: Sequence[tuple[float, str, str]] = ()

    def as_json(self, *, number: int, x: int, y: int) -> dict[str, Any]:
        """The panel at its place."""
        only = f"Only with {self.only_with}. " if self.only_with else ""
        defaults: dict[str, Any] = {
            "unit": self.unit,
            "thresholds": {"mode": "absolute", "steps": self.limits.steps()},
            "mappings": [_mapping(self.words)] if self.words else [],
        }
        if self.kind == "timeseries":
            defaults["custom"] = self._drawing()
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": only + self.means,
            "datasource": _SOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "targets": [_target(query, place, self.kind) for place, query in enumerate(self.queries)],
            "fieldConfig": {"defaults": defaults, "overrides": []},
            "options": _OPTIONS[self.kind],
            "links": [_runbook(self.alert)] if self.alert else [],
        }

    def _drawing(self) -> dict[str, Any]:
        has_limits = self.limits.warn is not None or self.limits.bad is not None
        return {
            "lineWidth": 2 if not self.stacked else 1,
            "fillOpacity": 40 if self.stacked else 8,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if self.stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "dashed" if has_limits else "off"},
        }


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading, from left to right."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard. Its uid is `dats-rag-` and its name."""

    name: str
    title: str
    means: str
    rows: Sequence[Row]
    jobs: str = "rag-.*"
    tags: Sequence[str] = field(default=("dats-rag",))

    @property
    def panels(self) -> list[Panel]:
        """All of them, in their order."""
        return [panel for row in self.rows for panel in row.panels]

    def as_json(self) -> dict[str, Any]:
        """The whole file."""
        return {
            "uid": f"dats-rag-{self.name}",
            "title": self.title,
            "description": self.means,
            "tags": list(self.tags),
            "schemaVersion": _SCHEMA_VERSION,
            "editable": False,
            "graphTooltip": 1,
            "timezone": "browser",
            "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"},
            "templating": {"list": _variables(self.jobs)},
            "annotations": {"list": [_alerts_as_marks()]},
            "links": [_other_boards()],
            "panels": self._placed(),
        }

    def _placed(self) -> list[dict[str, Any]]:
        placed: list[dict[str, Any]] = []
        y = 0
        for row in self.rows:
            grid = {"x": 0, "y": y, "w": _COLUMNS, "h": 1}
            head = {"id": len(placed) + 1, "type": "row", "title": row.title, "collapsed": False, "gridPos": grid}
            placed.append({**head, "panels": []})
            x, y, tallest = 0, y + 1, 0
            for panel in row.panels:
                if x + panel.width > _COLUMNS:
                    x, y, tallest = 0, y + tallest, 0
                placed.append(panel.as_json(number=len(placed) + 1, x=x, y=y))
                x, tallest = x + panel.width, max(tallest, panel.height)
            y += tallest
        return placed


# ------------------------------------------------------------------------------------------------ what is asked often


def rate(metric: str, *, by: str = "", where: str = "", legend: str = "") -> Query:
    """A counter's pace in events per second, of the chosen processes together or by a label."""
    matchers = ", ".join(filter(None, (HERE, where)))
    names = legend or ", ".join(f"{{{{{label.strip()}}}}}" for label in by.split(",") if label.strip())
    return Query(f"sum{f' by ({by})' if by else ''} (rate({metric}{{{matchers}}}[$__rate_interval]))", names or metric)


def quantile(metric: str, share: float, *, by: str = "", legend: str = "", exemplars: bool = False) -> Query:
    """A quantile of a histogram (its name without `_bucket`)."""
    labels = f"{by}, le" if by else "le"
    inner = f"sum by ({labels}) (rate({metric}_bucket{{{HERE}}}[$__rate_interval]))"
    return Query(f"histogram_quantile({share:g}, {inner})", legend or f"p{round(100 * share)}", exemplars)


def quantiles(metric: str) -> list[Query]:
    """p50, p95 and p99, with exemplars."""
    return [quantile(metric, share, exemplars=True) for share in (0.5, 0.95, 0.99)]


def mean(metric: str, *, by: str = "", legend: str = "mean") -> Query:
    """The mean of a histogram or summary's observations."""
    over = f" by ({by})" if by else ""
    total, count = (f"sum{over} (rate({metric}_{part}{{{HERE}}}[$__rate_interval]))" for part in ("sum", "count"))
    return Query(f"{total} / {count}", legend)


def gauge(metric: str, *, how: str = "max", by: str = "", where: str = "", legend: str = "") -> Query:
    """A gauge over the chosen processes: what all replicas tell alike is not added up."""
    matchers = ", ".join(filter(None, (HERE, where)))
    return Query(f"{how}{f' by ({by})' if by else ''} ({metric}{{{matchers}}})", legend or metric)


# --------------------------------------------------------------------------------------------------- Grafana's JSON


_LIST = {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}, "tooltip": {"mode": "multi"}}
_LAST = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
_OPTIONS: dict[Kind, dict[str, Any]] = {
    "timeseries": _LIST,
    "stat": {**_LAST, "colorMode": "background", "graphMode": "area", "textMode": "auto"},
    "bargauge": {**_LAST, "displayMode": "basic", "orientation": "horizontal"},
    "heatmap": {"calculate": False, "color": {"mode": "scheme", "scheme": "Blues"}, "yAxis": {"unit": "s"}},
    "state-timeline": {"showValue": "auto", "mergeValues": True, "rowHeight": 0.9},
}


def _target(query: Query, place: int, kind: Kind) -> dict[str, Any]:
    return {
        "refId": chr(ord("A") + place),
        "datasource": _SOURCE,
        "expr": query.expr,
        "legendFormat": query.legend or "__auto",
        "exemplar": query.exemplars,
        "format": "heatmap" if kind == "heatmap" else "time_series",
        "range": True,
        "instant": False,
    }


def _mapping(words: Sequence[tuple[float, str, str]]) -> dict[str, Any]:
    options = {
        f"{value:g}": {"text": text, "color": color, "index": place} for place, (value, text, color) in enumerate(words)
    }
    return {"type": "value", "options": options}


def _runbook(alert: str) -> dict[str, Any]:
    return {"title": f"Runbook: {alert}", "url": f"${{runbook}}#{alert.lower()}", "targetBlank": True}


def _variables(jobs: str) -> list[dict[str, Any]]:
    def of_labels(name: str, label: str, query: str) -> dict[str, Any]:
        return {
            "type": "query",
            "name": name,
            "label": label,
            "datasource": _SOURCE,
            "query": {"query": query, "refId": name},
            "refresh": 2,
            "includeAll": True,
            "multi": True,
            "allValue": ".+",
            "current": {"text": ["All"], "value": ["$__all"]},
            "sort": 1,
        }

    return [
        {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus"},
        of_labels("job", "Job", f'label_values(up{{job=~"{jobs}"}}, job)'),
        of_labels("instance", "Instance", 'label_values(up{job=~"$job"}, instance)'),
        {
            "type": "textbox",
            "name": "runbook",
            "label": "Runbook",
            "query": RUNBOOK,
            "current": {"text": RUNBOOK, "value": RUNBOOK},
        },
    ]


def _alerts_as_marks() -> dict[str, Any]:
    return {
        "name": "Alerts",
        "enable": True,
        "datasource": _SOURCE,
        "iconColor": _RED,
        "target": {"expr": 'ALERTS{alertname=~"DatsRag.*", alertstate="firing"}', "refId": "Alerts"},
        "titleFormat": "{{alertname}}",
        "step": "30s",
    }


def _other_boards() -> dict[str, Any]:
    return {"type": "dashboards", "title": "DATS RAG", "tags": ["dats-rag"], "asDropdown": True, "keepTime": True}
