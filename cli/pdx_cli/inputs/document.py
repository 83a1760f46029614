"""The PDDeployment that a command works on: a file, changed by `--set`, parsed."""

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
    """The arguments of every command that reads a PDDeployment."""
    parser.add_argument("file", metavar="FILE", type=Path, help="YAML file with one PDDeployment")
    parser.add_argument(
        "--set",
        dest="assignments",
        metavar="PATH=VALUE",
        action="append",
        default=[],
        help="change one field before use, for example spec.kvTransfer.order=DecodeFirst (VALUE is YAML; repeatable)",
    )


def load(file: Path, assignments: Sequence[str]) -> PDDeployment:
    """Read the file, apply the assignments in their order, and parse.

    Directories that the file names start from where it is, those of assignments from where the command runs.
    """
    body = _from_its_place(_read(file), file.absolute().parent)
    for assignment in assignments:
        body = assign(body, assignment)
    try:
        return parse(body)
    except InvalidDeploymentError as error:
        raise CommandError(f"{file}: {error}") from error


def assign(body: Any, assignment: str) -> Any:
    """A copy of the body with one `path=value` applied; missing mappings on the way are made."""
    path, equals, text = assignment.partition("=")
    steps = path.strip().split(".")
    if not equals or not all(steps):
        raise CommandError(f"--set {assignment!r} is not PATH=VALUE; write for example spec.decode.replicas=2.")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise CommandError(f"--set {path}: {text!r} is not a YAML value{_place(error)}.") from error
    changed = copy.deepcopy(body)
    place = changed
    for depth, step in enumerate(steps):
        key = _key(place, step, ".".join(steps[:depth]) or "the document", path)
        if depth == len(steps) - 1:
            place[key] = value
        elif isinstance(place, list) or place.get(key) is not None:
            place = place[key]
        else:
            place[key] = place = {}
    return changed


def _from_its_place(body: Any, place: Path) -> Any:
    """The body with the directory of a connector's code as an absolute path."""
    inner = body
    for step in _CODE_DIRECTORY[:-1]:
        inner = inner.get(step) if isinstance(inner, dict) else None
    directory = inner.get(_CODE_DIRECTORY[-1]) if isinstance(inner, dict) else None
    if not isinstance(directory, str):
        return body
    return assign(body, f"{'.'.join(_CODE_DIRECTORY)}={json.dumps(str(place / directory))}")


def _key(place: Any, step: str, where: str, path: str) -> str | int:
    if isinstance(place, dict):
        return step
    if not isinstance(place, list):
        raise CommandError(f"--set {path}: {where} is {place!r:.40}, which has no fields.")
    if not step.isdecimal() or int(step) >= len(place):
        raise CommandError(f"--set {path}: {where} is a list of {len(place)}, so {step} is none of its entries.")
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
        raise CommandError(f"{file} is not YAML{_place(error)}.") from error
    if len(documents) != 1:
        count = "no document" if not documents else f"{len(documents)} documents"
        raise CommandError(f"{file} holds {count}; a command takes a file with one PDDeployment.")
    return documents[0]


def _place(error: yaml.YAMLError) -> str:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return ""
    mark = error.problem_mark
    return f": line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
