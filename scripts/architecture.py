"""ARCHITECTURE.md names only packages and modules that exist; `make check` fails otherwise."""

import re
from collections.abc import Iterator
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
_NAME: Final = re.compile(rf"`((?:{'|'.join(PROGRAMS)})(?:\.[a-z_0-9]+)*)`")


def problems(document: str, root: Path) -> Iterator[str]:
    """The errors of the map, one sentence each."""
    named = set(_NAME.findall(document))
    programs = {name for name, folder in PROGRAMS.items() if (root / folder / name / "__init__.py").is_file()}
    for name in sorted(programs - named):
        yield f"ARCHITECTURE.md does not name the program `{name}`; add it to the map."
    for name in sorted(named):
        path = root / PROGRAMS[name.partition(".")[0]] / name.replace(".", "/")
        if not path.is_dir() and not path.with_suffix(".py").is_file():
            yield f"ARCHITECTURE.md names `{name}`, which does not exist; correct or remove it."
