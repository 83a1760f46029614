"""The results of a campaign: a file with one line of JSON for each run."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Line = Mapping[str, Any]


def read(results: Path) -> list[Line]:
    """The lines of a file; none without it."""
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


def append(results: Path, line: Line) -> None:
    """Add a run."""
    with results.open("a") as file:
        file.write(json.dumps(line) + "\n")
