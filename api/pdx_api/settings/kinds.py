"""The kinds of values: how a flag is read and written, and the schema of the spec's field. `read` raises ValueError."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_network
from typing import TYPE_CHECKING, Annotated, Any, Final

from pdx_api.quantities import quantity
from pdx_api.rule import Rule, matching
from pdx_api.user_info import without_user_info

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core import CoreSchema

_MAX_SECONDS: Final = 24 * 3600.0
_SIZE: Final = r"^[0-9]+([.][0-9]+)?([kMGT]|[KMGT]i)?$"
_SMALLEST: Final = 1024
_LARGEST: Final = 1024**4


class Kind:
    """What the values of a setting have in common."""

    __slots__ = ()
    metavar: str

    def read(self, text: str) -> Any:
        """Return the value of a flag; raises ValueError."""
        raise NotImplementedError

    def written(self, value: Any) -> str:
        """Return the text of a flag; for None that of no value."""
        return value or ""


def _refused(text: str, reason: str, instead: str) -> ValueError:
    """Return the error about a value, which may be empty: mostly a variable without a value."""
    given = without_user_info(text)
    return ValueError(f"{f'{given} {reason}' if text.strip() else 'the value is empty'}; {instead}")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0


@dataclass(frozen=True, slots=True)
class Whole(Kind):
    """A whole number."""

    least: int
    most: int
    optional: bool = False
    """Whether the spec's field may be absent. A flag then has 0."""
    metavar: str = "N"

    def read(self, text: str) -> float | None:
        least = 0 if self.optional else self.least
        if not (text.isascii() and text.isdigit()) or len(text) > 12 or not least <= int(text) <= self.most:
            raise _refused(text, "is not possible", f"write a whole number from {least} to {self.most}")
        return int(text) or (None if self.optional else 0)

    def written(self, value: float | None) -> str:
        return f"{value or 0:.9g}"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        schema = core_schema.int_schema(strict=True, ge=self.least, le=self.most)
        return core_schema.nullable_schema(schema) if self.optional else schema


@dataclass(frozen=True, slots=True)
class Seconds(Whole):
    """A time in seconds. A flag also has fractions, and up to a day."""

    metavar: str = "S"

    def read(self, text: str) -> float | None:
        value, least = _number(text), 0.001 if self.least and not self.optional else 0.0
        if not least <= value <= _MAX_SECONDS:
            raise _refused(text, "is not a time", f"write seconds from {least:g} to {_MAX_SECONDS:g}")
        return value or (None if self.optional else 0.0)


@dataclass(frozen=True, slots=True)
class Share(Kind):
    """A number from 0 to 1."""

    metavar: str = "SHARE"

    def read(self, text: str) -> float:
        value = _number(text)
        if not 0 <= value <= 1:
            raise _refused(text, "is not between 0 and 1", "write for example 0.1")
        return value

    def written(self, value: float) -> str:
        return f"{value:.9g}"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.float_schema(strict=True, ge=0, le=1, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Choice(Kind):
    """One of some names."""

    names: type[StrEnum]
    metavar: str

    def read(self, text: str) -> StrEnum:
        if text not in list(self.names):
            by_lower = {choice.lower(): choice for choice in self.names}
            near = difflib.get_close_matches(text.lower(), by_lower, n=1)
            instead = f"did you mean {by_lower[near[0]]}?" if near else f"write one of: {', '.join(self.names)}"
            raise _refused(text, "does not exist", instead)
        return self.names(text)


def integer_or_text(value: Any) -> Any:
    """Return the value; raises ValueError for one of another type."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("write an integer or a string")
    return value


def _is_size(value: int | str) -> bool:
    if isinstance(value, str) and re.fullmatch(_SIZE, value) is None:
        return False
    return _SMALLEST <= (quantity(value) or 0) <= _LARGEST


_IS_SIZE: Final = Rule(
    f"type(self) == int ? self >= {_SMALLEST} && self <= {_LARGEST} : self.matches(r'{_SIZE}') && "
    f"quantity(string(self)).compareTo(quantity('{_SMALLEST}')) >= 0 && "
    f"quantity(string(self)).compareTo(quantity('{_LARGEST}')) <= 0",
    "write an amount of memory from 1Ki to 1Ti, for example 256Mi",
    _is_size,
)


def in_bytes(size: int | str) -> int:
    """Return a size as a number of bytes."""
    found = quantity(size)
    assert found is not None, "a size is a quantity"
    return int(found)


@dataclass(frozen=True, slots=True)
class Size(Kind):
    """Bytes, as a quantity. A flag has their number."""

    metavar: str = "SIZE"

    def read(self, text: str) -> str:
        value = quantity(text)
        if value is None or not _SMALLEST <= value <= _LARGEST:
            raise _refused(text, "is not a size", "write bytes from 1Ki to 1Ti, for example 256Mi")
        return text

    def written(self, value: int | str) -> str:
        return str(in_bytes(value))

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(integer_or_text, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"x-kubernetes-int-or-string": True, "maxLength": 64}


@dataclass(frozen=True, slots=True)
class Text(Kind):
    """A text. A flag also checks its rules."""

    longest: int
    rules: tuple[Rule, ...] = ()
    metavar: str = "TEXT"

    def read(self, text: str) -> str:
        for rule in self.rules:
            if not rule.holds(text):
                raise _refused(text, "is not possible", rule.message)
        return text

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.str_schema(max_length=self.longest)


@dataclass(frozen=True, slots=True)
class Texts(Kind):
    """Some texts. Those of a repeated flag are added to the first ones."""

    most: int
    allows: Callable[[str], bool]
    refusal: str
    """What a flag answers for another text, after it."""
    metavar: str

    def read(self, text: str) -> tuple[str, ...]:
        found = tuple(each.strip() for each in text.split(","))
        for each in found:
            if not self.allows(each):
                raise ValueError(f"{each or 'an empty text'} {self.refusal}")
        return found

    def written(self, value: tuple[str, ...]) -> str:
        return ",".join(value)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema: Any = handler(source)
        return {**schema, "max_length": self.most}


def _is_network(text: str) -> bool:
    try:
        ip_network(text, strict=False)
    except ValueError:
        return False
    return True


_OCTET: Final = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV6: Final = "(([0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}|([0-9a-fA-F]{1,4}:){1,7}:|::)"
"""An IPv6 network: all eight groups, or the first ones and ::."""
_IS_NETWORK: Final = matching(
    rf"^(({_OCTET}[.]){{3}}{_OCTET}/(3[0-2]|[12]?[0-9])|{_IPV6}/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))$",
    "write a network as ADDRESS/LENGTH, for example 10.0.0.0/8 or fd00::/8",
)
_IS_ORIGIN: Final = matching(
    r"^([*]|[a-z][a-z0-9+.-]*://([a-z0-9]([-._a-z0-9]*[a-z0-9])?|\[[0-9a-f:.]+\])(:[0-9]{1,5})?)$",
    "write an origin as SCHEME://HOST[:PORT] in lower case, for example https://chat.example.com, or *",
)
"""An origin as browsers send it (RFC 6454, 6.2), or * for all of them."""
FILE: Final = Text(4096, (Rule("self != ''", "name a file", bool),), "FILE")
"""The name of a file, for a setting that is a flag only."""
Bytes = Annotated[int | str, Size(), _IS_SIZE]
"""An amount of memory, as a quantity."""
Networks = Annotated[
    tuple[Annotated[str, Text(43), _IS_NETWORK], ...],
    Texts(64, _is_network, "is not a network; write CIDRs, for example 10.0.0.0/8,fd00::/8", "CIDR,..."),
]
Origins = Annotated[
    tuple[Annotated[str, Text(253), _IS_ORIGIN], ...],
    Texts(
        64,
        _IS_ORIGIN.holds,
        "is not an origin; write SCHEME://HOST[:PORT] in lower case, for example https://chat.example.com, or * for "
        "all",
        "ORIGIN,...",
    ),
]
