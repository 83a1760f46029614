"""The files of the repository, and the objects in README.md and docs: blocks of YAML, and files that pages link to."""

import re
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from tests.pddeployments import GOOD

ROOT: Final = Path(__file__).parents[1]


@cache
def tracked() -> tuple[Path, ...]:
    """The files that belong to the repository, relative to its root."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return tuple(path for path in map(Path, listed.stdout.splitlines()) if (ROOT / path).is_file())


def _blocks() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = path.read_text(encoding="utf-8")
        for match in re.finditer(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{path.name}:{line}", _whole(yaml.safe_load(match[1]))
    for path in sorted((ROOT / "docs").rglob("*.yaml")):
        body = yaml.safe_load(path.read_text(encoding="utf-8"))
        if "kind" in body:
            yield path.name, body


def _whole(body: dict[str, Any]) -> dict[str, Any]:
    """Return an object; a block with only a part of a spec is merged into a valid one."""
    return body if "kind" in body else {**GOOD, "spec": _merged(GOOD["spec"], body)}


def _merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    both = {key: _merged(base[key], more[key]) for key in base.keys() & more.keys() if isinstance(base[key], Mapping)}
    return {**base, **more, **both}


BLOCKS: Final = tuple(_blocks())
"""FILE:LINE of each block, and the block as an object."""
