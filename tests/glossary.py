"""The tables of docs/glossary.md, and what they forbid."""

import ast
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path, PurePath
from typing import Final

from tests.documents import ROOT

_SPLIT: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_CODE: Final = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)\s]*\)", re.DOTALL)


def table(title: str) -> list[list[str]]:
    """The rows of the glossary's table under this heading, without the code marks."""
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    section = text.split(f"\n## {title}\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return [[cell.replace("`", "").strip() for cell in row] for row in rows[2:]]


def _replacements(title: str) -> dict[str, str]:
    entries = ((re.sub(r"\(.*?\)", "", row[0]), row[1]) for row in table(title))
    return {entry.strip(): instead for entries_, instead in entries for entry in entries_.split(",")}


PARTS: Final = _replacements("Words that PDX no longer uses")
"""Forbidden part of an identifier -> what to write."""

PHRASES: Final = _replacements("Old phrases")
"""Forbidden phrase -> what to write."""

_PHRASE: Final = re.compile(
    r"(?<![\w/.-])(?:" + "|".join(re.escape(phrase).replace(r"\ ", r"\s+") for phrase in PHRASES) + r")(?![\w-])",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of the table of exceptions."""

    identifier: str
    files: str
    reason: str

    def allows(self, name: str, path: PurePath) -> bool:
        """Whether this name may stand in this file."""
        files = self.files.split(", ")
        return fnmatchcase(name, self.identifier) and any(fnmatchcase(str(path), pattern) for pattern in files)


EXCEPTIONS: Final = tuple(Rule(*row) for row in table("Exceptions"))


@dataclass(frozen=True, slots=True)
class Violation:
    """A name or a phrase, where it stands, and what to write instead."""

    path: PurePath
    line: int
    found: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.found} -> write {self.instead}"


def forbidden(name: str) -> str | None:
    """What to write instead of the first forbidden word in a name."""
    return next((PARTS[part.lower()] for part in _SPLIT.findall(name) if part.lower() in PARTS), None)


@cache
def names(source: str, path: PurePath) -> tuple[tuple[int, str], ...]:
    """The names that a Python file defines, with their lines. The names of its folders and its own are on line 1."""
    return tuple(_names(source, path))


def _names(source: str, path: PurePath) -> Iterator[tuple[int, str]]:
    for part in (*path.parent.parts, path.stem):
        yield 1, part
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr
            case ast.alias(asname=str(alias)):
                yield node.lineno, alias
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name
            case ast.Call(func=ast.Name(id="Flag" | "add") | ast.Attribute(attr="add_argument"), args=arguments):
                for argument in arguments:
                    if isinstance(argument, ast.Constant) and str(argument.value).startswith("-"):
                        yield argument.lineno, str(argument.value)
            case _:
                pass


def in_names(source: str, path: PurePath) -> Iterator[Violation]:
    """The forbidden names of a Python file that are no exceptions."""
    for line, name in names(source, path):
        instead = forbidden(name)
        if instead and not any(rule.allows(name, path) for rule in EXCEPTIONS):
            yield Violation(path, line, name, instead)


def in_text(text: str, path: PurePath, *, markdown: bool = False) -> Iterator[Violation]:
    """The old phrases of a text. Code and link targets of a page are no prose."""
    prose = _CODE.sub(lambda code: re.sub(r"[^\n]", "`", code[0]), text) if markdown else text
    for match in _PHRASE.finditer(prose):
        phrase = " ".join(match[0].split())
        yield Violation(path, text.count("\n", 0, match.start()) + 1, phrase, PHRASES[phrase.lower()])


@cache
def tracked() -> tuple[Path, ...]:
    """The files that belong to the repository, relative to its root."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return tuple(path for path in map(Path, listed.stdout.splitlines()) if (ROOT / path).is_file())
