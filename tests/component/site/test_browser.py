"""The site in a real browser, from a folder and without a network."""

import asyncio
import json
import re
import shutil
from pathlib import Path
from typing import Any, Final

import pytest

from scripts.site.__main__ import build
from tests.component.cli.bench.browser import Page, browser
from tests.documents import ROOT

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("chromium") is None, reason="no Chromium: install chromium (Debian package)"),
]
WIDTHS: Final = (390, 1440)
SCHEMES: Final = ("default", "slate")
TERMS: Final = ("TTFT", "RDMA", "ingress", "upgrade")

STILL: Final = """document.head.append(Object.assign(document.createElement('style'),
  {textContent: '* { transition: none !important; animation: none !important; }'}))"""
"""Ends every transition at once, so that a page has its layout directly after a change of width."""

WIDE: Final = """(() => {
  const inside = e => { for (let p = e.parentElement; p && p !== document.body; p = p.parentElement) {
    const s = getComputedStyle(p);
    if (s.overflowX === 'auto' || s.overflowX === 'scroll') {
      const r = p.getBoundingClientRect();
      if (r.left >= 0 && r.right <= innerWidth + 0.5) return true; } }
    return false; };
  const off = [...document.querySelectorAll('article :is(table, pre, img, h1, h2, h3, p, li)')].filter(e => {
    const r = e.getBoundingClientRect();
    return r.width > 0 && (r.right > innerWidth + 0.5 || r.left < 0) && !inside(e); });
  return {
    width: innerWidth,
    overflow: document.documentElement.scrollWidth - innerWidth,
    off: off.map(e => e.tagName + ' ' + e.textContent.trim().slice(0, 60)),
    tables: document.querySelectorAll('article table').length,
    scheme: document.body.dataset.mdColorScheme,
    background: getComputedStyle(document.body).backgroundColor,
  };
})()"""
"""What stands out of the window and can not be scrolled to, each in its own box."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly."""
    folder = tmp_path_factory.mktemp("site")
    assert build(ROOT, folder) == 0
    return folder / "site"


def pages(site: Path) -> list[Path]:
    """Every page."""
    return sorted(path for path in site.rglob("*.html") if path.name != "404.html")


async def shown(load: Page, scheme: str) -> dict[str, Any]:
    """What the page shows after a click on the switch for this colour scheme."""
    await load.evaluate(f"document.querySelector('input[data-md-color-scheme={scheme}]').click()")
    seen: dict[str, Any] = await load.evaluate(WIDE)
    assert seen["scheme"] == scheme
    return seen


def foreign(load: Page, site: Path) -> list[str]:
    """What the pages have requested from anywhere else."""
    return [url for url in load.requested if not url.startswith((site.as_uri(), "data:", "about:"))]


@pytest.mark.parametrize("each_scheme", [False, pytest.param(True, marks=pytest.mark.soak)])
async def test_nothing_runs_off_a_page(site: Path, *, each_scheme: bool) -> None:
    """Each page in both widths. Its schemes take turns, except in `make soak`: they differ in colours alone."""
    tables = 0
    backgrounds: set[tuple[str, str]] = set()
    wrong: dict[str, dict[str, Any]] = {}
    async with browser("chromium") as load:
        for number, path in enumerate(pages(site)):
            await load.open(path.as_uri(), "light", WIDTHS[0])
            await load.evaluate(STILL)
            for place, width in enumerate(WIDTHS):
                size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
                await load.call("Emulation.setDeviceMetricsOverride", **size)
                schemes = SCHEMES if each_scheme else (SCHEMES[(number + place) % 2],)
                seen = [await shown(load, scheme) for scheme in schemes]
                assert {each["width"] for each in seen} == {width}
                backgrounds |= {(each["scheme"], each["background"]) for each in seen}
                bad = {each["scheme"]: each for each in seen if each["overflow"] > 0 or each["off"]}
                wrong |= {f"{path} {width} {scheme}": each for scheme, each in bad.items()}
                tables += seen[0]["tables"]
        assert not foreign(load, site)
    assert len(backgrounds) == len({color for _, color in backgrounds}) == len(SCHEMES)
    assert not wrong
    assert tables > 200


@pytest.mark.parametrize(("system", "scheme"), [("light", "default"), ("dark", "slate")])
async def test_the_scheme_of_the_readers_system(site: Path, system: str, scheme: str) -> None:
    async with browser("chromium") as load:
        await load.open((site / "index.html").as_uri(), system)
        assert (await load.evaluate(WIDE))["scheme"] == scheme


async def test_the_failure_matrix_can_be_filtered(site: Path) -> None:
    typed = """(() => {
      const field = document.querySelector('.pdx-filter');
      field.value = '503 mooncake';
      field.dispatchEvent(new Event('input'));
      const shown = [...document.querySelectorAll('article tbody tr')].filter(row => !row.hidden);
      return shown.map(row => row.textContent.toLowerCase());
    })()"""
    async with browser("chromium") as load:
        await load.open((site / "failure-matrix.html").as_uri(), "light", 1440)
        rows = await load.evaluate(typed)
        every = await load.evaluate("document.querySelectorAll('article tbody tr').length")
        await load.open((site / "glossary.html").as_uri(), "light", 1440)
        assert await load.evaluate("document.querySelector('.pdx-filter')") is None
    assert 0 < len(rows) < every
    assert all("503" in row and "mooncake" in row for row in rows)


async def found(load: Page, word: str) -> list[str]:
    """The pages that the search box lists for a word, once the search has loaded its index and lists any."""
    await load.evaluate("document.querySelector('#__search').click()")
    typed = f"""(() => {{
      const box = document.querySelector('input[name=query]');
      box.focus();
      box.value = {json.dumps(word)};
      box.dispatchEvent(new KeyboardEvent('keyup', {{bubbles: true}}));
      return [...document.querySelectorAll('.md-search-result__link')].map(e => e.href);
    }})()"""
    async with asyncio.timeout(60):
        while not (links := await load.evaluate(typed)):  # noqa: ASYNC110 (the page sends no event)
            await asyncio.sleep(0.1)
    return [str(link) for link in links]


async def test_search(site: Path) -> None:
    listed = {}
    async with browser("chromium") as load:
        for word in TERMS:
            await load.open((site / "index.html").as_uri(), "light", 1440)
            listed[word] = await found(load, word)
        assert not foreign(load, site)
    for word, links in listed.items():
        named = [Path(re.sub(r"[?#].*", "", link.removeprefix("file://"))) for link in links]
        assert all(path.is_file() for path in named)
        assert any(word.lower() in path.read_text(encoding="utf-8").lower() for path in named)


def index(site: Path) -> list[dict[str, Any]]:
    """The entries of the search index: pages and their sections."""
    entries: list[dict[str, Any]] = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    return entries


@pytest.mark.parametrize("word", TERMS)
def test_the_index_has_the_word(site: Path, word: str) -> None:
    assert any(word.lower() in f"{entry['title']} {entry['text']}".lower() for entry in index(site))
