"""The reliability diagram as SVG."""

from __future__ import annotations

from collections.abc import Sequence
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
