"""One comparison as a plot: the share of requests within the SLO by load, an SVG without any library."""

from html import escape
from typing import Final

from benchmarks.goodput.measures import GOAL
from benchmarks.goodput.report import Comparison

_WIDTH, _HEIGHT, _LEFT, _TOP, _LEGEND = 560, 340, 56, 44, 220
_COLOURS: Final = (
    *("#2563eb", "#60a5fa", "#93c5fd", "#111827", "#6b7280", "#9ca3af"),
    *("#0ea5e9", "#d97706", "#f59e0b", "#059669", "#dc2626", "#a855f7"),
)
_LOWEST: Final = 0.4
"""Share at the lower edge."""


def svg(comparison: Comparison, caption: str) -> str:
    """All policies of one trace."""
    loads = comparison.loads
    low, high = min(loads), max(loads)

    def x(load: float) -> float:
        return _LEFT + (_WIDTH - _LEFT) * (load - low) / ((high - low) or 1.0)

    def y(share: float) -> float:
        return _TOP + (_HEIGHT - _TOP) * (1 - (max(share, _LOWEST) - _LOWEST) / (1 - _LOWEST))

    whole = (_WIDTH + _LEGEND + 24, _HEIGHT + 44)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole[0]} {whole[1]}" font-family="sans-serif">',
        f'<rect width="{whole[0]}" height="{whole[1]}" fill="white"/>',
        f'<text x="8" y="18" font-size="12" fill="#111827">{escape(caption)}</text>',
        f'<text x="8" y="{_TOP - 10}" font-size="10" fill="#6b7280">requests within the SLO, %</text>',
        f'<text x="{_WIDTH - 90}" y="{_HEIGHT + 36}" font-size="10" fill="#6b7280">load, of capacity</text>',
    ]
    for share in (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        colour = "#dc2626" if share == GOAL else "#e5e7eb"
        parts.append(f'<path d="M{_LEFT} {y(share):.1f}H{_WIDTH}" stroke="{colour}"/>')
        parts.append(
            f'<text x="{_LEFT - 8}" y="{y(share) + 4:.1f}" font-size="10" text-anchor="end">{100 * share:.0f}</text>'
        )
    parts += [
        f'<text x="{x(load):.1f}" y="{_HEIGHT + 18}" font-size="10" text-anchor="middle">{load:g}</text>'
        for load in loads
    ]
    for index, (name, found) in enumerate(comparison.curves.items()):
        points = " ".join(f"{x(load):.1f},{y(found[load].share):.1f}" for load in loads)
        colour, dash = _COLOURS[index % len(_COLOURS)], ' stroke-dasharray="5 3"' if "gateways" in name else ""
        top, width = _TOP + 16 * index, 1.5 if index else 3
        parts += [
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"{dash}/>',
            f'<path d="M{_WIDTH + 16} {top}h18" stroke="{colour}" stroke-width="3"{dash}/>',
            f'<text x="{_WIDTH + 40}" y="{top + 4}" font-size="11">{escape(name)}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])
