"""The members of P's answer that the gateway reads. Decoding all members takes twice as long.

This module is not compiled: msgspec reads the annotations, and a compiled class has none.
"""

from typing import Annotated, Any, Final, Generic, Literal, TypeAlias, TypeVar

import msgspec
from msgspec.json import Decoder

Params: TypeAlias = dict[str, Any] | None
_Block: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Plain: TypeAlias = dict[str, bool | int | float | str | list[list[_Block]] | None] | None
"""What vLLM's connectors answer: no list but the IDs of blocks by group. To check that here costs nothing."""
BLOCKS: Final = list[list[int]]
T = TypeVar("T")


class Choice(msgspec.Struct):
    """One choice of an answer; P's answer has one."""

    finish_reason: str | None


class Completion(msgspec.Struct, Generic[T]):
    """A P's complete answer at /v1/completions or /v1/chat/completions."""

    choices: list[Choice]
    kv_transfer_params: T


class Message(msgspec.Struct, Generic[T]):
    """The same at /v1/messages, which leaves out members without a value (entrypoints/anthropic/api_router.py)."""

    type: Literal["message"]
    stop_reason: str | None = None
    kv_transfer_params: T | None = None


class Usage(msgspec.Struct):
    """The usage of a response."""

    output_tokens: int


class Response(msgspec.Struct, Generic[T]):
    """The same at /v1/responses."""

    object: Literal["response"]
    usage: Usage
    kv_transfer_params: T


class Ended(msgspec.Struct):
    """A response with its usage."""

    usage: Usage


class Completed(msgspec.Struct):
    """The data of the event `response.completed`."""

    response: Ended


Raw: TypeAlias = msgspec.Raw
COMPLETION: Final = (
    Decoder(Completion[Plain]),
    Decoder(Completion[Params]),
    Decoder(Completion[Raw]),
)
MESSAGE: Final = (
    Decoder(Message[Plain]),
    Decoder(Message[Params]),
    Decoder(Message[Raw]),
)
RESPONSE: Final = (
    Decoder(Response[Plain]),
    Decoder(Response[Params]),
    Decoder(Response[Raw]),
)
PLAIN, NESTED, RAW = range(3)
"""How the parameters are decoded: as vLLM's connectors answer them, as any JSON object, or not at all."""
ENDED: Final = Decoder(Ended)
COMPLETED: Final = Decoder(Completed)
