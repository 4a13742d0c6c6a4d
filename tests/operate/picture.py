"""A dashboard as SVG, from a Prometheus's data: the panels of the JSON at their places, for the documentation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from tests.operate.boards import filled
from tests.operate.prometheus import Prometheus

_COLUMN, _LINE, _PAD = 50, 26, 8
_COLOURS = ("#4a78c2", "#c2924a", "#6aa84f", "#b05a9a", "#c0504d", "#4bacc6", "#7f7f7f")
_POINTS = 120

Drawn = Sequence[tuple[str, Sequence[tuple[float, float]]]]


async def board_svg(
    board: Mapping[str, Any], prometheus: Prometheus, *, start: float, end: float, rate_interval_s: int
) -> str:
    """Every panel from `start` to `end` (Unix time); states and single values show what was last."""
    parts = []
    for panel in board["panels"]:
        if panel["type"] == "row":
            parts.append(_heading(panel))
            continue
        series: list[tuple[str, Sequence[tuple[float, float]]]] = []
        for target in panel["targets"]:
            expr = filled(target["expr"], rate_interval_s)
            step_s = max(1.0, (end - start) / _POINTS)
            for labels, samples in await prometheus.range(expr, start=start, end=end, step_s=step_s):
                series.append((_legend(target["legendFormat"], labels), samples))
        parts.append(_panel(panel, series, start=start, end=end))
    width = 24 * _COLUMN
    height = _LINE * max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"'
        f' font-size="10"><title>{escape(board["title"])}</title>'
        f'<rect width="{width}" height="{height}" fill="#f4f5f5"/>{"".join(parts)}</svg>\n'
    )


def _heading(panel: Mapping[str, Any]) -> str:
    y = panel["gridPos"]["y"] * _LINE + _LINE - 9
    return f'<text x="{_PAD}" y="{y}" font-size="12" font-weight="bold">{escape(panel["title"])}</text>'


def _panel(panel: Mapping[str, Any], series: Drawn, *, start: float, end: float) -> str:
    place = panel["gridPos"]
    x, y = place["x"] * _COLUMN + 3, place["y"] * _LINE + 3
    width, height = place["w"] * _COLUMN - 6, place["h"] * _LINE - 6
    unit = panel["fieldConfig"]["defaults"]["unit"]
    inside = (
        _lines(series, unit, width=width, height=height, start=start, end=end)
        if panel["type"] == "timeseries"
        else _last(panel, series, unit, width=width, height=height)
    )
    return (
        f'<g transform="translate({x},{y})"><rect width="{width}" height="{height}" fill="white" stroke="#ddd"/>'
        f'<text x="{_PAD}" y="15" font-weight="bold">{escape(panel["title"])}</text>{inside}</g>'
    )


def _lines(series: Drawn, unit: str, *, width: int, height: int, start: float, end: float) -> str:
    top = max((value for _, samples in series for _, value in samples if math.isfinite(value)), default=0.0) or 1.0
    left, right, floor, ceiling = 46, width - _PAD, height - 42, 26
    drawn = [
        f'<line x1="{left}" x2="{right}" y1="{at}" y2="{at}" stroke="#eee"/>'
        f'<text x="{left - 4}" y="{at + 3}" text-anchor="end" fill="#666">{shown(value, unit)}</text>'
        for at, value in ((floor, 0.0), ((floor + ceiling) / 2, top / 2), (ceiling, top))
    ]
    for number, (_, samples) in enumerate(series):
        points = " ".join(
            f"{left + (at - start) / (end - start) * (right - left):.1f},{floor - value / top * (floor - ceiling):.1f}"
            for at, value in samples
            if math.isfinite(value)
        )
        colour = _COLOURS[number % len(_COLOURS)]
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    return "".join(drawn) + _key([name for name, _ in series], width=width, y=height - 22)


def _key(names: Sequence[str], *, width: int, y: int) -> str:
    drawn, x, line = [], _PAD, 0
    for number, name in enumerate(names):
        needs = 16 + 5.6 * len(name)
        if x + needs > width and x > _PAD:
            x, line = _PAD, line + 1
        if line > 1:
            break
        colour = _COLOURS[number % len(_COLOURS)]
        drawn.append(
            f'<rect x="{x:.0f}" y="{y + 13 * line - 7}" width="8" height="8" fill="{colour}"/>'
            f'<text x="{x + 11:.0f}" y="{y + 13 * line}">{escape(name)}</text>'
        )
        x += needs
    return "".join(drawn)


def _last(panel: Mapping[str, Any], series: Drawn, unit: str, *, width: int, height: int) -> str:
    words = {value: each["text"] for mapping in panel["fieldConfig"]["defaults"]["mappings"]
             for value, each in mapping["options"].items()}  # fmt: skip
    lines = []
    for name, samples in series:
        value = samples[-1][1]
        lines.append((name, words.get(f"{value:g}", shown(value, unit))))
    if panel["type"] == "stat" and len(lines) == 1:
        [(name, value)] = lines
        said = name if panel["title"] == "Writer" else value
        return f'<text x="{width / 2}" y="{height / 2 + 14}" font-size="26" text-anchor="middle">{escape(said)}</text>'
    return "".join(
        f'<text x="{_PAD}" y="{36 + 15 * place}">{escape(name)}</text>'
        f'<text x="{width - _PAD}" y="{36 + 15 * place}" text-anchor="end">{escape(value)}</text>'
        for place, (name, value) in enumerate(lines)
    )


def shown(value: float, unit: str) -> str:
    """A value with its unit, short."""
    if not math.isfinite(value):
        return "none"
    match unit:
        case "s":
            return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.1f} s"
        case "percentunit":
            return f"{100 * value:.3g} %"
        case "bytes":
            return f"{value / 2**20:.0f} MiB" if value < 2**30 else f"{value / 2**30:.1f} GiB"
        case "reqps" | "ops":
            return f"{value:.3g}/s"
    return f"{value:.3g}"


def _legend(form: str, labels: Mapping[str, str]) -> str:
    for name, value in labels.items():
        form = form.replace(f"{{{{{name}}}}}", value)
    return form if form != "__auto" else ", ".join(labels.values())
