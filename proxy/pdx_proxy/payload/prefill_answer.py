"""The members of P's answer that the gateway reads. Decoding all members takes twice as long.

This module is not compiled: msgspec reads the annotations, and a compiled class has none.
"""

from typing import Any, Final

import msgspec


class Choice(msgspec.Struct):
    """One choice of an answer; P's answer has one."""

    finish_reason: str | None


class Prefilled(msgspec.Struct):
    """A P's complete answer."""

    choices: list[Choice]
    kv_transfer_params: dict[str, Any] | None


PREFILLED: Final = msgspec.json.Decoder(Prefilled)
