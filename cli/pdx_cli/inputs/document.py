"""The PDDeployment that a command works on: from a file or stdin, with the changes of `--set`."""

import argparse
import copy
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pdx_api.names import API_VERSION, DEFAULT_NAMESPACE, KIND
from pdx_api.words import shown, written
from pdx_cli import usage
from pdx_cli.errors import InputError
from pdx_cli.inputs.yaml_source import STDIN, Document, read, source_name, value_of

if TYPE_CHECKING:  # pydantic takes longer than everything else here
    from pdx_api.spec.messages import Problem
    from pdx_api.spec.types import PDDeployment

_CODE_DIRECTORY: Final = ("spec", "kvTransfer", "custom", "code", "directory")
_EXAMPLES: Final[dict[tuple[int | str, ...], str]] = {
    ("apiVersion",): f"apiVersion: {API_VERSION}",
    ("kind",): f"kind: {KIND}",
    ("metadata",): "metadata: {name: qwen}",
    ("metadata", "name"): "name: qwen",
    ("spec",): "spec: {model: {name: Qwen/Qwen3-0.6B}, prefill: {replicas: 1}, decode: {replicas: 1}}",
    ("spec", "model"): "model: {name: Qwen/Qwen3-0.6B}",
    ("spec", "model", "name"): "name: Qwen/Qwen3-0.6B",
}
"""Field that every PDDeployment has -> an example of it."""
_SUFFIXES: Final = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True)
class _Assignment:
    """One `--set PATH=VALUE`."""

    path: tuple[int | str, ...]
    text: str
    """As the user wrote it."""
    value: Any


def sources_of(args: argparse.Namespace) -> list[Path]:
    """Return the files that the arguments name, those of directories included; raises InputError."""
    named = list(dict.fromkeys((*args.file, *args.filename)))
    if not named:
        args.refuse("FILE is missing; --help shows the usage")
    return [file for each in named for file in (_files_in(each) if each.is_dir() else (each,))]


def _files_in(directory: Path) -> list[Path]:
    """Return the files of a directory that contain a PDDeployment, by name; raises InputError if there are none."""
    files = sorted(each for each in directory.iterdir() if each.suffix in _SUFFIXES and each.is_file())
    found = [each for each in files if any(_is_ours(document.body) for document in read(each))]
    if not found:
        raise InputError(f"{directory} has no .yaml, .yml or .json file with a {KIND}; name another directory.")
    return found


def load(file: Path, assignments: Sequence[str], name: str | None = None) -> "PDDeployment":
    """Read the only PDDeployment of a file, or that of a name; raises InputError with every error."""
    found = load_all(file, assignments, name)
    if len(found) > 1:
        names = ", ".join(_choices([(each.metadata.namespace or "", each.metadata.name) for each in found]))
        raise InputError(f"{source_name(file)} has {len(found)} PDDeployments; select one with --name: {names}.")
    return found[0]


def load_all(file: Path, assignments: Sequence[str], name: str | None = None) -> "list[PDDeployment]":
    """Read all PDDeployments of a file, or only that of a name, and apply the assignments in their order.

    A relative directory in the file starts from the file's directory, in an assignment from the working directory.
    """
    documents = _selected(read(file), source_name(file), name)
    from pdx_api.spec.parse import InvalidDeploymentError
    from pdx_cli.inputs.validation import checked

    base = Path.cwd() if file == STDIN else file.absolute().parent
    changes = [_parsed(assignment) for assignment in assignments]
    found: list[PDDeployment] = []
    problems: list[tuple[int, str]] = []
    for document in documents:
        body = _with_absolute_code(document.body, base)
        for change in changes:
            body = _assigned(body, change)
        try:
            found.append(checked(body))
        except InvalidDeploymentError as error:
            problems += (_located(problem, body, document, changes) for problem in error.problems)
    if problems:
        lines = tuple(text for _, text in sorted(problems, key=lambda problem: problem[0]))
        source = source_name(file) if any(line for line, _ in problems) else "--set"
        raise InputError(*(lines if len(lines) == 1 else (f"{source} has {len(lines)} errors:", lines)))
    return found


def _selected(documents: Sequence[Document], source: str, name: str | None) -> list[Document]:
    """Return the documents that are PDDeployments; raises InputError if there is none."""
    if not documents:
        raise InputError(f"{source} contains no {KIND}; write one.")
    # A single document is parsed whatever it is: its errors explain best what is wrong.
    found = [each for each in documents if _is_ours(each.body)] if len(documents) > 1 else list(documents)
    if len(documents) > 1:
        _check_objects(documents, source)
    if not found:
        raise InputError(f"{source} contains no {KIND} ({API_VERSION}), only {_kinds(documents)}.")
    _check_unique(found, source)
    if name is None:
        return found
    return [_named(name, found, source)]


def _named(name: str, documents: Sequence[Document], source: str) -> Document:
    """Return the document of a name, or of NAMESPACE/NAME."""
    names = [(_name(each.body, "namespace"), _name(each.body)) for each in documents]
    found = [index for index, each in enumerate(names) if name in (each[1], _qualified(*each))]
    if not found:
        raise InputError(f"{source} has no {KIND} named {name or shown(name)}; it has: {', '.join(_choices(names))}.")
    if len(found) > 1:
        choices = ", ".join(_qualified(*names[index]) for index in found)
        raise InputError(f"{source} has {len(found)} {KIND}s named {name}; write --name with one of: {choices}.")
    return documents[found[0]]


def _choices(names: Sequence[tuple[str, str]]) -> list[str]:
    """Return what selects each object, by its namespace and name: the name alone, if no other object has it."""
    plain = [name for _, name in names]
    return [name if plain.count(name) == 1 else _qualified(namespace, name) for namespace, name in names]


def _qualified(namespace: str, name: str) -> str:
    return f"{namespace or DEFAULT_NAMESPACE}/{name}"


def _check_unique(documents: Sequence[Document], source: str) -> None:
    """Refuse two objects of one name in one namespace: the second would replace the first."""
    seen: dict[tuple[str, str], int] = {}
    for document in documents:
        line, key = document.line(("metadata", "name")), (_name(document.body, "namespace"), _name(document.body))
        if key[1] and key in seen:
            raise InputError(
                f"{source}:{line}: {key[1]} is the name of two PDDeployments, first on line {seen[key]}; rename one of "
                "them, or leave it out."
            )
        seen[key] = line


def _check_objects(documents: Sequence[Document], source: str) -> None:
    """Refuse what is no object of any kind: a PDDeployment without its head would be skipped."""
    for document in documents:
        if not isinstance(document.body, dict):
            line = document.line(())
            raise InputError(f"{source}:{line}: {shown(document.body)} is not an object; remove it.")
        if not document.body.get("kind"):
            line = document.line(("kind",))
            raise InputError(f"{source}:{line}: kind is missing; write kind: {KIND}, or remove the document.")


def _is_ours(body: Any) -> bool:
    if not isinstance(body, dict):
        return False
    group = str(body.get("apiVersion", "")).partition("/")[0]
    return body.get("kind") == KIND or group == API_VERSION.partition("/")[0]


def _name(body: Any, field: str = "name") -> str:
    """Return the object's name, or its namespace; empty if it has none."""
    metadata = body.get("metadata") if isinstance(body, dict) else None
    return str(metadata.get(field) or "") if isinstance(metadata, dict) else ""


def _kinds(documents: Iterable[Document]) -> str:
    kinds = [
        str(d.body.get("kind") or "a mapping without kind") if isinstance(d.body, dict) else "text" for d in documents
    ]
    return ", ".join(dict.fromkeys(kinds))


def _located(problem: "Problem", body: Any, document: Document, changes: Sequence[_Assignment]) -> tuple[int, str]:
    """Return the first line where the user wrote the fields, 0 for a flag, and the problem with every such place."""
    fields = [field for field in problem.fields if _contains(body, field)] or [problem.path]
    lines = sorted({_line(field, document, changes) for field in fields})
    places = " and ".join(f"{document.name}:{line}" if line else "--set" for line in lines)
    return lines[0], f"{places}: {_with_example(problem)}"


def _with_example(problem: "Problem") -> str:
    """Return the sentence about a field; if the field is missing, with an example of it."""
    example = _EXAMPLES.get(problem.path)
    if example is None or not problem.sentence.endswith(" is missing."):
        return problem.sentence
    return f"{problem.sentence.removesuffix('.')}; write for example {example}."


def _line(path: Sequence[int | str], document: Document, changes: Sequence[_Assignment]) -> int:
    """Return the line where the user wrote a field, or the parent that lacks it; 0 for a flag."""
    in_file = document.depth(path)
    for change in changes:
        steps = zip(change.path, path, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], steps))
        if shared == len(change.path) or shared > in_file:
            return 0
    return document.line(path)


def _contains(body: Any, path: Sequence[int | str]) -> bool:
    """Whether the user has written the field, in the file or in a flag."""
    for step in path:
        if not isinstance(body, dict) or step not in body:
            return False
        body = body[step]
    return True


def _parsed(assignment: str) -> _Assignment:
    path, equals, text = _decoded(assignment).partition("=")
    steps = re.sub(r"\[(\d+)\]", r".\1", path.strip()).split(".")
    if not equals or not all(steps):
        raise InputError(f"--set {assignment!r} is not PATH=VALUE; write for example spec.decode.replicas=2.")
    if wrong := re.search(r"\[.*?(\]|$)|\]", ".".join(steps)):
        example = f"{path.strip().partition('[')[0].rstrip(']')}[0]"
        raise InputError(f"--set {path}: {wrong[0]} is not an index; write a number from 0, for example {example}.")
    if not text.strip():
        raise InputError(f"--set {path}: the value is empty; write null to remove the field, or '\"\"' for empty text.")
    value = value_of(text, f"--set {path}")
    return _Assignment(tuple(int(s) if s.isdecimal() else s for s in steps), path.strip(), value)


def _decoded(assignment: str) -> str:
    """Return an assignment as UTF-8, also where the locale has another encoding; raises InputError."""
    try:
        return os.fsencode(assignment).decode() if re.search("[\ud800-\udfff]", assignment) else assignment
    except UnicodeError as error:
        raise InputError(f"--set {assignment!r} has a character that is not UTF-8; write it in UTF-8.") from error


def _assigned(body: Any, change: _Assignment) -> Any:
    node = changed = copy.deepcopy(body)
    for depth, (step, following) in enumerate(zip(change.path, (*change.path[1:], None), strict=True)):
        key: Any = _key(node, step, change.path[:depth], change.text)
        if change.value is None and (following is None or not _has(node, key)):
            if _has(node, key):
                del node[key]
            return changed
        if isinstance(node, list) and key == len(node):
            node.append(None)
        if following is None:
            node[key] = change.value
        elif (node[key] if isinstance(node, list) else node.get(key)) is not None:
            node = node[key]
        else:
            node[key] = node = [] if isinstance(following, int) else {}
    return changed


def _has(node: Any, key: int | str) -> bool:
    return key < len(node) if isinstance(node, list) and isinstance(key, int) else key in node


def _with_absolute_code(body: Any, base: Path) -> Any:
    """Return the body with the directory of a connector's code as an absolute path."""
    inner = body
    for step in _CODE_DIRECTORY[:-1]:
        inner = inner.get(step) if isinstance(inner, dict) else None
    directory = inner.get(_CODE_DIRECTORY[-1]) if isinstance(inner, dict) else None
    if not isinstance(directory, str) or usage.is_url(directory):
        return body
    return _assigned(body, _Assignment(_CODE_DIRECTORY, ".".join(_CODE_DIRECTORY), str(base / directory)))


def _key(node: Any, step: int | str, parents: Sequence[int | str], path: str) -> str | int:
    """Return the step as a key of a mapping or an index of a list, its length to append; `parents`: the node's path."""
    where = written(parents) or "the document"
    if isinstance(node, dict):
        return str(step)
    if not isinstance(node, list):
        raise InputError(f"--set {path}: {where} is {shown(node)}, which has no fields.")
    if not isinstance(step, int) or step > len(node):
        count = f"{len(node)} {'entry' if len(node) == 1 else 'entries'}"
        raise InputError(f"--set {path}: {where} is a list with {count}; write {where}[{len(node)}] to append one.")
    return step
