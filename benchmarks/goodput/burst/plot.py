"""A run over time as an SVG: the requests that came in each second, and those that D's prefilled, by reason."""

from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import Final

from pdx_proxy.balancing.decode.placement import Place

_WIDTH, _HEIGHT, _LEFT, _TOP = 720, 220, 40, 40
_COLOURS: Final = {"requests": "#9ca3af", Place.SOONER: "#60a5fa", Place.BURST: "#dc2626"}
_NAMES: Final = {"requests": "requests", Place.SOONER: "sooner at D", Place.BURST: "bursts"}


def svg(
    came: Sequence[float],
    placed: Sequence[tuple[float, Place]],
    step: float,
    end: float,
    caption: str,
    bin_: float = 5.0,
) -> str:
    """Requests per second in bins; `step` is when the load falls."""
    series: dict[str | Place, Counter[int]] = {"requests": Counter(int(at / bin_) for at in came if at < end)}
    for why in (Place.SOONER, Place.BURST):
        series[why] = Counter(int(at / bin_) for at, each in placed if each is why and at < end)
    highest = max(max(counts.values(), default=0) for counts in series.values()) / bin_ or 1.0

    def x(at: float) -> float:
        return _LEFT + (_WIDTH - _LEFT) * at / end

    def y(rate: float) -> float:
        return _TOP + (_HEIGHT - _TOP) * (1 - rate / highest)

    width, height = _WIDTH + 140, _HEIGHT + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="8" y="16" font-size="12" fill="#111827">{escape(caption)}</text>',
        f'<text x="8" y="{_TOP - 8}" font-size="10" fill="#6b7280">per second</text>',
        f'<path d="M{x(step):.1f} {_TOP}V{_HEIGHT}" stroke="#111827" stroke-dasharray="4 3"/>',
    ]
    for share in (0.0, 0.5, 1.0):
        parts.append(f'<path d="M{_LEFT} {y(share * highest):.1f}H{_WIDTH}" stroke="#e5e7eb"/>')
        text = f"{share * highest:.1f}"
        parts.append(
            f'<text x="{_LEFT - 6}" y="{y(share * highest) + 4:.1f}" font-size="10" text-anchor="end">{text}</text>'
        )
    parts += [
        f'<text x="{x(at):.1f}" y="{_HEIGHT + 16}" font-size="10" text-anchor="middle">{at} s</text>'
        for at in range(0, int(end) + 1, 60)
    ]
    for index, (key, counts) in enumerate(series.items()):
        bins = range(int(end / bin_))
        points = " ".join(f"{x((number + 0.5) * bin_):.1f},{y(counts[number] / bin_):.1f}" for number in bins)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{_COLOURS[key]}" stroke-width="2"/>')
        top = _TOP + 18 * index
        parts.append(f'<path d="M{_WIDTH + 12} {top}h18" stroke="{_COLOURS[key]}" stroke-width="3"/>')
        parts.append(f'<text x="{_WIDTH + 36}" y="{top + 4}" font-size="11">{_NAMES[key]}</text>')
    return "\n".join([*parts, "</svg>", ""])
