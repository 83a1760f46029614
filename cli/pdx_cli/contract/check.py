"""Compares vLLM's code with PDX's assumptions."""

import ast
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from pdx_api.vllm.assumptions import Assumption, Value, assumptions
from pdx_cli.contract.lookups import found_in, token
from pdx_cli.contract.sources import Source


@dataclass(frozen=True, slots=True)
class Broken:
    """An assumption that does not hold."""

    assumption: Assumption
    expected: Value
    found: Value

    def __str__(self) -> str:
        return f"{self.assumption.id}: {self._change()}"

    def _change(self) -> str:
        if self.found is None:
            return "vLLM does not have it"
        if self.expected is None:
            return f"vLLM has it: {json.dumps(self.found)}"
        if isinstance(self.found, list) and isinstance(self.expected, list):
            more, less = (_without(self.found, self.expected), _without(self.expected, self.found))
            parts = [f"{word} {', '.join(some)}" for word, some in (("it also has", more), ("it lacks", less)) if some]
            return "; ".join(parts) or f"it has another order: {', '.join(self.found)}"
        return f"{json.dumps(self.found)} instead of {json.dumps(self.expected)}"


def _without(some: Iterable[str], others: Iterable[str]) -> list[str]:
    excluded = set(others)
    return [each for each in some if each not in excluded]


@dataclass(slots=True)
class _Trees:
    """The syntax trees of a source; each file is read and parsed once."""

    source: Source
    texts: dict[str, str] = field(default_factory=dict)
    trees: dict[str, ast.Module] = field(default_factory=dict)

    def having(self, paths: Iterable[str], word: str) -> Iterator[ast.Module]:
        """The trees of the files below these paths that contain a word. A file that is no Python has none."""
        for path in self.source.paths:
            if not any(fnmatchcase(path, f"{one}*" if one.endswith("/") else one) for one in paths):
                continue
            text = self.texts.get(path)
            if text is None:
                text = self.texts[path] = self.source.read(path)
            if word in text:
                if path not in self.trees:
                    self.trees[path] = _parsed(text)
                yield self.trees[path]


def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # of a later Python, or none
        return ast.Module([], [])


def read(source: Source) -> Mapping[str, Value]:
    """The value of each assumption in vLLM's code, by ID."""
    trees = _Trees(source)
    return {
        each.id: found_in(trees.having(each.paths, token(each.kind, each.name)), each.kind, each.name)
        for each in assumptions()
    }


def compare(found: Mapping[str, Any], expected: Mapping[str, Value]) -> list[Broken]:
    """The assumptions whose values differ from what is expected."""
    return [
        Broken(each, expected[each.id], found.get(each.id))
        for each in assumptions()
        if found.get(each.id) != expected[each.id]
    ]
