"""`spec.kvTransfer.custom`: the description of a user's KV connector."""

from typing import Annotated, Any, ClassVar, Final

from pydantic import BeforeValidator, Field, StringConstraints, WithJsonSchema

from pdx_api.connectors.custom import DEFAULT_PREFILL_PARAMS, MAX_SAVED_AFTER_MILLISECONDS, Custom, FamilyName
from pdx_api.names import CODE_MOUNT
from pdx_api.rule import Rule, cel_list, matching
from pdx_api.spec.fields import ObjectName, Part, Text, without_default, without_null

_FAMILIES: Final = ", ".join(FamilyName)
_FAMILY: Final = f"(has(self.family) ? self.family : '{FamilyName.PULL}')"

PrefillParams = Annotated[
    dict[str, Any],
    Field(max_length=64),
    BeforeValidator(without_null),
    WithJsonSchema(
        {
            "type": "object",
            "maxProperties": 64,
            "properties": {"do_remote_decode": {"type": "boolean", "description": "vLLM's own parameter."}},
            "additionalProperties": True,
        }
    ),
]


class CodeConfigMap(Part):
    """Files of Python code."""

    name: ObjectName = Field(description="Name of a ConfigMap in the namespace of the object; each key is a file.")


class ConnectorCode(Part):
    """The source of a module that the engines' image does not contain: one field for a cluster, one for `pdx up`."""

    config_map: CodeConfigMap | None = Field(
        default=None,
        description=f"In a cluster: mounted at {CODE_MOUNT}, which is first on the engines' PYTHONPATH. Running "
        "engines keep the code that they have imported, so put changed code into a ConfigMap with another name.",
    )
    directory: Text | None = Field(
        default=None,
        description="For `pdx up`: a directory that is first on the engines' PYTHONPATH, relative to the object's "
        "file. No effect in a cluster.",
    )


class CustomConnector(Part):
    """A KV connector of your own: docs/connectors/write-your-own.md."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.code) || has(self.modulePath)",
            "code is imported by the name of its module; write modulePath, or leave out code",
            lambda custom: custom.code is None or custom.module_path is not None,
        ),
        Rule(
            f"{_FAMILY} != '{FamilyName.POOL}' || !has(self.prefillParams)",
            "in a pool requests carry no parameters; leave out prefillParams, or write family: Pull",
            lambda custom: custom.family != FamilyName.POOL or custom.prefill_params is None,
        ),
        Rule(
            f"{_FAMILY} == '{FamilyName.POOL}' || self.savedAfterMilliseconds == 0",
            "only a pool saves KV after the prefill engine's answer; leave out savedAfterMilliseconds, or write "
            "family: Pool",
            lambda custom: custom.family == FamilyName.POOL or custom.saved_after_milliseconds == 0,
        ),
    )

    class_name: Annotated[
        str,
        StringConstraints(max_length=256),
        matching(r"^[A-Za-z_][A-Za-z0-9_]*$", "write the name of a Python class, for example FolderConnector"),
    ] = Field(description="Name of the class, a KVConnectorBase_V1 (vLLM's kv_connector).")
    module_path: (
        Annotated[
            str,
            StringConstraints(max_length=256),
            matching(
                r"^[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*$",
                "write a module as Python imports it, for example my_package.connector",
            ),
        ]
        | None
    ) = Field(
        default=None,
        description="Module of the class (vLLM's kv_connector_module_path). Default: a class of vLLM's own.",
    )
    code: ConnectorCode | None = Field(
        default=None, description="Source of the module's code. Default: the engines' image contains it."
    )
    family: Annotated[
        Text,
        Rule(
            f"self in {cel_list(FamilyName)}",
            f"write one of: {_FAMILIES}; a push connector would need code in PDX that reads the prefill engine's "
            "identity",
            lambda family: family in list(FamilyName),
        ),
    ] = Field(
        default=str(FamilyName.PULL),
        json_schema_extra=without_default,
        description="Protocol between gateway and connector. Pull, the default: the prefill engine receives "
        "prefillParams and answers first; the kv_transfer_params of its answer go to the decode engine. Pool: one "
        "saves and the other looks up, both by the prompt; requests carry no parameters.",
    )
    prefill_params: PrefillParams | None = Field(
        default=None,
        description="Pull: the kv_transfer_params of the prefill request. Default: {do_remote_decode: true}.",
    )

    saved_after_milliseconds: Annotated[int, Field(strict=True, ge=0, le=MAX_SAVED_AFTER_MILLISECONDS)] = Field(
        default=0,
        description="Pool: milliseconds from the prefill engine's answer until the KV can be found. The gateway "
        "sends the decode request after this time.",
    )

    @property
    def connector(self) -> Custom:
        """The connector of this description."""
        params = DEFAULT_PREFILL_PARAMS if self.prefill_params is None else self.prefill_params
        return Custom(
            class_name=self.class_name,
            module_path=self.module_path,
            family_name=FamilyName(self.family),
            prefill_params=params,
            saved_after=self.saved_after_milliseconds / 1000,
        )
