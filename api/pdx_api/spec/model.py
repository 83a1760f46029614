"""`spec.model`: the model, and the source of its weights."""

import posixpath
from typing import ClassVar

from pydantic import Field

from pdx_api.names import MODEL_MOUNT
from pdx_api.rule import Rule
from pdx_api.spec.fields import AbsolutePath, ObjectName, Part, RelativePath, SecretKey, Text


class ModelVolume(Part):
    """A volume that holds models."""

    claim_name: ObjectName = Field(description="Name of a PersistentVolumeClaim in the namespace of the object.")
    path: RelativePath = Field(default="", description="Directory of the model in the volume. Default: its root.")


class ModelSource(Part):
    """A source of the weights other than the Hugging Face Hub."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.path) != has(self.persistentVolumeClaim)",
            "write either path or persistentVolumeClaim",
            lambda source: (source.path is None) != (source.persistent_volume_claim is None),
        ),
    )

    path: AbsolutePath | None = Field(
        default=None,
        description="Absolute path of a model directory in the engine's file system. P and D start with the same "
        "string: vLLM refuses KV from an engine with another one.",
    )
    persistent_volume_claim: ModelVolume | None = Field(
        default=None,
        description=f"A volume with the model, mounted read-only at {MODEL_MOUNT}. Not for `pdx up`.",
    )

    @property
    def location(self) -> str:
        """The model's directory in the engines' file system."""
        if self.path is not None:
            return self.path
        assert self.persistent_volume_claim is not None, "a source has one of the two"
        return posixpath.join(MODEL_MOUNT, self.persistent_volume_claim.path).rstrip("/")


class SecretReference(Part):
    """One value of a Secret in the namespace of the object."""

    name: ObjectName = Field(description="Name of the Secret.")
    key: SecretKey = Field(default="token", description="Key of the value in the Secret.")


class Volume(Part):
    """A volume that engines write to."""

    claim_name: ObjectName = Field(description="Name of a PersistentVolumeClaim in the namespace of the object.")


class ModelCache(Part):
    """A cache for downloads from the Hub."""

    persistent_volume_claim: Volume = Field(
        description="A volume that all engines can write to, so that each model is downloaded once."
    )


class Model(Part):
    """The model that is served."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.source) || !has(self.tokenSecretRef)",
            "tokenSecretRef is for models from the Hugging Face Hub; leave out tokenSecretRef, or source",
            lambda model: model.source is None or model.token_secret_ref is None,
        ),
    )

    name: Text = Field(
        description="Hub id of the model, for example Qwen/Qwen3-8B; with source, only a name. "
        "Clients send it as `model`, unless servedName is set."
    )
    served_name: Text | None = Field(
        default=None, description="The `model` that clients send. Default: the value of name."
    )
    revision: Text | None = Field(
        default=None, description="Branch, tag or commit on the Hub. Default: the Hub's default branch."
    )
    source: ModelSource | None = Field(
        default=None, description="Source of the weights. Default: the Hugging Face Hub, by name."
    )
    token_secret_ref: SecretReference | None = Field(
        default=None,
        description="Token for the Hub, for models that need one. `pdx up` uses HF_TOKEN of its environment.",
    )
    cache: ModelCache | None = Field(
        default=None,
        description="Cache for downloads from the Hub. Default: a directory of each pod, which is deleted with it.",
    )

    @property
    def location(self) -> str:
        """The model string that engines are started with; vLLM refuses KV from an engine with another."""
        return self.source.location if self.source is not None else self.name
