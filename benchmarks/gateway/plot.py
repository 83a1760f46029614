"""The table as a plot: one panel of bars for each row, an SVG without any library."""

from collections.abc import Sequence
from html import escape
from typing import Final

from benchmarks.gateway.gateways import GATEWAYS
from benchmarks.gateway.rows import Verdict

_COLUMNS: Final = 3
_WIDTH, _BAR, _LABEL, _MARGIN = 330, 18, 92, 16
_COLOURS: Final = {
    "pdx": "#2563eb",
    "pdx-2": "#60a5fa",
    "vllm-router": "#d97706",
    "sglang-router": "#b45309",
    "nginx": "#6b7280",
}


def svg(verdicts: Sequence[Verdict], caption: str) -> str:
    """All rows that at least two gateways have."""
    panels = [verdict for verdict in verdicts if len(set(verdict.cells) & set(_COLOURS)) > 1]
    height = 48 + len(_COLOURS) * (_BAR + 4)
    lines = (len(panels) + _COLUMNS - 1) // _COLUMNS
    whole = (_COLUMNS * (_WIDTH + _MARGIN) + _MARGIN, lines * height + 44)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole[0]} {whole[1]}" font-family="sans-serif">',
        f'<rect width="{whole[0]}" height="{whole[1]}" fill="white"/>',
        f'<text x="{_MARGIN}" y="24" font-size="13" fill="#374151">{escape(caption)}</text>',
    ]
    for index, verdict in enumerate(panels):
        x = _MARGIN + index % _COLUMNS * (_WIDTH + _MARGIN)
        parts += _panel(verdict, x, 40 + index // _COLUMNS * height)
    return "\n".join([*parts, "</svg>", ""])


def _panel(verdict: Verdict, x: int, y: int) -> list[str]:
    row = verdict.row
    better = "more is better" if row.more else "less is better"
    title = f"{row.title.split(' (')[0]}{f', {row.unit}' if row.unit else ''}"
    parts = [
        f'<text x="{x}" y="{y + 12}" font-size="11" font-weight="bold" fill="#111827">{escape(title)}</text>',
        f'<text x="{x}" y="{y + 25}" font-size="9" fill="#6b7280">{better}</text>',
    ]
    names = [gateway.name for gateway in GATEWAYS if gateway.name in verdict.cells and gateway.name in _COLOURS]
    most = max(max(verdict.cells[name].values) for name in names) or 1
    room = _WIDTH - _LABEL - 62
    for index, name in enumerate(names):
        cell, top = verdict.cells[name], y + 32 + index * (_BAR + 4)
        ends = [_LABEL + x + room * max(value, 0) / most for value in (cell.median, min(cell.values), max(cell.values))]
        middle = top + _BAR / 2
        parts += [
            f'<text x="{x + _LABEL - 6}" y="{middle + 4}" font-size="11" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{x + _LABEL}" y="{top}" width="{ends[0] - x - _LABEL:.1f}" height="{_BAR}" '
            f'fill="{_COLOURS[name]}"/>',
            f'<path d="M{ends[1]:.1f} {middle}H{ends[2]:.1f}" stroke="#111827"/>',
            f'<text x="{ends[2] + 5:.1f}" y="{middle + 4}" font-size="11">{cell.median:,.{row.digits}f}</text>',
        ]
    return parts
