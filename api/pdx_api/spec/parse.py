"""Parse a mapping into a PDDeployment, or into one sentence for each error, with the correction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from pdx_api.names import API_VERSION, KIND
from pdx_api.spec.messages import Path, did_you_mean, sentences, shown
from pdx_api.spec.types import PDDeployment


@dataclass(frozen=True, slots=True)
class Problem:
    """One error of an object."""

    path: Path
    """Keys and indices of the field; empty for the object itself."""
    sentence: str


class InvalidDeploymentError(ValueError):
    """The object is invalid. The text is one sentence for the user: the first of `problems`."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__(problems[0].sentence)
        self.problems = problems
        """Every error, in the order of the object's fields; never empty."""


def parse(body: object, *, tolerant: bool = False) -> PDDeployment:
    """Parse a PDDeployment. Raises InvalidDeploymentError with every error.

    A rule between fields is checked only if each of these fields is valid.

    A field that does not exist is an error for people. `tolerant` ignores it, for programs: an object in a cluster
    contains the defaults of a CRD that may be newer than the program, and the API server has checked its fields.
    """
    if not isinstance(body, Mapping):
        text = "This is not a PDDeployment: write a mapping with apiVersion, kind, metadata and spec."
        raise InvalidDeploymentError(Problem((), text))
    if wrong := _wrong_type(body):
        raise InvalidDeploymentError(*wrong)
    if "status" in body:
        body = {key: value for key, value in body.items() if key != "status"}
    try:
        return _validated(body, tolerant=tolerant)
    except ValidationError as error:
        found = [each for one in error.errors(include_url=False) for each in sentences(one, PDDeployment)]
        raise InvalidDeploymentError(*_without_consequences(found)) from error


def _validated(body: Mapping[str, Any], *, tolerant: bool) -> PDDeployment:
    while True:
        try:
            return PDDeployment.model_validate(body)
        except ValidationError as error:
            extra = [each["loc"] for each in error.errors(include_url=False) if each["type"] == "extra_forbidden"]
            if not tolerant or not extra:
                raise
            for path in extra:
                body = _without(body, path)


def _without(value: Any, path: Sequence[int | str]) -> Any:
    """A copy of a value without the field at this path."""
    step, further = path[0], path[1:]
    if isinstance(step, int):
        return [_without(entry, further) if i == step else entry for i, entry in enumerate(value)]
    if not further:
        return {key: entry for key, entry in value.items() if key != step}
    return {**value, step: _without(value[step], further)}


def _wrong_type(body: Mapping[str, object]) -> list[Problem]:
    """Return the errors of apiVersion and kind. With them, the fields of the object have no meaning."""
    version, kind = body.get("apiVersion"), body.get("kind")
    if (
        isinstance(version, str)
        and isinstance(kind, str)
        and version.partition("/")[0] != API_VERSION.partition("/")[0]
    ):
        if kind == KIND:
            return [Problem(("apiVersion",), f"apiVersion is '{version}'; write apiVersion: {API_VERSION}.")]
        text = f"This is a {kind} ({version}), not a {KIND} ({API_VERSION})."
        return [Problem(("kind",), text)]
    problems = []
    for key, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        given = body.get(key)
        if given is None:
            problems.append(Problem((key,), f"{key} is missing; write {key}: {expected}."))
        elif given != expected:
            hint = did_you_mean(given, [expected]) if isinstance(given, str) else ""
            problems.append(Problem((key,), f"{key} is {shown(given)}; {hint or f'write {key}: {expected}.'}"))
    return problems


def _without_consequences(found: list[tuple[Path, str]]) -> list[Problem]:
    """Return the problems without those that another one explains: `value` is missing beside `valueFrom`."""
    explained = {(*path[:-1], "value") for path, _ in found if path[-1:] == ("valueFrom",)}
    return [Problem(path, text) for path, text in found if path not in explained]
