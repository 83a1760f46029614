"""The PDDeployment that a command works on: a file, with the changes of `--set`."""

import argparse
import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from pdx_api.spec.parse import InvalidDeploymentError, parse
from pdx_api.spec.types import PDDeployment
from pdx_cli.errors import CommandError

_CODE_DIRECTORY: Final = ("spec", "kvTransfer", "custom", "code", "directory")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of every command that reads a PDDeployment."""
    parser.add_argument("file", metavar="FILE", type=Path, help="YAML file with one PDDeployment")
    parser.add_argument(
        "--set",
        dest="assignments",
        metavar="PATH=VALUE",
        action="append",
        default=[],
        help="change one field, for example spec.kvTransfer.order=DecodeFirst (VALUE is YAML; repeatable)",
    )


def load(file: Path, assignments: Sequence[str]) -> PDDeployment:
    """Read the file, apply the assignments in their order, and parse.

    A relative directory in the file starts from the file's directory, in an assignment from the working directory.
    """
    body = _with_absolute_code(_read(file), file.absolute().parent)
    for assignment in assignments:
        body = assign(body, assignment)
    try:
        return parse(body)
    except InvalidDeploymentError as error:
        raise CommandError(f"{file}: {error}") from error


def assign(body: Any, assignment: str) -> Any:
    """Return a copy of the body with one `path=value` applied; missing mappings on the path are created."""
    path, equals, text = assignment.partition("=")
    steps = path.strip().split(".")
    if not equals or not all(steps):
        raise CommandError(f"--set {assignment!r} is not PATH=VALUE; write for example spec.decode.replicas=2.")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise CommandError(f"--set {path}: {text!r} is not a YAML value{_position(error)}.") from error
    changed = copy.deepcopy(body)
    node = changed
    for depth, step in enumerate(steps):
        key = _key(node, step, ".".join(steps[:depth]) or "the document", path)
        if depth == len(steps) - 1:
            node[key] = value
        elif isinstance(node, list) or node.get(key) is not None:
            node = node[key]
        else:
            node[key] = node = {}
    return changed


def _with_absolute_code(body: Any, base: Path) -> Any:
    """Return the body with the directory of a connector's code as an absolute path."""
    inner = body
    for step in _CODE_DIRECTORY[:-1]:
        inner = inner.get(step) if isinstance(inner, dict) else None
    directory = inner.get(_CODE_DIRECTORY[-1]) if isinstance(inner, dict) else None
    if not isinstance(directory, str):
        return body
    return assign(body, f"{'.'.join(_CODE_DIRECTORY)}={json.dumps(str(base / directory))}")


def _key(node: Any, step: str, where: str, path: str) -> str | int:
    """Return the step as a key of a mapping or an index of a list; `where` is the path of the node."""
    if isinstance(node, dict):
        return step
    if not isinstance(node, list):
        raise CommandError(f"--set {path}: {where} is {node!r:.40}, which has no fields.")
    if not step.isdecimal() or int(step) >= len(node):
        raise CommandError(f"--set {path}: {where} is a list with {len(node)} entries and has no entry {step}.")
    return int(step)


def _read(file: Path) -> Any:
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise CommandError(f"{file} does not exist.") from error
    except IsADirectoryError as error:
        raise CommandError(f"{file} is a directory; name a YAML file with one PDDeployment.") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"{file} is not a text file.") from error
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}.") from error
    try:
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    except yaml.YAMLError as error:
        raise CommandError(f"{file} is not YAML{_position(error)}.") from error
    if len(documents) != 1:
        count = "no document" if not documents else f"{len(documents)} documents"
        raise CommandError(f"{file} contains {count}; write a file with one PDDeployment.")
    return documents[0]


def _position(error: yaml.YAMLError) -> str:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return ""
    mark = error.problem_mark
    return f": line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
