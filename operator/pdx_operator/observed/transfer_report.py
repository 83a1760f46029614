"""The combined result of the transfer probes of an object's gateways."""

from dataclasses import dataclass

from pdx_api.verification import Finding


@dataclass(frozen=True, slots=True)
class TransferReport:
    """What an object's gateways have reported so far."""

    finding: Finding | None = None
    """None: no gateway has reported yet."""
    unreachable: bool = False
    """Whether no gateway answers."""
