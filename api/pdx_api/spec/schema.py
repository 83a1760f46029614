"""The structural schema of the types, with rules, bounds and defaults, for the CustomResourceDefinition. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic.json_schema import GenerateJsonSchema

from pdx_api.names import GROUP, KIND, VERSION
from pdx_api.rule import RULES_KEY
from pdx_api.spec.status import Status
from pdx_api.spec.types import NAME_RULE, PDDeployment, Spec

Schema = dict[str, Any]

INT_OR_STRING: Final = "x-kubernetes-int-or-string"
PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"
LIST_TYPE: Final = "x-kubernetes-list-type"

_KEPT: Final = (
    *("type", "format", "description", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength"),
    *("minItems", "maxItems", "minProperties", "maxProperties"),
    *(INT_OR_STRING, LIST_TYPE, "x-kubernetes-list-map-keys", RULES_KEY),
)
"""Keys that the structural schema takes from the JSON schema unchanged."""
_READ: Final = (
    *("title", "default", "const", "anyOf", "items", "properties", "required", "additionalProperties", "propertyNames"),
    "readOnly",
)
"""Keys that are translated, or that the API server does not check."""


class NotStructuralError(TypeError):
    """A structural schema cannot express a type. The text names the field."""


def object_schema() -> Schema:
    """The structural schema of a PDDeployment."""
    assert PDDeployment.__doc__ is not None
    name_rule = {
        "rule": NAME_RULE.cel.replace("self", "self.metadata.name"),
        "message": NAME_RULE.message,
        "fieldPath": ".metadata.name",
    }
    return {
        "type": "object",
        "description": PDDeployment.__doc__,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": f"{GROUP}/{VERSION}."},
            "kind": {"type": "string", "description": f"{KIND}."},
            "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 253}}},
            "spec": structural(_json_schema(Spec), "spec"),
            "status": structural(_json_schema(Status), "status"),
        },
        RULES_KEY: [name_rule],
    }


def structural(schema: Mapping[str, Any], path: str) -> Schema:
    """A JSON schema of pydantic as structural schema. Raises NotStructuralError for a type that it cannot express."""
    schema = _without_null(schema, path)
    rest = [key for key in schema if key not in _KEPT and key not in _READ]
    if rest:
        raise NotStructuralError(f"{path}: {', '.join(rest)}")
    found: Schema = {key: schema[key] for key in _KEPT if key in schema}
    if "const" in schema:
        found["enum"] = [schema["const"]]
    if schema.get("default") is not None:
        # The API server checks a default by the object's rules before it fills in the inner defaults.
        inner = found.get("type") == "object" and RULES_KEY not in found
        found["default"] = {} if inner else _stated(schema["default"], schema)
    if found.get("type") == "array":
        found["items"] = structural(schema["items"], f"{path}[]")
        found.setdefault(LIST_TYPE, "atomic")
    if found.get("type") == "object":
        found |= _object(schema, path)
    return found


def _stated(default: Any, schema: Mapping[str, Any]) -> Any:
    """A default without null values, which the API server refuses, and without fields that have no default."""
    if not isinstance(default, Mapping) or "properties" not in schema:
        return default
    fields = schema["properties"]
    return {
        name: _stated(value, fields[name])
        for name, value in default.items()
        if value is not None and "default" in fields[name]
    }


def _object(schema: Mapping[str, Any], path: str) -> Schema:
    further = schema.get("additionalProperties")
    if "properties" in schema:
        properties = {name: structural(inner, f"{path}.{name}") for name, inner in schema["properties"].items()}
        required = [name for name in schema.get("required", ()) if not schema["properties"][name].get("readOnly")]
        return {
            **({"required": required} if required else {}),
            "properties": properties,
            **({PRESERVE: True} if further is True else {}),
        }
    if isinstance(further, Mapping):
        return {"additionalProperties": structural(further, f"{path}.*")}
    if further is True:
        return {"additionalProperties": {PRESERVE: True}}
    raise NotStructuralError(f"{path}: an object without properties")


def _without_null(schema: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """`T | None` is an optional T: the API server drops null."""
    if "anyOf" not in schema:
        return schema
    kinds = [kind for kind in schema["anyOf"] if kind != {"type": "null"}]
    if len(kinds) != 1:
        raise NotStructuralError(f"{path}: a choice of {len(kinds)} types")
    return {**kinds[0], **{key: value for key, value in schema.items() if key != "anyOf"}}


def _json_schema(model: type[Spec | Status]) -> Schema:
    generator = GenerateJsonSchema(by_alias=True)
    found = generator.generate(model.__pydantic_core_schema__, mode="serialization")
    return dict(_inlined(found, found.get("$defs", {})))


def _inlined(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """The schema with every reference replaced by its definition."""
    if isinstance(schema, list):
        return [_inlined(entry, definitions) for entry in schema]
    if not isinstance(schema, Mapping):
        return schema
    if "$ref" in schema:
        schema = {**definitions[schema["$ref"].rsplit("/", 1)[-1]], **{k: v for k, v in schema.items() if k != "$ref"}}
    return {key: _inlined(value, definitions) for key, value in schema.items() if key != "$defs"}
