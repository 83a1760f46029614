"""Whether a D may read a P's parameters. One P's wrong parameters can end the EngineCore of every D. Pure."""

from math import inf
from typing import Annotated, Any, Final

import msgspec

from pdx_api.connectors.families import MOST_CHARACTERS, MOST_DEVICES, MOST_PORT, Kind, Member
from pdx_proxy.payload.prefill_answer import BLOCKS

_MOST_BYTES: Final = 2 * 1024 * 1024
"""The largest answer of a P. The IDs of a million tokens in four groups of the KV cache take less."""
_MOST_NESTED_BYTES: Final = 1024 * 1024
"""The same if its parameters have nested values."""
_MOST_DEPTH: Final = 16
_MOST_GROUPS: Final = 256
_MOST_NUMBER: Final = 2**31 - 1
_MOST_CHARACTERS: Final[int] = MOST_CHARACTERS
_MOST_PORT: Final[int] = MOST_PORT
_MOST_DEVICES: Final[int] = MOST_DEVICES
"""Names of this module: those of a module that is not compiled are looked up at each use."""
_TRUE: Final = Kind.TRUE
_FALSE: Final = Kind.FALSE
_TEXT: Final = Kind.TEXT
_PORT: Final = Kind.PORT
_DEVICES: Final = Kind.DEVICES
_COUNT: Final = Kind.COUNT
_BLOCKS: Final = Kind.BLOCKS
_SCALAR: Final = Kind.SCALAR
_TYPES: Final[dict[Kind, Any]] = {
    Kind.TRUE: bool,
    Kind.FALSE: bool,
    Kind.TEXT: Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_CHARACTERS)],
    Kind.PORT: Annotated[int, msgspec.Meta(ge=1, le=MOST_PORT)],
    Kind.DEVICES: Annotated[int, msgspec.Meta(ge=1, le=MOST_DEVICES)],
    Kind.COUNT: Annotated[int, msgspec.Meta(ge=0, le=_MOST_NUMBER)],
    Kind.NUMBER: float,
    Kind.SCALAR: bool | int | float | str | None,
    Kind.BLOCKS: Annotated[
        list[list[Annotated[int, msgspec.Meta(ge=0, le=_MOST_NUMBER)]]], msgspec.Meta(max_length=_MOST_GROUPS)
    ],
}


class _Shape:
    """A family's parameters as a type: msgspec decodes it as fast as a dictionary, and checks it meanwhile."""

    __slots__ = ("blocks", "decoder", "flags", "members", "texts")

    def __init__(self, members: tuple[Member, ...]) -> None:
        self.members = members
        """Keeps them alive: the shape is found by their identity."""
        fields: list[Any] = [(name, _TYPES[kind]) for name, kind, required in members if required]
        fields += [(name, _TYPES[kind] | None, None) for name, kind, required in members if not required]
        self.decoder: Any = msgspec.json.Decoder(msgspec.defstruct("Params", fields, forbid_unknown_fields=True))
        self.blocks = [name for name, kind, _ in members if kind is _BLOCKS]
        self.flags = [(name, kind is _TRUE) for name, kind, _ in members if kind is _TRUE or kind is _FALSE]
        self.texts = [name for name, kind, _ in members if kind is _TEXT]


_SHAPES: Final[dict[int, _Shape]] = {}
"""By the identity of a family's members."""


def are_usual(params: msgspec.Raw, members: tuple[Member, ...]) -> bool:
    """Whether P's parameters have the members of the family only, each with a value of its kind.

    Raises DecodeError if they do not, or are none.
    """
    shape = _SHAPES.get(id(members))
    if shape is None:
        shape = _SHAPES[id(members)] = _Shape(members)
    if len(params) > _MOST_BYTES:
        return False
    found = shape.decoder.decode(params)
    for name, expected in shape.flags:
        if getattr(found, name) is not expected:
            return False
    for name in shape.texts:
        if not getattr(found, name).isascii():
            return False
    return all(any(getattr(found, name)) for name in shape.blocks)


def fault_of(params: dict[str, Any], members: tuple[Member, ...], size: int, *, nested: bool) -> str:
    """Return what is wrong with P's parameters; empty if nothing is.

    `size`: bytes of P's answer. `nested`: they may have other lists than the IDs of blocks by group.
    """
    if size > (_MOST_NESTED_BYTES if nested else _MOST_BYTES):
        return f"an answer of {size} bytes"
    if nested and _is_deep(params):
        return f"more than {_MOST_DEPTH} levels"
    for name, kind, required in members:
        value = params.get(name)
        if value is None:
            if required:
                return f"no {name}"
        elif not _fits(value, kind, nested):
            return f"{name} is {str(value)[:40]!r}"
    return ""


def _fits(value: Any, kind: Kind, nested: bool) -> bool:
    """Whether a member has a value of its kind."""
    if kind is _TEXT:
        return isinstance(value, str) and 0 < len(value) <= _MOST_CHARACTERS and value.isascii()
    if kind is _BLOCKS:
        return _are_blocks(value, nested)
    if kind is _SCALAR:
        return not isinstance(value, list | dict)
    if kind is _TRUE:
        return value is True
    if kind is _FALSE:
        return value is False
    if isinstance(value, bool):
        return False
    if isinstance(value, int):
        if kind is _PORT:
            return 0 < value <= _MOST_PORT
        return 0 < value <= _MOST_DEVICES if kind is _DEVICES else 0 <= value <= _MOST_NUMBER
    return kind is Kind.NUMBER and isinstance(value, float) and -inf < value < inf


def _are_blocks(value: Any, nested: bool) -> bool:
    if not isinstance(value, list) or len(value) > _MOST_GROUPS:
        return False
    if nested:
        try:
            msgspec.convert(value, BLOCKS)
        except msgspec.ValidationError:
            return False
    groups: list[list[int]] = value
    found = False
    for group in groups:
        for each in group:
            if each < 0 or each > _MOST_NUMBER:
                return False
            found = True
    return found


def _is_deep(params: dict[str, Any]) -> bool:
    """Whether values are nested too deep, by level: the decoder bounds the recursion, but far higher."""
    level: list[Any] = [params]
    for _ in range(_MOST_DEPTH):
        below: list[Any] = []
        for value in level:
            inside = value.values() if isinstance(value, dict) else value
            below += [each for each in inside if isinstance(each, dict | list)]
        if not below:
            return False
        level = below
    return True
