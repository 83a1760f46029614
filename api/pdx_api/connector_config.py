"""`spec.kvTransfer.config`: free form, but for the one setting that a rule compares with another field."""

from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from pdx_api.connectors.nixl import LEASE
from pdx_api.defaults import LEASE_MARGIN_SECONDS
from pdx_api.fields import without_null

_LONGEST: Final = 86_400


def _with_a_lease_in_seconds(config: dict[str, Any]) -> dict[str, Any]:
    lease = config.get(LEASE, 1)
    if isinstance(lease, bool) or not isinstance(lease, int) or not 1 <= lease <= _LONGEST:
        raise ValueError(f"{LEASE} is {lease!r:.40}; write whole seconds from 1 to {_LONGEST}")
    return config


ConnectorConfig = Annotated[
    dict[str, Any],
    Field(max_length=64),
    BeforeValidator(without_null),
    AfterValidator(_with_a_lease_in_seconds),
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
                }
            },
            "additionalProperties": True,
        }
    ),
]
