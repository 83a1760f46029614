"""Lines of the gateway that are broken on purpose, each with the test that must fail: one TOML file for each area."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True)
class Mutation:
    """The broken line, and the test that must fail."""

    breaks: str
    file: str
    old: str
    new: str
    test: str


MUTATIONS: Final = tuple(
    Mutation(**fields)
    for path in sorted(Path(__file__).parent.glob("*.toml"))
    for fields in tomllib.loads(path.read_text(encoding="utf-8"))["mutation"]
)
