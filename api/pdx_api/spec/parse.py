"""Parse a mapping into a PDDeployment, or into one sentence that names the error and the correction."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from pdx_api.names import API_VERSION, KIND
from pdx_api.spec.fields import model_of
from pdx_api.spec.types import PDDeployment


class InvalidDeploymentError(ValueError):
    """The object is invalid. The text is one sentence for the user."""


def parse(body: object, *, tolerant: bool = False) -> PDDeployment:
    """Parse a PDDeployment. Raises InvalidDeploymentError for the first error.

    A field that does not exist is an error for people. `tolerant` ignores it, for programs: an object in a cluster
    contains the defaults of a CRD that may be newer than the program, and the API server has checked its fields.
    """
    if not isinstance(body, Mapping):
        raise InvalidDeploymentError(
            "This is not a PDDeployment: write a mapping with apiVersion, kind, metadata and spec."
        )
    for key, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if body.get(key) != expected:
            raise InvalidDeploymentError(f"{key} is {body.get(key)!r}; write {key}: {expected}.")
    if "status" in body:
        body = {key: value for key, value in body.items() if key != "status"}
    try:
        return _validated(body, tolerant=tolerant)
    except ValidationError as error:
        raise InvalidDeploymentError(_sentence(error.errors(include_url=False)[0])) from error


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


def _sentence(error: ErrorDetails) -> str:
    path = ".".join(str(step) for step in error["loc"])
    match error["type"]:
        case "extra_forbidden":
            near = difflib.get_close_matches(str(error["loc"][-1]), _fields_at(error["loc"][:-1]), n=1)
            hint = (
                f"; did you mean {near[0]}?" if near else f"; write one of: {', '.join(_fields_at(error['loc'][:-1]))}."
            )
            return f"{path} does not exist{hint}"
        case "missing":
            return f"{path} is missing."
        case "value_error" if len(error["loc"]) < 2:
            return f"{error['ctx']['error']}."
        case "value_error" if isinstance(error["input"], str | int | float):
            return f"{path} is {error['input']!r:.80}: {error['ctx']['error']}."
        case "value_error":
            return f"{path}: {error['ctx']['error']}."
        case "too_long" | "string_too_long":
            unit = "entries" if error["type"] == "too_long" else "characters"
            return f"{path} is too long; write at most {error['ctx']['max_length']} {unit}."
        case "model_type" | "dict_type":
            return f"{path} is {error['input']!r:.80}; write a mapping."
        case "list_type":
            return f"{path} is {error['input']!r:.80}; write a list."
        case _:
            return f"{path}: {error['msg'][0].lower()}{error['msg'][1:]}, not {error['input']!r:.80}."


def _fields_at(path: Sequence[int | str]) -> list[str]:
    model: type[BaseModel] | None = PDDeployment
    for step in path:
        if isinstance(step, int) or model is None:
            continue
        model = next((model_of(f.annotation) for f in model.model_fields.values() if f.alias == step), None)
    if model is None:
        return []
    return [str(field.alias or name) for name, field in model.model_fields.items()]
