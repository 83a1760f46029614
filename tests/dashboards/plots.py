"""A dashboard's main panels as an SVG without any library: lines over the acts of a scene."""

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from scripts.dashboards.model import Unit
from tests.dashboards.server import Series
from tests.dashboards.survey import Finding

_COLUMNS: Final = 2
_WIDTH, _HEIGHT, _LEFT, _GAP, _HEAD, _LINE = 430, 130, 52, 24, 26, 13
_COLOURS: Final = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#6b7280", "#0891b2", "#b45309")
_MOST_LINES: Final = 8

Acts = Sequence[tuple[str, float, float]]
"""Name, begin and end in Unix seconds."""


def svg(findings: Sequence[Finding], acts: Acts) -> str:
    """The plotted panels of one dashboard."""
    titles = list(dict.fromkeys(f.panel.title for f in findings if f.panel.plotted))
    panels = [[f for f in findings if f.panel.title == title] for title in titles]
    room = _HEAD + _HEIGHT + 18 + _LINE * _MOST_LINES // 2 + _GAP
    size = (_COLUMNS * (_LEFT + _WIDTH + _GAP), 34 + room * ((len(panels) + _COLUMNS - 1) // _COLUMNS))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" font-family="sans-serif">',
        f'<rect width="{size[0]}" height="{size[1]}" fill="white"/>',
        f'<text x="8" y="20" font-size="13" fill="#374151">{escape(findings[0].board.question)}</text>',
    ]
    for index, panel in enumerate(panels):
        x = _LEFT + index % _COLUMNS * (_LEFT + _WIDTH + _GAP)
        parts += _panel(panel, acts, x, 34 + index // _COLUMNS * room)
    return "\n".join([*parts, "</svg>", ""])


def legend(finding: Finding, series: Series) -> str:
    """A series' name, as Grafana fills it in."""
    return re.sub(r"{{(\w+)}}", lambda match: series.labels.get(match[1], ""), finding.query.legend)


def highest(series: Series) -> float:
    """Its greatest value."""
    return max(value for _, value in series.points)


def _panel(findings: Sequence[Finding], acts: Acts, x: int, y: int) -> list[str]:
    panel = findings[0].panel
    named = [(legend(finding, series), series) for finding in findings for series in finding.series]
    named = sorted(named, key=lambda pair: -highest(pair[1]))[:_MOST_LINES]
    named = [pair for pair in named if highest(pair[1]) > 0] or named[:1]
    most = max((highest(series) for _, series in named), default=0) or 1
    begin, end = acts[0][1], acts[-1][2]
    top = y + _HEAD
    parts = [
        f'<text x="{x}" y="{y + 14}" font-size="12" font-weight="bold" fill="#111827">{escape(panel.title)}</text>'
    ]
    parts += _frame(acts, x, top, begin, end)
    for share in (0, 0.5, 1):
        height = top + _HEIGHT * (1 - share)
        parts.append(
            f'<text x="{x - 5}" y="{height + 3:.0f}" font-size="9" text-anchor="end" fill="#6b7280">'
            f"{shown(most * share, panel.unit)}</text>"
        )
    for index, (name, series) in enumerate(named):
        colour = _COLOURS[index]
        points = " ".join(
            f"{x + _WIDTH * (when - begin) / (end - begin):.1f},{top + _HEIGHT * (1 - value / most):.1f}"
            for when, value in series.points
            if begin <= when <= end
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        across, down = x + index % 2 * _WIDTH // 2, top + _HEIGHT + 28 + index // 2 * _LINE
        parts += [
            f'<rect x="{across}" y="{down - 7}" width="10" height="3" fill="{colour}"/>',
            f'<text x="{across + 14}" y="{down}" font-size="10" fill="#374151">{escape(name)}</text>',
        ]
    return parts


def _frame(acts: Acts, x: int, top: int, begin: float, end: float) -> Iterable[str]:
    for index, (name, first, last) in enumerate(acts):
        left, right = (x + _WIDTH * (when - begin) / (end - begin) for when in (first, last))
        if index % 2:
            yield f'<rect x="{left:.1f}" y="{top}" width="{right - left:.1f}" height="{_HEIGHT}" fill="#f3f4f6"/>'
        yield f'<text x="{left + 2:.1f}" y="{top + _HEIGHT + 12}" font-size="9" fill="#6b7280">{escape(name)}</text>'
    yield f'<path d="M{x} {top}V{top + _HEIGHT}H{x + _WIDTH}" fill="none" stroke="#9ca3af"/>'


def shown(value: float, unit: Unit) -> str:
    """A value of an axis."""
    match unit:
        case Unit.SHARE:
            return f"{value * 100:.0f} %"
        case Unit.SECONDS:
            return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
        case Unit.PER_SECOND | Unit.EVENTS:
            return f"{value:,.0f}/s" if value >= 10 or value == 0 else f"{value:.1f}/s"
        case _:
            return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"
