"""Names, pages and help texts use the words of docs/glossary.md."""

import re
import runpy
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePath

import pytest

from pdx_cli.main import COMMANDS
from scripts.alerts import rules_file
from tests.documents import ROOT
from tests.glossary import EXCEPTIONS, PARTS, PHRASES, forbidden, in_names, in_text, names, tracked
from tests.unit.test_metric_tables import PROGRAMS

HELP = (
    ("pdx_cli",),
    *(("pdx_cli", command) for command in COMMANDS),
    ("pdx_operator",),
    ("pdx_proxy",),
    ("pdx_cluster",),
    *(("pdx_cluster", command) for command in ("up", "down", "status", "env", "load", "build")),
    ("benchmarks.gateway",),
    ("benchmarks.operator",),
    ("images.build",),
    ("scripts.generate",),
    ("tests.cluster.tiny",),
    ("tests.conformance",),
    ("tests.dashboards.show",),
)
"""Every program and command, as `python -m` takes them."""

HISTORY = {Path("CHANGELOG.md"), Path("docs/glossary.md"), Path("docs/style.md")}
"""Pages that name old words on purpose."""

SAMPLE = re.compile(r"^([a-z]\w*)(?:{(.*)})? ", re.MULTILINE)


def folder(path: PurePath) -> str:
    """The part of the repository that a file belongs to."""
    return "/".join(path.parent.parts[:2]) or "."


SOURCES = [path for path in tracked() if path.suffix == ".py"]
FOLDERS = sorted({folder(path) for path in SOURCES})
PAGES = [
    path
    for path in tracked()
    if path not in HISTORY
    and path.suffix not in {".svg", ".webp"}
    and (path.suffix == ".md" or path.parts[0] in {"Makefile", "charts", "docs", "examples"})
]


@cache
def source(path: Path) -> str:
    """The text of a file."""
    return (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("part", FOLDERS)
def test_names(part: str) -> None:
    found = [line for path in SOURCES if folder(path) == part for line in in_names(source(path), path)]
    assert not found, "\n" + "\n".join(map(str, found))


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_pages(path: Path) -> None:
    found = list(in_text(source(path), path, markdown=path.suffix == ".md"))
    assert not found, "\n" + "\n".join(map(str, found))


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("program", HELP, ids=" ".join)
def test_help(program: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [*program, "--help"])
    with pytest.raises(SystemExit):
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    text = capsys.readouterr().out
    assert "usage:" in text
    found = [*map(str, in_text(text, PurePath("--help")))]
    found += [f"{flag} -> write {forbidden(flag)}" for flag in re.findall(r"--[a-z][a-z-]*", text) if forbidden(flag)]
    assert not found, "\n" + "\n".join(found)


def labels(page: str) -> Iterator[tuple[str, str]]:
    """The names of a metrics page, those of its labels and its labels' values, each with the metric's name."""
    for metric, pairs in SAMPLE.findall(page):
        yield metric, metric
        for label, value in re.findall(r'(\w+)="([^"]*)"', pairs):
            yield metric, label
            if value not in {"True", "False", "Unknown", "unknown"}:  # a condition's status, and a verdict's
                yield metric, value


@pytest.mark.parametrize("program", PROGRAMS)
def test_metrics(program: str) -> None:
    page = PROGRAMS[program]()
    assert not {f"{metric}: {name} -> write {forbidden(name)}" for metric, name in labels(page) if forbidden(name)}


def test_alerts() -> None:
    alerts = re.findall(r"alert: (\w+)", rules_file())
    assert alerts
    assert not [alert for alert in alerts if forbidden(alert)]


def test_every_exception_is_needed() -> None:
    used = {
        rule
        for path in SOURCES
        for _, name in names(source(path), path)
        if forbidden(name)
        for rule in EXCEPTIONS
        if rule.allows(name, path)
    }
    assert set(EXCEPTIONS) == used


FORBIDDEN = {
    "a module": ("api/canary.py", ""),
    "a package": ("api/fleet/pods.py", ""),
    "a class": ("a.py", "class HTTPDoor: pass"),
    "a function": ("a.py", "def tell_all(): pass"),
    "a coroutine": ("a.py", "async def ask(): pass"),
    "a method": ("a.py", "class A:\n  def _hear(self): pass"),
    "a parameter": ("a.py", "def f(*, told_before): pass"),
    "a lambda's parameter": ("a.py", "f = lambda lane: 1"),
    "a variable": ("a.py", "wanted = 1"),
    "a field": ("a.py", "class A:\n  known: int"),
    "an attribute": ("a.py", "a.lastLook = 1"),
    "a loop's variable": ("a.py", "for seat in []: pass"),
    "an import": ("a.py", "import b as trail"),
    "an error": ("a.py", "try: pass\nexcept OSError as trouble: pass"),
    "a pattern": ("a.py", "match 1:\n  case news: pass"),
    "a flag": ("a.py", "parser.add_argument('-q', '--no-canary')"),
}


@pytest.mark.parametrize(("path", "text"), FORBIDDEN.values(), ids=FORBIDDEN)
def test_a_forbidden_name_is_found(path: str, text: str) -> None:
    assert len(list(in_names(text, PurePath(path)))) == 1


ALLOWED = {
    "a longer word": "overlook = outdoors = seating = 1",
    "the use of another's name": "connection.known, feed(canary=1)",
    "text": '"""It tells the canary."""',
}


@pytest.mark.parametrize("text", ALLOWED.values(), ids=ALLOWED)
def test_an_allowed_name_is_not_found(text: str) -> None:
    assert not list(in_names(text, PurePath("a.py")))


def test_phrases() -> None:
    page = "Three failures in\na row. See `canary`, [this](gateway.md#canary), /pdx/canary\n\nA Canary is sent."
    found = [str(line) for line in in_text(page, PurePath("a.md"), markdown=True)]
    assert found == ["a.md:1 in a row -> write consecutive", "a.md:4 Canary -> write transfer probe"]


def test_the_tables_are_read() -> None:
    assert PARTS["lanes"] == PARTS["lane"]
    assert PARTS["unknown"] == PARTS["knows"]
    assert PHRASES["canaries"] == PHRASES["canary"] == "transfer probe"
