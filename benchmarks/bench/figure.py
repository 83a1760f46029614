"""The figure of the README: two plots of a saved result, as one SVG that is light or dark as the reader's system."""

import json
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final

from pdx_cli.bench.results.document import Run, read
from pdx_cli.bench.results.page import PLOT_STYLE, goodput, phases
from pdx_cli.bench.results.plots import HEIGHT, SERIES, WIDTH, bars
from pdx_cli.bench.results.text import seconds

RESULT: Final = Path(__file__).parent / "results" / "figure.json"
FIGURE: Final = Path(__file__).parents[2] / "docs" / "bench.svg"
_GAP, _TOP, _LEGEND = 24, 84, 26


def write() -> None:
    """Write the figure."""
    FIGURE.write_text(svg(read(json.loads(RESULT.read_text(encoding="utf-8")))), encoding="utf-8")


def svg(run: Run) -> str:
    """Return the figure of a run."""
    rows = [(each.arm.name, phases(each)) for each in run.results if phases(each)]
    plots = [
        ("Good requests over rate", [each.arm.name for each in run.results], goodput(run.results)),
        ("Where the time to the first token went (mean)", [name for name, _ in rows[0][1]], bars(rows, seconds)),
    ]
    width, height = 2 * WIDTH + 3 * _GAP, _TOP + 2 * _LEGEND + HEIGHT + _GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        f"<style>{PLOT_STYLE}.title {{ fill: var(--ink); font-size: 17px; font-weight: 600; }}</style>",
        f'<rect width="{width}" height="{height}" rx="10" fill="var(--card)"/>',
        *(
            f'<text class="title" x="{_GAP}" y="{32 + 24 * number}">{escape(line)}</text>'
            for number, line in enumerate(_two_lines(run.verdict.sentences[0]))
        ),
        *(part for number, plot in enumerate(plots) for part in _panel(_GAP + number * (WIDTH + _GAP), *plot)),
    ]
    return "\n".join([*parts, "</svg>", ""])


def _two_lines(text: str) -> Iterator[str]:
    parts_of_text = text.split()
    half = next(
        (n for n in range(len(parts_of_text)) if len(" ".join(parts_of_text[:n])) > len(text) / 2), len(parts_of_text)
    )
    yield " ".join(parts_of_text[:half])
    yield " ".join(parts_of_text[half:])


def _panel(x: int, title: str, names: Sequence[str], plot: str) -> Iterator[str]:
    yield f'<text class="name" style="text-anchor: start" x="{x}" y="{_TOP + 12}">{escape(title)}</text>'
    at = float(x)
    for number, name in enumerate(names):
        y = _TOP + _LEGEND + 4
        yield f'<rect class="fill s{number % SERIES}" x="{at:.0f}" y="{y - 10}" width="12" height="12" rx="3"/>'
        yield f'<text class="tick" x="{at + 18:.0f}" y="{y}">{escape(name)}</text>'
        at += 40 + 6.5 * len(name)
    height = plot.partition(f"0 0 {WIDTH} ")[2].partition('"')[0]
    yield plot.replace("<svg ", f'<svg x="{x}" y="{_TOP + 2 * _LEGEND - 8}" width="{WIDTH}" height="{height}" ', 1)
