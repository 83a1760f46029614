"""Check the pages: `python -m scripts.prose [FILE...]`. Code, links' targets and generated parts are no prose."""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from proselint.checks import lexical_illusions, redundancy
from proselint.registry import CheckRegistry
from proselint.registry.checks import Check, CheckFlags, CheckResult
from proselint.registry.checks.engine import Fast, RegexOptions
from proselint.registry.checks.types import ExistenceSimple
from proselint.tools import LintFile

from scripts.prose.rules import BUILT_IN, LONGEST, RULES
from scripts.site.markdown import without_code
from scripts.site.pages import sources

ROOT: Final = Path(__file__).parents[2]
EXEMPT: Final = frozenset({"docs/reference.md", "docs/reference-cli.md", "docs/reference-chart.md"})
"""Generated pages."""
_GENERATED: Final = "<!-- Written by `make generate`"
_OFF: Final = re.compile(r"<!-- prose off -->.*?<!-- prose on -->", re.DOTALL)
_TARGET: Final = re.compile(r"(?<=\])\([^()\s]*\)")
_HEADING: Final = re.compile(r"^#.*$", re.MULTILINE)
_SENTENCE: Final = re.compile(r"(?:[^.:;!?|\n]|[.:;!?](?!\s)|\n(?!\s*(?:\n|[*\-#|>]|\d+\.)))+")
_PATH: Final = "pdx"
_SHOWN: Final = 50
"""Characters of a match in a report."""


def prose(page: str) -> str:
    """The page with the same lines and only its prose. Tildes fill code, and a heading ends with a bar."""
    text = without_code(page, "~")
    generated = page.find(_GENERATED)
    kept = text if generated < 0 else text[:generated] + _blank(text[generated:])
    for match in _OFF.finditer(page):
        kept = kept[: match.start()] + _blank(match[0]) + kept[match.end() :]
    return _HEADING.sub(r"\g<0> |", _TARGET.sub(lambda match: _blank(match[0]), kept))


def problems(page: str) -> Iterator[tuple[int, str, str]]:
    """Line, rule and sentence of what breaks a rule."""
    text = prose(page)
    _register()
    config = {"max_errors": 1000, "checks": {_PATH: True, **dict.fromkeys(BUILT_IN, True)}}
    for found in LintFile("page", text).lint(config):
        result = found.check_result
        end = result.span[1] - 1  # the linter puts a line feed before the text
        start = end - len(text[result.span[0] - 1 : end].lstrip(" \n.:;!?*|"))
        yield text.count("\n", 0, start) + 1, result.check_path.removeprefix(f"{_PATH}."), result.message


def _short(message: str) -> str:
    found, quote, advice = " ".join(message.split()).partition("”")
    return f"{found if len(found) < _SHOWN else '“... ' + found[-_SHOWN:]}{quote}{advice}"


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def _register() -> None:
    """Give the linter the rules, once."""
    registry = CheckRegistry()
    if any(check.path.startswith(_PATH) for check in registry.checks):
        return
    engine = Fast(RegexOptions(case_insensitive=True))
    for rule in RULES:
        kind = ExistenceSimple(pattern="(?m)" + rule.pattern.replace(" ", r"\s+"))
        message = f"“{{}}”: write {rule.instead}"
        registry.register(Check(kind, engine, f"{_PATH}.{rule.name}", message, CheckFlags(allow_quotes=True)))
    registry.register(Check(_long, path=f"{_PATH}.long-sentence", flags=CheckFlags(allow_quotes=True)))
    registry.register_many(lexical_illusions.__register__)
    registry.register_many(redundancy.__register__)


def _long(text: str, check: Check) -> Iterator[CheckResult]:
    """Sentences with too many words."""
    for match in _SENTENCE.finditer(text):
        found = re.findall(r"[\w'-]*[A-Za-z][\w'-]*", match[0])
        if len(found) > LONGEST:
            message = f"“{' '.join(found[:6])} ...” has {len(found)} words: write at most {LONGEST}"
            yield CheckResult(check.path, message, match.span(), None)


def main(argv: Sequence[str]) -> int:
    """Print the problems of these pages, or of all; 1 if there are any."""
    pages = [PurePosixPath(name) for name in argv] or [path for path in sources(ROOT) if str(path) not in EXEMPT]
    count = 0
    for path in pages:
        for line, rule, message in problems((ROOT / path).read_text(encoding="utf-8")):
            sys.stderr.write(f"{path}:{line}: {rule}: {_short(message)}\n")
            count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
