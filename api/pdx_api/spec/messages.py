"""pydantic's errors as sentences: paths as users write them, YAML's words, and the correction. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from pdx_api.connectors import connector_hint
from pdx_api.spec.fields import BrokenRulesError, model_of
from pdx_api.words import did_you_mean, key_is_no_text, key_text, shown, written

Path = tuple[int | str, ...]

_IN_POD_TEMPLATE: Final = {
    **dict.fromkeys(("nodeSelector", "tolerations", "affinity", "volumes", "imagePullSecrets", "securityContext")),
    **dict.fromkeys(("serviceAccountName", "priorityClassName", "topologySpreadConstraints", "runtimeClassName")),
    **dict.fromkeys(("hostNetwork", "schedulerName", "containers", "initContainers", "terminationGracePeriodSeconds")),
}
_IN_CONTAINER: Final = ("envFrom", "volumeMounts", "command", "livenessProbe", "readinessProbe", "startupProbe")
_ELSEWHERE: Final[dict[tuple[str, str], str]] = {
    ("spec", "replicas"): "write spec.prefill.replicas and spec.decode.replicas",
    ("spec", "image"): "write spec.engine.image",
    ("spec", "args"): "write spec.engine.args for both roles, or args of one role",
    ("spec", "env"): "write spec.engine.env for both roles, or env of one role",
    ("spec", "connector"): "write spec.kvTransfer.connector",
    ("spec", "order"): "write spec.kvTransfer.order",
    ("spec", "template"): "write podTemplate of a role, for example spec.decode.podTemplate",
    ("spec", "resources"): "write resources of a role, for example spec.decode.resources",
}
"""(parent, field) of other kinds of objects -> what a PDDeployment has instead."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One error of an object."""

    path: Path
    """Keys and indices of the field; empty for the object itself."""
    sentence: str
    fields: tuple[Path, ...] = ()
    """The fields that a broken rule relates; empty for an error of one field."""


def problems(error: ErrorDetails, model: type[BaseModel]) -> Iterator[Problem]:
    """Yield each problem that one of pydantic's errors contains."""
    path = tuple(error["loc"])
    if (parent := _parent_of_key(error, path)) is not None:
        yield Problem((*parent, key_text(error["input"])), key_is_no_text(parent, error["input"]))
        return
    if error["type"] != "value_error":
        yield Problem(path, _sentence(error, path, model))
        return
    cause = error["ctx"]["error"]
    if not isinstance(cause, BrokenRulesError):
        yield Problem(path, _broken_rule(path, error["input"], str(cause)))
        return
    for rule in cause.rules:
        fields = tuple((*path, *field.split(".")) for field in rule.fields)
        yield Problem(path, _broken_rule(path, error["input"], rule.message), fields)


def _broken_rule(path: Path, value: object, reason: str) -> str:
    if len(path) < 2:
        return f"{reason}."
    if path[-2:] == ("kvTransfer", "connector") and isinstance(value, str):
        hint = connector_hint(value)
        return f"{written(path)} is {shown(value)}, which does not exist; {hint}"
    if isinstance(value, str | int | float):
        return f"{written(path)} is {shown(value)}: {reason}."
    return f"{written(path)}: {reason}."


def _sentence(error: ErrorDetails, path: Path, model: type[BaseModel]) -> str:
    where, given, context = written(path), shown(error["input"]), error.get("ctx") or {}
    match error["type"]:
        case "extra_forbidden":
            return f"{where} {_nonexistent(path, model)}"
        case "missing":
            return f"{where} is missing."
        case "too_long" | "string_too_long":
            unit = "entries" if error["type"] == "too_long" else "characters"
            return f"{where} is too long; write at most {context['max_length']} {unit}."
        case "string_too_short" | "too_short":
            return f"{where} is empty; write a value{'' if _is_required(path, model) else ', or leave it out'}."
        case "enum" | "literal_error":
            choices = _choices(str(context["expected"]))
            hint = did_you_mean(error["input"], choices) if isinstance(error["input"], str) else ""
            options = f"write one of: {', '.join(choices)}"
            return f"{where} is {given}; {options}; {hint}" if hint else f"{where} is {given}; {options}."
        case "greater_than_equal" | "greater_than" | "less_than_equal" | "less_than" as kind:
            return f"{where} is {given}; write {_bound(kind, context)}."
    expected = _EXPECTED.get(error["type"])
    if expected is None:
        return f"{where} is {given}: {error['msg'][0].lower()}{error['msg'][1:]}."
    return f"{where} is {given}; write {expected}{_example(error['type'], path)}."


def _example(kind: str, path: Path) -> str:
    """Return an example of a list, or of one of its entries; empty if there is none."""
    if kind in ("list_type", "tuple_type") and path[-1] in _ENTRIES:
        return f", for example [{_ENTRIES[path[-1]]}]"
    if kind in ("model_type", "model_attributes_type") and len(path) > 1 and path[-2] in _ENTRIES:
        return f", for example {_ENTRIES[path[-2]]}"
    return ""


def _parent_of_key(error: ErrorDetails, path: Path) -> Path | None:
    """Return the mapping of a key that is no text; None if the error is another one."""
    if error["type"] == "invalid_key":
        return path[:-1]
    return path[:-2] if error["type"] == "string_type" and path[-1:] == ("[key]",) else None


_EXPECTED: Final = {
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    "string_type": "a text, in quotes",
    "string_sub_type": "a text, in quotes",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing", "finite_number"), "a number"),
}
"""Type of pydantic's error -> what to write."""
_ENTRIES: Final[dict[int | str, str]] = {
    "adapters": "{name: sql-v2, path: /models/sql-v2}",
    "args": "--seed=1",
    "env": "{name: HF_HUB_OFFLINE, value: '1'}",
}
"""Field -> an entry of its list. Other tools write some of these lists as mappings."""


def _bound(kind: str, context: Mapping[str, Any]) -> str:
    low = kind.startswith("greater")
    bound = next(iter(context.values()))
    limit = f"{bound:g}" if isinstance(bound, float) else bound
    inclusive = kind.endswith("_equal")
    if inclusive:
        return f"{limit} or {'more' if low else 'less'}"
    return f"{'more' if low else 'less'} than {limit}"


def _choices(expected: str) -> list[str]:
    """Return the choices in pydantic's text `'A', 'B' or 'C'`."""
    return [choice.strip().strip("'") for choice in expected.replace(" or ", ", ").split(",")]


def _nonexistent(path: Path, model: type[BaseModel]) -> str:
    """Return what is wrong with a field that does not exist, and the field to write instead."""
    field, parent = str(path[-1]), path[:-1]
    fields = _fields_at(parent, model)
    if instead := _ELSEWHERE.get((str(parent[-1]) if parent else "", field)):
        return f"does not exist; {instead}."
    owner = str(parent[1]) if len(parent) > 1 and parent[0] == "spec" else ""
    has_template = owner in ("prefill", "decode", "aggregated", "gateway")
    template = f"spec.{owner if has_template else 'engine'}.podTemplate"
    if field in _IN_CONTAINER:
        container = "gateway" if owner == "gateway" else "engine"
        return f"does not exist; write it in {template}, in spec.containers, for the container {container}."
    if field in _IN_POD_TEMPLATE:
        return f"does not exist; write it in {template}, in spec."
    if hint := did_you_mean(field, list(fields)):
        return f"does not exist; {hint}"
    return f"does not exist; write one of: {', '.join(fields)}."


def _is_required(path: Path, root: type[BaseModel]) -> bool:
    field = _fields_at(path[:-1], root).get(str(path[-1]))
    return field is not None and field.is_required()


def _fields_at(path: Sequence[int | str], root: type[BaseModel]) -> dict[str, FieldInfo]:
    model: type[BaseModel] | None = root
    for step in path:
        if isinstance(step, int) or model is None:
            continue
        model = next((model_of(f.annotation) for f in model.model_fields.values() if f.alias == step), None)
    if model is None:
        return {}
    return {str(field.alias or name): field for name, field in model.model_fields.items()}
