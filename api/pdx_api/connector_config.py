"""`spec.kvTransfer.config`: free form, but for the settings that a rule reads."""

from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from pdx_api.connectors.mooncake import DEVICE, PROTOCOL, PROTOCOLS
from pdx_api.connectors.nixl import LEASE
from pdx_api.defaults import LEASE_MARGIN_SECONDS
from pdx_api.fields import without_null

_LONGEST: Final = 86_400
_LONGEST_NAME: Final = 256


def _with_a_lease_in_seconds(config: dict[str, Any]) -> dict[str, Any]:
    lease = config.get(LEASE, 1)
    if isinstance(lease, bool) or not isinstance(lease, int) or not 1 <= lease <= _LONGEST:
        raise ValueError(f"{LEASE} is {lease!r:.40}; write whole seconds from 1 to {_LONGEST}")
    return config


def _with_a_protocol(config: dict[str, Any]) -> dict[str, Any]:
    protocol, device = config.get(PROTOCOL, PROTOCOLS[0]), config.get(DEVICE, "")
    if protocol not in PROTOCOLS:
        raise ValueError(f"{PROTOCOL} is {protocol!r:.40}; write {' or '.join(PROTOCOLS)}")
    if not isinstance(device, str) or len(device) > _LONGEST_NAME:
        raise ValueError(f"{DEVICE} is {device!r:.40}; write a text of at most {_LONGEST_NAME} characters")
    return config


ConnectorConfig = Annotated[
    dict[str, Any],
    Field(max_length=64),
    BeforeValidator(without_null),
    AfterValidator(_with_a_lease_in_seconds),
    AfterValidator(_with_a_protocol),
    WithJsonSchema(
        {
            "type": "object",
            "maxProperties": 64,
            "properties": {
                LEASE: {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": _LONGEST,
                    "description": "NIXL: how long P keeps finished blocks for D, in seconds. Default: "
                    f"routing.deadlines.handoffSeconds and {LEASE_MARGIN_SECONDS:g} s more.",
                },
                PROTOCOL: {
                    "type": "string",
                    "enum": list(PROTOCOLS),
                    "description": f"Mooncake: how its transfer engine moves bytes. Default: {PROTOCOLS[0]}.",
                },
                DEVICE: {
                    "type": "string",
                    "maxLength": _LONGEST_NAME,
                    "description": "Mooncake: the devices of rdma, for example mlx5_0,mlx5_1.",
                },
            },
            "additionalProperties": True,
        }
    ),
]
