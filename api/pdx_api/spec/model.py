"""`spec.model`: the model, and the source of its weights."""

import posixpath
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, StringConstraints

from pdx_api.names import MODEL_MOUNT
from pdx_api.rule import Rule, matching
from pdx_api.spec.fields import (
    AbsolutePath,
    ListMap,
    ObjectName,
    Part,
    RelativePath,
    SecretKey,
    Text,
    without_default,
)

MOST_LORAS: Final = 8
"""Adapters in one step without `maxLoaded`: vLLM reserves memory for each."""
AdapterName = Annotated[
    str,
    StringConstraints(max_length=253),
    matching(
        r"^[A-Za-z0-9]([-._/:A-Za-z0-9]*[A-Za-z0-9])?$",
        "write an adapter's name: letters, digits, -, _, ., : and /, for example sql-v2",
    ),
]


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
        description="Absolute path of a model directory in the engine's file system. All engines start with the same "
        "string: vLLM rejects KV from an engine with another one.",
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
        description="A volume for all engines (ReadWriteMany), mounted as HF_HOME. Models are in its directory hub. "
        "Engines download missing files to it; with HF_HUB_OFFLINE in engine.env they only read it, and need no token."
    )


class Adapter(Part):
    """A LoRA adapter."""

    name: AdapterName = Field(description="The `model` that clients send.")
    path: AbsolutePath = Field(
        description="Absolute path of the adapter's directory in the engines' file system, for example in the volume "
        f"of source.persistentVolumeClaim ({MODEL_MOUNT}/…). Write a new path for a new version: engines with "
        "different paths never pair."
    )


class Lora(Part):
    """Limits of adapters. vLLM reserves memory for them."""

    max_rank: Literal[1, 8, 16, 32, 64, 128, 256, 320, 512] | None = Field(
        default=None, description="Largest rank of an adapter (--max-lora-rank). Default: vLLM's, 16."
    )
    max_loaded: Annotated[int, Field(strict=True, ge=1, le=256)] | None = Field(
        default=None,
        description=f"Number of adapters in one step of an engine (--max-loras). Default: all, at most {MOST_LORAS}.",
    )


class Model(Part):
    """The model that is served."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.adapters) || !self.adapters.exists(each, each.name == "
            "(has(self.servedName) ? self.servedName : self.name))",
            "an adapter has the name of the model; write another name",
            lambda model: all(each.name != (model.served_name or model.name) for each in model.adapters),
        ),
        Rule(
            "!has(self.lora) || (has(self.adapters) && self.adapters.size() > 0)",
            "lora describes adapters; write model.adapters, or leave lora out",
            lambda model: model.lora is None or bool(model.adapters),
        ),
        Rule(
            "!has(self.source) || !has(self.tokenSecretRef)",
            "tokenSecretRef is for models from the Hugging Face Hub; leave out tokenSecretRef, or source",
            lambda model: model.source is None or model.token_secret_ref is None,
        ),
    )

    name: Text = Field(
        description="Hub ID of the model, for example Qwen/Qwen3-8B. With source, it is only a name. Clients send it "
        "as `model`, unless servedName is set."
    )
    served_name: Text | None = Field(
        default=None, description="The `model` that clients send. Default: the value of name."
    )
    revision: Text | None = Field(
        default=None,
        description="Branch, tag or commit on the Hub. Default: the Hub's default branch. Engines that start on "
        "different days may get different commits of a branch. To prevent this, write a commit, or set "
        "HF_HUB_OFFLINE and fill the cache.",
    )
    source: ModelSource | None = Field(
        default=None, description="Source of the weights. Default: the Hugging Face Hub, by name."
    )
    token_secret_ref: SecretReference | None = Field(
        default=None,
        description="Token for the Hub, for models that need one. Engines receive it as HF_TOKEN. `pdx up` uses "
        "HF_TOKEN of its environment.",
    )
    cache: ModelCache | None = Field(
        default=None,
        description="Cache for downloads from the Hub. Default: a directory in each pod, which is deleted with the "
        "pod.",
    )

    adapters: Annotated[list[Adapter], Field(max_length=64), ListMap("name")] = Field(
        default=[],
        json_schema_extra=without_default,
        description="LoRA adapters that every engine loads when it starts.",
    )
    lora: Lora | None = Field(default=None, description="Limits on adapters.")

    @property
    def location(self) -> str:
        """The model string that engines are started with; vLLM refuses KV from an engine with another."""
        return self.source.location if self.source is not None else self.name
