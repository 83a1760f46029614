"""A rule that holds in Python and in the API server. Connectors state theirs, so nothing here loads pydantic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core import CoreSchema

RULES_KEY: Final = "x-kubernetes-validations"


@dataclass(frozen=True, slots=True)
class Rule:
    """What a value must fulfil, told twice: as CEL for the API server, as a function for everybody else.

    It annotates a field's type, or stands in the `rules` of a `Part`.
    """

    cel: str
    message: str
    """What to write instead: the end of a sentence that begins with the field's path, without a full stop."""
    holds: Callable[[Any], bool]

    def check(self, value: Any) -> None:
        """Raise ValueError with the message when the value does not fulfil it."""
        if not self.holds(value):
            raise ValueError(self.message)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        def checked(value: Any) -> Any:
            self.check(value)
            return value

        return core_schema.no_info_after_validator_function(checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return with_rules(handler(schema), self)


def with_rules(schema: Mapping[str, Any], *rules: Rule) -> dict[str, Any]:
    """The JSON schema with further rules."""
    told = [{"rule": rule.cel, "message": rule.message} for rule in rules]
    return {**schema, RULES_KEY: [*schema.get(RULES_KEY, ()), *told]} if told else dict(schema)


def cel_list(words: Iterable[str]) -> str:
    """A list of texts in CEL."""
    return f"[{', '.join(repr(str(word)) for word in words)}]"
