"""The peers as bars, in SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from tests.bench.peers.table import COLUMNS, Column, Row, cell

SHOWN = (
    "documents_per_s",
    "query_p95_ms",
    "filtered_recall",
    "deleted_idle_ms",
    "deleted_busy_ms",
    "rss_mib",
)
_OURS, _THEIRS = "#c2574a", "#4a78c2"
_NAMES, _BAR, _VALUES, _LINE, _HEAD, _ACROSS = 185, 150, 125, 18, 34, 2
_LOGARITHMIC = ("deleted_idle_ms", "deleted_busy_ms", "query_p95_ms")
"""Times differ by a factor of thousands."""


def peers_svg(rows: Sequence[Row]) -> str:
    """A panel for each measure, a bar for each peer that has a value; ours in another colour."""
    shown = [column for key in SHOWN for column in COLUMNS if column.key == key]
    across, high = _NAMES + _BAR + _VALUES, _HEAD + _LINE * len(rows) + 14
    width, height = across * _ACROSS, high * math.ceil(len(shown) / _ACROSS)
    panels = "".join(
        f'<g transform="translate({place % _ACROSS * across} {place // _ACROSS * high})">{_panel(column, rows)}</g>'
        for place, column in enumerate(shown)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif"'
        f' font-size="11"><rect width="{width}" height="{height}" fill="white"/>{panels}</svg>\n'
    )


def _panel(column: Column, rows: Sequence[Row]) -> str:
    better = "more is better" if column.more_is_better else "less is better"
    scale = ", logarithmic" if column.key in _LOGARITHMIC else ""
    lines = [f'<text x="10" y="20" font-size="13">{escape(column.title)} ({better}{scale})</text>']
    values = [row.values.get(column.key) for row in rows]
    known = [value for value in values if value is not None]
    for place, (row, value) in enumerate(zip(rows, values, strict=True)):
        y = _HEAD + place * _LINE
        lines.append(f'<text x="{_NAMES - 6}" y="{y + 11}" text-anchor="end">{escape(row.title)}</text>')
        length = 0.0 if value is None else _BAR * _share(column, value, known)
        fill = _OURS if row.ours else _THEIRS
        lines.append(f'<rect x="{_NAMES}" y="{y}" width="{length:.1f}" height="{_LINE - 5}" fill="{fill}"/>')
        said = "no figures" if row.failed else cell(column, row)
        lines.append(f'<text x="{_NAMES + length + 5:.1f}" y="{y + 11}">{escape(said)}</text>')
    return "".join(lines)


def _share(column: Column, value: float, known: Sequence[float]) -> float:
    """Of the longest bar."""
    if column.key not in _LOGARITHMIC:
        return value / max(known) if max(known) else 0.0
    least, most = max(0.5, min(known) / 2), max(known)
    return max(0.02, math.log(max(value, least) / least) / math.log(most / least)) if most > least else 1.0
