"""The reliability diagram and the bars of a ranking, as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from services.evaluate.figures import Bin

_SIZE, _MARGIN = 320, 40


def reliability_svg(bins: Sequence[Bin], *, title: str) -> str:
    """Confidence to the right, share that was right upwards; a circle's area grows with its count. The diagonal is
    what a perfect confidence would give."""
    total = max(1, sum(each.count for each in bins))
    side = _SIZE + 2 * _MARGIN
    circles = "".join(
        f'<circle cx="{_x(each.predicted):.1f}" cy="{_y(each.right):.1f}"'
        f' r="{3 + 22 * (each.count / total) ** 0.5:.1f}" fill="#4a78c2" fill-opacity="0.7">'
        f"<title>{each.count} answers</title></circle>"
        for each in bins
    )
    ticks = "".join(
        f'<text x="{_x(step / 5):.1f}" y="{_y(0) + 16:.1f}" text-anchor="middle">{step / 5:.1f}</text>'
        f'<text x="{_x(0) - 8:.1f}" y="{_y(step / 5) + 4:.1f}" text-anchor="end">{step / 5:.1f}</text>'
        for step in range(6)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{side}" height="{side}" font-family="sans-serif"'
        ' font-size="11">'
        f'<rect width="{side}" height="{side}" fill="white"/>'
        f'<text x="{side / 2}" y="20" text-anchor="middle" font-size="13">{escape(title)}</text>'
        f'<rect x="{_MARGIN}" y="{_MARGIN}" width="{_SIZE}" height="{_SIZE}" fill="none" stroke="#999"/>'
        f'<line x1="{_x(0)}" y1="{_y(0)}" x2="{_x(1)}" y2="{_y(1)}" stroke="#999" stroke-dasharray="4"/>'
        f"{circles}{ticks}"
        f'<text x="{side / 2}" y="{side - 6}" text-anchor="middle">confidence</text></svg>\n'
    )


def _x(share: float) -> float:
    return _MARGIN + share * _SIZE


def _y(share: float) -> float:
    return _MARGIN + (1 - share) * _SIZE


_BAR, _GAP, _BARS_HIGH = 26, 22, 200
_COLOURS = ("#4a78c2", "#c2924a", "#6aa84f", "#8e6bb0")


def ranking_svg(figures: Mapping[str, Mapping[str, float]], *, title: str) -> str:
    """A group of bars for each set, a bar for each of its modes, from 0 to 1."""
    modes = list(dict.fromkeys(mode for each in figures.values() for mode in each))
    colours = {mode: _COLOURS[number % len(_COLOURS)] for number, mode in enumerate(modes)}
    group = _BAR * len(modes) + _GAP
    width, height = 2 * _MARGIN + max(_SIZE, group * len(figures)), _BARS_HIGH + 3 * _MARGIN
    floor = _MARGIN + _BARS_HIGH
    drawn = []
    for number, (name, each) in enumerate(figures.items()):
        left = _MARGIN + _GAP / 2 + number * group
        drawn.append(f'<text x="{left}" y="{floor + 16}">{escape(name)}</text>')
        for place, mode in enumerate(mode for mode in modes if mode in each):
            x, tall = left + place * _BAR, each[mode] * _BARS_HIGH
            drawn.append(
                f'<rect class="bar" x="{x:.1f}" y="{floor - tall:.1f}" width="{_BAR - 2}" height="{tall:.1f}"'
                f' fill="{colours[mode]}"><title>{escape(name)} {escape(mode)}</title></rect>'
                f'<text x="{x + _BAR / 2 - 1:.1f}" y="{floor - tall - 4:.1f}" text-anchor="middle" font-size="9">'
                f"{each[mode]:.3f}</text>"
            )
    legend = "".join(
        f'<rect x="{_MARGIN + number * 90}" y="{floor + 34}" width="12" height="12" fill="{colours[mode]}"/>'
        f'<text x="{_MARGIN + number * 90 + 18}" y="{floor + 44}">{escape(mode)}</text>'
        for number, mode in enumerate(modes)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif"'
        f' font-size="11"><rect width="{width}" height="{height}" fill="white"/>'
        f'<text x="{width / 2}" y="20" text-anchor="middle" font-size="13">{escape(title)}</text>'
        f'<line x1="{_MARGIN}" y1="{floor}" x2="{width - _MARGIN}" y2="{floor}" stroke="#999"/>'
        f"{''.join(drawn)}{legend}</svg>\n"
    )
