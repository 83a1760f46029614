"""What is read of P's answer. Decoding all of it takes twice as long.

A module of its own because it stays Python: msgspec reads the annotations, which a compiled class has none of.
"""

from typing import Any, Final

import msgspec


class Choice(msgspec.Struct):
    """One of its answers; of a P, the only one."""

    finish_reason: str | None


class Prefilled(msgspec.Struct):
    """A P's complete answer."""

    choices: list[Choice]
    kv_transfer_params: dict[str, Any] | None


PREFILLED: Final = msgspec.json.Decoder(Prefilled)
