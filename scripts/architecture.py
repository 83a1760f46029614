"""ARCHITECTURE.md: keeps its prose and generates its list of packages and modules from their docstrings.

`problems` reports packages that the prose omits, names that do not exist, and imports that its tables do not allow;
`make check` fails on them.
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
_ROW: Final = re.compile(r"^\| `(pdx_\w+)\.(\w+)` \|.*\| ([^|]+) \|$", re.MULTILINE)
"""A row of a table of packages: program, package, the packages that it may import."""
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
    yield from _import_problems(document, root)


def _import_problems(document: str, root: Path) -> Iterator[str]:
    for program, package, cell in _ROW.findall(document.partition(BEGIN)[0]):
        names = {re.split(r"[ ;]", name.strip())[0] for name in re.sub(r"\([^)]*\)", "", cell).split(",")}
        if names == {"every"}:
            continue
        for name in sorted(_imported(root, program, package) - names - {package}):
            yield f"`{program}.{package}` imports `{program}.{name}`, which its row in ARCHITECTURE.md does not allow."


def _imported(root: Path, program: str, package: str) -> set[str]:
    """The packages of its program that a package imports."""
    found = set()
    for file in _path(root, f"{program}.{package}").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found |= {name.split(".")[1] for name in names if name.startswith(f"{program}.")}
    return {name for name in found if (_path(root, f"{program}.{name}")).is_dir()}


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
