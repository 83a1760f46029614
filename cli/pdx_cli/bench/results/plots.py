"""Plots as SVG, coloured by the page's variables, so that one plot serves the light and the dark page. Pure."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 640
HEIGHT: Final = 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 16, 14, 44
SERIES: Final = 6
"""Colours; a seventh line begins with the first colour, dashed."""
_MOST_POINTS: Final = 240
"""Points of a line: more are not seen."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a plot."""

    name: str
    points: tuple[Point, ...]
    marks: bool = False
    """Whether each point has a dot with its numbers."""
    area: bool = False
    """Whether the area below it is filled."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: from `low` to `high`."""

    label: str
    low: float
    high: float
    log: bool = False
    form: Callable[[float], str] = lambda value: f"{value:g}"

    def part(self, value: float) -> float:
        """Where a value is, from 0 to 1."""
        low, high, value = (math.log(max(each, 1e-12)) if self.log else each for each in (self.low, self.high, value))
        return min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 0.0

    def ticks(self) -> list[float]:
        """Round values to write along the axis."""
        if self.log:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            found = [digit * 10.0**power for power in decades for digit in (1, 2, 5)]
            return [each for each in found if self.low <= each <= self.high * 1.0001]
        step = _round_step((self.high - self.low) / 5)
        first = math.ceil(self.low / step)
        return [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]


def plot(title: str, x: Axis, y: Axis, lines: Sequence[Line], rules: Sequence[tuple[str, str, float]] = ()) -> str:
    """Return one plot. `rules`: straight lines as axis (`x` or `y`), label and value."""
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        *_grid(x, y),
        *(_rule(x, y, *rule) for rule in rules),
        *(_area(x, y, line, number) for number, line in enumerate(lines) if line.area and line.points),
        *(part for number, line in enumerate(lines) for part in _line(x, y, line, number)),
        "</svg>",
    ]
    return "\n".join(parts)


def legend(names: Sequence[str]) -> str:
    """Return the legend of lines in their order."""
    keys = (f'<li><span class="key s{n % SERIES}"></span>{escape(name)}</li>' for n, name in enumerate(names))
    return f'<ul class="legend">{"".join(keys)}</ul>'


def bars(rows: Sequence[tuple[str, Sequence[tuple[str, float]]]], form: Callable[[float], str]) -> str:
    """Return one stacked bar for each row of parts; equal names have equal colours."""
    names = list(dict.fromkeys(name for _, parts in rows for name, _ in parts))
    most = max((sum(value for _, value in parts) for _, parts in rows), default=0.0) or 1.0
    label, height, gap = 190, 26, 14
    width = WIDTH - label - 78
    total = len(rows) * (height + gap) + gap
    out = [f'<svg viewBox="0 0 {WIDTH} {total}" role="img" aria-label="Where the time to the first token went">']
    for number, (row, parts) in enumerate(rows):
        top, at = gap + number * (height + gap), float(label)
        out.append(f'<text class="name" x="{label - 10}" y="{top + height / 2 + 4:.1f}">{escape(row)}</text>')
        for name, value in parts:
            size = max(0.0, value) / most * width
            title = f"<title>{escape(row)}, {escape(name)}: {form(value)}</title>"
            shown = max(0.0, size - 2)
            box = f'x="{at:.1f}" y="{top}" width="{shown:.1f}" height="{height}"'
            out.append(f'<rect class="fill s{names.index(name) % SERIES}" {box} rx="2">{title}</rect>')
            at += size
        whole = form(sum(value for _, value in parts))
        out.append(f'<text class="tick" x="{at + 6:.1f}" y="{top + height / 2 + 4:.1f}">{whole}</text>')
    return "\n".join([*out, "</svg>"])


def cumulative(values: Sequence[float]) -> tuple[Point, ...]:
    """Return the points of a distribution: value, and the share of values up to it."""
    ordered = sorted(values)
    count = len(ordered)
    step = max(1, count // _MOST_POINTS)
    numbers = sorted({*range(0, count, step), count - 1}) if count else []
    return tuple((ordered[n], (n + 1) / count) for n in numbers if math.isfinite(ordered[n]))


def thinned(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return at most so many points as are seen: the mean of each group."""
    size = max(1, math.ceil(len(points) / _MOST_POINTS))
    groups = [points[begin : begin + size] for begin in range(0, len(points), size)]
    return tuple((group[0][0], sum(value for _, value in group) / len(group)) for group in groups)


def _x(x: Axis, value: float) -> float:
    return _LEFT + x.part(value) * (WIDTH - _LEFT - _RIGHT)


def _y(y: Axis, value: float) -> float:
    return HEIGHT - _BOTTOM - y.part(value) * (HEIGHT - _TOP - _BOTTOM)


def _grid(x: Axis, y: Axis) -> Iterator[str]:
    bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    for value in y.ticks():
        at = _y(y, value)
        yield f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>'
        yield f'<text class="tick end" x="{_LEFT - 8}" y="{at + 4:.1f}">{y.form(value)}</text>'
    for value in x.ticks():
        at = _x(x, value)
        yield f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
        yield f'<text class="tick mid" x="{at:.1f}" y="{bottom + 18}">{x.form(value)}</text>'
    yield f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>'
    yield f'<text class="label mid" x="{(_LEFT + right) / 2}" y="{HEIGHT - 6}">{escape(x.label)}</text>'
    middle = (_TOP + bottom) / 2
    yield f'<text class="label mid" transform="rotate(-90 13 {middle})" x="13" y="{middle}">{escape(y.label)}</text>'


def _rule(x: Axis, y: Axis, axis: str, label: str, value: float) -> str:
    if axis == "x":
        at = _x(x, value)
        line = f'<line class="rule" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>'
        anchor, place = ("end", at - 5) if at > WIDTH / 2 else ("start", at + 5)
        return f'{line}<text class="tick {anchor}" x="{place:.1f}" y="{_TOP + 10}">{escape(label)}</text>'
    at = _y(y, value)
    line = f'<line class="rule" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
    return f'{line}<text class="tick end" x="{WIDTH - _RIGHT}" y="{at - 5:.1f}">{escape(label)}</text>'


def _area(x: Axis, y: Axis, line: Line, number: int) -> str:
    """Below all lines, whose colours it would change."""
    path = " ".join(f"{_x(x, a):.1f},{_y(y, b):.1f}" for a, b in line.points)
    begin, end, bottom = _x(x, line.points[0][0]), _x(x, line.points[-1][0]), HEIGHT - _BOTTOM
    return f'<polygon class="area s{number % SERIES}" points="{begin:.1f},{bottom} {path} {end:.1f},{bottom}"/>'


def _line(x: Axis, y: Axis, line: Line, number: int) -> Iterator[str]:
    if not line.points:
        return
    colour = f"s{number % SERIES}"
    dashed = " dashed" if number >= SERIES else ""
    places = [(_x(x, a), _y(y, b)) for a, b in line.points]
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
    yield f'<polyline class="line {colour}{dashed}" points="{path}"><title>{escape(line.name)}</title></polyline>'
    if line.marks:
        for (a, b), (value, other) in zip(places, line.points, strict=True):
            title = f"{escape(line.name)}: {x.form(value)}, {y.form(other)}"
            yield f'<circle class="mark {colour}" cx="{a:.1f}" cy="{b:.1f}" r="4"><title>{title}</title></circle>'


def _round_step(size: float) -> float:
    if size <= 0 or not math.isfinite(size):
        return 1.0
    power = 10.0 ** math.floor(math.log10(size))
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= size)
