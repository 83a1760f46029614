"""The assumptions of PDX about vLLM's code, one row each, and the versions in which vLLM's code differs. Pure data."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Final

Value = bool | int | float | str | list[str] | None
"""None: vLLM's code does not have it."""
OPEN: Final = "Open:"
"""How the effect of a difference begins that PDX does not handle yet."""
_GROUP: Final = "## "


@dataclass(frozen=True, slots=True)
class Assumption:
    """One thing that vLLM's code must have, and the place in PDX that relies on it."""

    kind: str
    """How it is read (`pdx_cli.contract.lookups`)."""
    name: str
    """What it is in vLLM's code, qualified where several may have the name."""
    paths: tuple[str, ...]
    """vLLM's files that may have it, below `vllm/`; a path that ends with a slash stands for the files in a folder."""
    value: Value
    """Its value in the version that PDX's tests use."""
    place: str
    """PDX's file."""

    @property
    def id(self) -> str:
        """Its name in tables."""
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Difference:
    """A version of vLLM in which an assumption has another value, and what this means."""

    version: str
    """As `0.33`."""
    id: str
    """Of the assumption."""
    value: Value
    effect: str
    """What PDX does about it: a sentence."""


@lru_cache
def assumptions() -> tuple[Assumption, ...]:
    """Every assumption, in the order of the table."""
    return tuple(_assumptions())


@lru_cache
def differences() -> tuple[Difference, ...]:
    """Every known difference, in the order of the table."""
    return tuple(_differences())


def expected(version: str) -> Mapping[str, Value]:
    """The values of all assumptions in a version such as 0.33, by ID."""
    values = {each.id: each.value for each in assumptions()}
    return {**values, **{each.id: each.value for each in differences() if each.version == version}}


def _lines(name: str) -> Iterator[str]:
    for line in files("pdx_api.vllm").joinpath(name).read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("# "):
            yield line


def _assumptions() -> Iterator[Assumption]:
    paths: tuple[str, ...] = ()
    for line in _lines("assumptions.txt"):
        if line.startswith(_GROUP):
            paths = tuple(line.removeprefix(_GROUP).split())
            continue
        row, _, place = line.rpartition(" | ")
        named, equals, value = row.partition(" = ")
        kind, _, name = named.partition(" ")
        yield Assumption(kind, name, paths, json.loads(value) if equals else True, place)


def _differences() -> Iterator[Difference]:
    versions: tuple[str, ...] = ()
    for line in _lines("differences.txt"):
        if line.startswith(_GROUP):
            versions = tuple(line.removeprefix(_GROUP).split())
            continue
        row, _, effect = line.rpartition(" | ")
        identity, _, value = row.partition(" = ")
        for version in versions:
            yield Difference(version, identity, json.loads(value), effect)
