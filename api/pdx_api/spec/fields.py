"""The base of the types: parts and bounded scalars."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, core_schema

from pdx_api.rule import Rule, matching, with_rules
from pdx_api.settings.groups import SETTINGS
from pdx_api.settings.kinds import integer_or_text


def without_default(schema: dict[str, Any]) -> None:
    """For `json_schema_extra` of a field for which the CRD gets no default.

    The API server adds the CRD's defaults to every object, and there a later version could not change them.
    """
    schema.pop("default", None)


@dataclass(frozen=True, slots=True)
class ListMap:
    """Annotation of a list type: the field `key` identifies each entry."""

    key: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def checked(entries: Any) -> Any:
            keys = [getattr(entry, self.key) for entry in entries]
            twice = next((key for i, key in enumerate(keys) if key in keys[:i]), None)
            if twice is not None:
                raise ValueError(f"{self.key} {twice} appears twice; write it once")
            return entries

        return core_schema.no_info_after_validator_function(checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [self.key]}


def with_keys(pattern: str, longest: int, message: str) -> Rule:
    """The rule that each key of a map matches a pattern and has at most `longest` characters."""
    compiled = re.compile(pattern)
    return Rule(
        f"self.all(key, key.size() <= {longest} && key.matches(r'{pattern}'))",
        message,
        lambda entries: all(len(key) <= longest and compiled.fullmatch(key) is not None for key in entries),
    )


class BrokenRulesError(ValueError):
    """A part breaks some of its rules."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        super().__init__("; ".join(rule.message for rule in rules))
        self.rules = tuple(rules)


class Part(BaseModel):
    """A part of the object: camelCase in YAML, frozen, without further fields. null means absent."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)

    rules: ClassVar[tuple[Rule, ...]] = ()
    """The rules between the fields of this part."""

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        # The API server does the same before it fills in defaults.
        if not isinstance(data, Mapping):
            return data
        names = {key for name, field in cls.model_fields.items() for key in (name, field.alias)}
        return {key: value for key, value in data.items() if value is not None or key not in names}

    @model_validator(mode="after")
    def _fulfils_its_rules(self) -> Self:
        broken = [rule for rule in self.rules if not rule.holds(self)]
        if broken:
            raise BrokenRulesError(broken)
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        found = with_rules(handler.resolve_ref_schema(handler(schema)), *cls.rules)
        for setting in (each for each in SETTINGS if issubclass(cls, each.group.fields)):
            field = found["properties"][to_camel(setting.field)]
            default = field.get("default") if setting.crd_default else field.pop("default")
            field["description"] = setting.description.replace("{default}", f"{default}")
        return found


def model_of(annotation: Any) -> type[BaseModel] | None:
    """The model in a field's annotation, also within a list, an optional or an annotated type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = (model_of(argument) for argument in getattr(annotation, "__args__", ()))
    return next((model for model in inner if model is not None), None)


def without_null(value: Any) -> Any:
    """A map without null entries, as the API server stores it."""
    if not isinstance(value, Mapping):
        return value
    return {key: entry for key, entry in value.items() if entry is not None}


def _is_quantity(value: int | str) -> bool:
    return value >= 0 if isinstance(value, int) else re.fullmatch(_QUANTITY, value) is not None


def _is_count_or_percentage(value: int | str) -> bool:
    return 0 <= value <= 1024 if isinstance(value, int) else re.fullmatch(_PERCENTAGE, value) is not None


_QUANTITY: Final = r"^[0-9]+([.][0-9]+)?([eE][-+]?[0-9]+|[numkMGTPE]|[KMGTPE]i)?$"
_KEY: Final = r"^([a-z0-9]([-.a-z0-9]*[a-z0-9])?/)?[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?$"
"""A name of at most 63 characters, with or without a domain before it."""
_PERCENTAGE: Final = r"^(100|[1-9]?[0-9])%$"

Flag = Annotated[bool, Field(strict=True)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=512)]
Argument = Annotated[str, StringConstraints(min_length=1, max_length=8192)]
AbsolutePath = Annotated[
    str,
    StringConstraints(max_length=4096),
    Rule("self.startsWith('/')", "write an absolute path, for example /models/qwen", lambda path: path[:1] == "/"),
]
RelativePath = Annotated[
    str,
    StringConstraints(max_length=4096),
    Rule(
        "!self.startsWith('/') && !self.split('/').exists(step, step == '..')",
        "write a path inside the volume, without / at the start or .. in it",
        lambda path: path[:1] != "/" and ".." not in path.split("/"),
    ),
]
ObjectName = Annotated[
    str,
    StringConstraints(max_length=253),
    matching(
        r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$",
        "write the name of an object: lower-case letters, digits, - and ., for example hub-token",
    ),
]
SecretKey = Annotated[
    str,
    StringConstraints(max_length=253),
    matching(r"^[-._a-zA-Z0-9]+$", "write a key of a secret: letters, digits, -, _ and ., for example token"),
]
ResourceName = Annotated[
    str,
    StringConstraints(max_length=317),
    matching(_KEY, "write the name of a resource, for example rdma/hca"),
]
LabelValue = Annotated[
    str,
    StringConstraints(max_length=63),
    matching(
        r"^([A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?)?$",
        "write a label's value: at most 63 letters, digits, -, _ and ., with a letter or digit at both ends",
    ),
]
_LABEL_KEY: Final = "write keys as name or domain/name, for example app or example.org/app"
LabelKey = Annotated[str, StringConstraints(max_length=317), matching(_KEY, _LABEL_KEY)]
Labels = Annotated[
    dict[str, LabelValue],
    Field(max_length=64),
    BeforeValidator(without_null),
    with_keys(_KEY, 317, _LABEL_KEY),
]
Annotations = Annotated[
    dict[str, Annotated[str, StringConstraints(max_length=16_384)]],
    Field(max_length=64),
    BeforeValidator(without_null),
    with_keys(_KEY, 317, "write keys as name or domain/name, for example example.org/note"),
]
Quantity = Annotated[
    int | str,
    BeforeValidator(integer_or_text),
    WithJsonSchema({"x-kubernetes-int-or-string": True, "maxLength": 64}),
    Rule(
        f"type(self) == int ? self >= 0 : self.matches(r'{_QUANTITY}')",
        "write a quantity, for example 2, 500m or 16Gi",
        _is_quantity,
    ),
]
Quantities = Annotated[
    dict[str, Quantity],
    Field(max_length=32),
    BeforeValidator(without_null),
    with_keys(_KEY, 317, "write resources as name or domain/name, for example cpu or nvidia.com/gpu"),
]
CountOrPercentage = Annotated[
    int | str,
    BeforeValidator(integer_or_text),
    WithJsonSchema({"x-kubernetes-int-or-string": True, "maxLength": 64}),
    Rule(
        f"type(self) == int ? self >= 0 && self <= 1024 : self.matches(r'{_PERCENTAGE}')",
        "write a number from 0 to 1024, or a percentage, for example 25%",
        _is_count_or_percentage,
    ),
]
