"""ARCHITECTURE.md: keeps its prose and generates its list of packages and modules from their docstrings.

`problems` reports packages that the prose omits and names that do not exist; `make check` fails on them.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

PROGRAMS: Final = {
    "pdx_proxy": "proxy",
    "pdx_operator": "operator",
    "pdx_api": "api",
    "pdx_cli": "cli",
    "pdx_sim": "sim",
    "pdx_cluster": "cluster",
}
"""Top-level package -> the folder that contains it."""
BEGIN: Final = "<!-- Written by `make generate` from the docstrings of packages and modules. -->\n"
_NAME: Final = re.compile(rf"`((?:{'|'.join(PROGRAMS)})(?:\.[a-z_0-9]+)*)`")


def architecture(document: str, root: Path) -> str:
    """The document with a new list of packages and modules."""
    prose = document.partition(BEGIN)[0]
    return prose + BEGIN + "".join(_sections(root))


def packages(root: Path) -> list[str]:
    """The dotted names of all packages below `root`, program by program."""
    found = []
    for program, folder in PROGRAMS.items():
        inits = sorted((root / folder / program).rglob("__init__.py"))
        found += sorted(".".join(init.parent.relative_to(root / folder).parts) for init in inits)
    return found


def problems(document: str, root: Path) -> Iterator[str]:
    """The errors of the prose, one sentence each."""
    named = set(_NAME.findall(document.partition(BEGIN)[0]))
    for name in sorted(set(packages(root)) - named):
        yield f"ARCHITECTURE.md does not name the package `{name}`; add it to the map of its program."
    for name in sorted(named):
        path = _path(root, name)
        if not path.is_dir() and not path.with_suffix(".py").is_file():
            yield f"ARCHITECTURE.md names `{name}`, which does not exist; correct or remove it."


def _sections(root: Path) -> Iterable[str]:
    for name in packages(root):
        folder = _path(root, name)
        yield f"\n### `{name}`\n{_docstring(folder / '__init__.py')}\n\n"
        for module in sorted(folder.glob("*.py")):
            if module.stem != "__init__":
                yield f"* `{module.stem}`: {_docstring(module).partition(chr(10))[0]}\n"


def _path(root: Path, name: str) -> Path:
    return root / PROGRAMS[name.partition(".")[0]] / name.replace(".", "/")


def _docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
