"""How a setting is declared, and what follows from the declaration."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar, get_type_hints

from pdx_api.settings.kinds import Kind

REQUIRED: Final[Any] = dataclasses.MISSING
"""The default of a setting without which the spec has no such group, and the gateway none of its settings."""
Default = TypeVar("Default")


def setting(
    default: Default, flag_help: str, description: str = "", *, flag: str = "", crd_default: bool = True
) -> Default:  # a type checker sees a field with this default
    """Declare a field of a group, whose type is annotated with its kind. Without a description, it is a flag only."""
    texts = {"help": flag_help, "description": description, "flag": flag, "crd_default": crd_default}
    return dataclasses.field(default=default, metadata=texts)


@dataclass(frozen=True, slots=True)
class Group:
    """Settings of one class, and where they are."""

    fields: type
    """The class, a dataclass. The gateway's settings and the spec's part inherit from it."""
    part: str
    """Field of the gateway's `Settings`."""
    section: str
    """Title in the help."""
    spec: str = ""
    """The part of the spec, for example routing.deadlines; empty: the settings are flags only."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting."""

    group: Group
    field: str
    kind: Kind
    default: Any
    """None for a required one."""
    help: str
    """Of the flag, whose default follows it."""
    description: str
    """Of the spec's field, with its unit and its consequence; `{default}` stands for the default."""
    flag: str
    """By default it is named as the field."""
    crd_default: bool
    """Whether the CRD has the default. The API server adds it to every object, and there a later version could not
    change it."""


def declared(group: Group) -> Iterator[Setting]:
    """Yield the settings of a group."""
    hints = get_type_hints(group.fields, include_extras=True)
    for field in dataclasses.fields(group.fields):
        default = None if field.default is REQUIRED else field.default
        flag = field.metadata["flag"] or f"--{field.name.replace('_', '-')}"
        kind = hints[field.name].__metadata__[0]
        yield Setting(group, field.name, kind, default, **{**field.metadata, "flag": flag})
