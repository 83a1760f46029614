"""A rule that both the API server and Python check. Connectors use it, so this module does not load pydantic."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core import CoreSchema

RULES_KEY: Final = "x-kubernetes-validations"


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on a value, in two forms that must agree: CEL for the API server, a function for Python.

    It annotates a field's type, or is one of the `rules` of a `Part`.
    """

    cel: str
    message: str
    """The reason and the correction: the end of a sentence that begins with the field's path, without a full stop."""
    holds: Callable[[Any], bool]
    fields: tuple[str, ...] = ()
    """The fields that it relates, for example `decode.parallelism.tensor`, from the value that has the rule."""

    def checked(self, value: Any) -> Any:
        """Return the value; raises ValueError with the message if it breaks the rule."""
        if not self.holds(value):
            raise ValueError(self.message)
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(self.checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return with_rules(handler(schema), self)


def matching(pattern: str, message: str) -> Rule:
    """The rule that a string matches a pattern, which means the same in RE2 and Python."""
    return Rule(f"self.matches(r'{pattern}')", message, lambda text: re.fullmatch(pattern, text) is not None)


def with_rules(schema: Mapping[str, Any], *rules: Rule) -> dict[str, Any]:
    """The JSON schema with further rules."""
    further = [{"rule": rule.cel, "message": rule.message} for rule in rules]
    return {**schema, RULES_KEY: [*schema.get(RULES_KEY, ()), *further]} if further else dict(schema)


def cel_list(values: Iterable[str]) -> str:
    """A list of strings in CEL."""
    return f"[{', '.join(repr(str(value)) for value in values)}]"
