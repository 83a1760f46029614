"""`spec.kvTransfer.config`: free form, except for the settings of the connectors."""

from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from pdx_api.connectors import CONNECTORS
from pdx_api.rules.connector_rules import settings
from pdx_api.spec.fields import without_null

_SETTINGS: Final = settings(CONNECTORS.values())


def _checked(config: dict[str, Any]) -> dict[str, Any]:
    for setting in _SETTINGS:
        if setting.name in config and not setting.holds(config[setting.name]):
            raise ValueError(f"{setting.name} is {config[setting.name]!r:.40}; {setting.write}")
    return config


ConnectorConfig = Annotated[
    dict[str, Any],
    Field(max_length=64),
    BeforeValidator(without_null),
    AfterValidator(_checked),
    WithJsonSchema(
        {
            "type": "object",
            "maxProperties": 64,
            "properties": {
                setting.name: {**setting.schema, "description": f"{connectors}: {setting.schema['description']}"}
                for setting, connectors in _SETTINGS.items()
            },
            "additionalProperties": True,
        }
    ),
]
