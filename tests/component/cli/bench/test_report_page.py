"""The report in a real browser, light and dark, without a network: every plot is there and can be seen."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from pdx_cli.bench.analysis.arms import ArmResult, Sample
from pdx_cli.bench.analysis.phases import TO_FIRST_TOKEN
from pdx_cli.bench.results.page import page
from tests.component.cli.bench.browser import Page, browser
from tests.unit.cli.bench.test_results import RUN

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(shutil.which("chromium") is None, reason="no Chromium: install chromium (Debian package)"),
]
PHASES = dict.fromkeys(map(str, TO_FIRST_TOKEN), 0.05)


def distinct(result: ArmResult, number: int) -> ArmResult:
    """The result with lines that lie apart from those of others."""
    times = [0.1 * (1 + n + 7 * number) for n in range(30)]
    engines = ("prefill-0", "decode-0")
    return replace(
        result,
        steps=tuple(replace(step, rate=step.rate * (1 + number), phases=PHASES) for step in result.steps),
        samples=tuple(Sample(500, at, at / 20) for at in times),
        timeline={name: [(at, 3.0 + 4 * n + at, 1.0 + 2 * n + at) for at in times] for n, name in enumerate(engines)},
    )


Colour = tuple[int, int, int]
SHOWN = replace(RUN, results=tuple(distinct(each, n) for n, each in enumerate(RUN.results)))
PLOTS = [
    *("Good requests over rate", "Time to first token", "Time per output token"),
    "Where the time to the first token went",
    *(f"{arm}: requests that {state}" for arm in ("aggregated 4", "P:D 2:2") for state in ("run", "wait")),
]
SEEN = """(() => {
  const box = e => { const r = e.getBoundingClientRect();
    return {x: r.x + scrollX, y: r.y + scrollY, width: r.width, height: r.height}; };
  const card = e => getComputedStyle(e.closest('.card')).backgroundColor;
  return {
    page: getComputedStyle(document.body).backgroundColor,
    overflow: document.documentElement.scrollWidth - innerWidth,
    text: [...document.querySelectorAll('h1, h2, p, th, td, li, svg text')].map(e => {
      const s = getComputedStyle(e), svg = e instanceof SVGElement;
      const on = e.closest('.card') ? card(e) : getComputedStyle(document.body).backgroundColor;
      return {text: e.textContent, colour: svg ? s.fill : s.color, on, ...box(e)}; }),
    plots: [...document.querySelectorAll('svg')].map(svg => ({
      title: svg.getAttribute('aria-label'), on: card(svg), ...box(svg),
      marks: [...svg.querySelectorAll('.line, .fill')].map(e => {
        const s = getComputedStyle(e);
        return {colour: e.matches('.line') ? s.stroke : s.fill, length: e.getTotalLength(), ...box(e)}; }),
    })),
  };
})()"""


def rgb(text: str) -> Colour:
    """Of `rgb(1, 2, 3)`."""
    red, green, blue = (int(part) for part in text.partition("(")[2].rstrip(")").split(",")[:3])
    return red, green, blue


def contrast(one: Colour, other: Colour) -> float:
    """The ratio of WCAG 2, from 1 to 21."""

    def luminance(colour: Colour) -> float:
        parts = [each / 255 for each in colour]
        linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def painted(screenshot: Image.Image, box: Mapping[str, float], colour: Colour) -> int:
    """How many pixels of a box have about this colour."""
    left, top = int(box["x"]) - 2, int(box["y"]) - 2
    data = screenshot.crop((left, top, left + int(box["width"]) + 5, top + int(box["height"]) + 5)).tobytes()
    pixels = zip(data[::3], data[1::3], data[2::3], strict=True)
    return sum(max(abs(a - b) for a, b in zip(pixel, colour, strict=True)) < 24 for pixel in pixels)


async def shown_in(load: Page, tmp_path: Path, scheme: str, width: int) -> dict[str, Any]:
    """The report as the browser shows it."""
    file = tmp_path / "report.html"
    file.write_text(page(SHOWN), encoding="utf-8")
    await load.open(file.as_uri(), scheme, width)
    assert load.requested == [file.as_uri()], "it loads nothing else"
    found: dict[str, Any] = await load.evaluate(SEEN)
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_plot_is_seen(scheme: str, tmp_path: Path) -> None:
    async with browser("chromium") as load:
        found = await shown_in(load, tmp_path, scheme, 1280)
        screenshot = await load.screenshot()
    screenshot.save(tmp_path / f"{scheme}.png")
    assert (sum(rgb(found["page"])) > 600) is (scheme == "light")
    assert [each["title"] for each in found["plots"]] == PLOTS
    for plot in found["plots"]:
        on = rgb(plot["on"])
        assert plot["width"] > 300, plot["title"]
        assert plot["height"] > 60, plot["title"]
        assert plot["marks"], plot["title"]
        for mark in plot["marks"]:
            colour = rgb(mark["colour"])
            assert contrast(colour, on) >= 3, (plot["title"], mark)
            assert mark["length"] > 0, (plot["title"], mark)
            assert painted(screenshot, mark, colour) > 20, (plot["title"], mark)
    for text in found["text"]:
        assert contrast(rgb(text["colour"]), rgb(text["on"])) >= 4.5, text
        assert text["width"] > 0, text


async def test_a_narrow_window_cuts_nothing(tmp_path: Path) -> None:
    async with browser("chromium") as load:
        found = await shown_in(load, tmp_path, "light", 400)
    assert found["overflow"] <= 0
    assert all(plot["x"] >= 0 and plot["x"] + plot["width"] <= 400 for plot in found["plots"])
