"""Parse a mapping into a PDDeployment, or into one sentence for each error, with the correction."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from pdx_api.names import API_VERSION, KIND
from pdx_api.spec.messages import Problem, problems
from pdx_api.spec.types import PDDeployment
from pdx_api.words import did_you_mean, shown


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
        found = [each for one in error.errors(include_url=False) for each in problems(one, PDDeployment)]
        raise InvalidDeploymentError(*found) from error


def _validated(body: Mapping[str, Any], *, tolerant: bool) -> PDDeployment:
    while True:
        try:
            return PDDeployment.model_validate(body, by_alias=True, by_name=False)
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
    found = []
    for key, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        given = body.get(key)
        if given is None:
            found.append(Problem((key,), f"{key} is missing; write {key}: {expected}."))
        elif given != expected:
            hint = did_you_mean(given, [expected]) if isinstance(given, str) else ""
            found.append(Problem((key,), f"{key} is {shown(given)}; {hint or f'write {key}: {expected}.'}"))
    return found
