"""The volumes of an engine's pod: model, connector code, caches; and the environment that names their paths."""

from collections.abc import Collection, Iterator
from typing import Final

from pdx_api.names import ANNOTATION_FILE, CODE_MOUNT, FILES_MOUNT, MODEL_MOUNT, STORAGE_MOUNT
from pdx_api.rules.routing_rules import ENGINE_KEY_VARIABLE
from pdx_api.spec.kv_transfer import KVStorage
from pdx_api.spec.model import Model
from pdx_api.spec.routing import EngineKey
from pdx_operator.render.objects import Manifest

HOME: Final = "/home/vllm"
"""Home of the stock image's user; an emptyDir is mounted there."""
CACHE: Final = f"{HOME}/.cache"
"""An emptyDir of its own: where a cache is mounted below it, the runtime would create this folder for root alone."""
HUB_CACHE: Final = f"{CACHE}/huggingface"


_PATHS: Final = {
    "HOME": HOME,
    "XDG_CACHE_HOME": CACHE,
    "XDG_CONFIG_HOME": f"{HOME}/.config",
    "HF_HOME": HUB_CACHE,
    "VLLM_CACHE_ROOT": f"{CACHE}/vllm",
    "TRITON_CACHE_DIR": f"{CACHE}/triton",
    "TORCHINDUCTOR_CACHE_DIR": f"{CACHE}/torchinductor",
}
"""Set even where they equal the default, so that an image with other values writes to a volume too."""


def engine_env(model: Model, api_key: EngineKey | None = None) -> list[Manifest]:
    """Variables with the paths of caches, the Hub's token, and the engine's API key."""
    # PyTorch looks up a user name at import, and an image may have no entry for our user.
    variables: dict[str, str] = {"USER": "vllm", **_PATHS}
    env: list[Manifest] = [{"name": name, "value": value} for name, value in variables.items()]
    for name, secret in (("HF_TOKEN", model.token_secret_ref), (ENGINE_KEY_VARIABLE, api_key)):
        if secret is not None:
            reference = {"secretKeyRef": {"name": secret.name, "key": secret.key}}
            env.append({"name": name, "valueFrom": reference})
    return env


def engine_volumes(
    model: Model, storage: KVStorage | None = None, code: str | None = None, files: Collection[str] = ()
) -> list[Manifest]:
    """The volumes of an engine's pod; `code` names a ConfigMap with the code of its connector.

    `files` are the names of files whose contents are annotations of the pod.
    """
    return [volume for volume, _ in _mounted(model, storage, code, files)]


def engine_mounts(
    model: Model, storage: KVStorage | None = None, code: str | None = None, files: Collection[str] = ()
) -> list[Manifest]:
    """The mounts of the volumes of `engine_volumes`."""
    return [{"name": volume["name"], **mount} for volume, mount in _mounted(model, storage, code, files)]


def _mounted(
    model: Model, storage: KVStorage | None, code: str | None, files: Collection[str]
) -> Iterator[tuple[Manifest, Manifest]]:
    """Each volume, and where it is mounted."""
    yield {"name": "home", "emptyDir": {}}, {"mountPath": HOME}
    yield {"name": "home-cache", "emptyDir": {}}, {"mountPath": CACHE}
    yield {"name": "tmp", "emptyDir": {}}, {"mountPath": "/tmp"}  # noqa: S108
    # Its contents count as memory of the container, so the memory limit bounds it.
    yield {"name": "shm", "emptyDir": {"medium": "Memory"}}, {"mountPath": "/dev/shm"}  # noqa: S108
    if model.cache is not None:
        yield _claim("hub-cache", model.cache.persistent_volume_claim.claim_name), {"mountPath": HUB_CACHE}
    if model.source is not None and model.source.persistent_volume_claim is not None:
        volume = _claim("model", model.source.persistent_volume_claim.claim_name, readOnly=True)
        yield volume, {"mountPath": MODEL_MOUNT, "readOnly": True}
    if storage is not None:
        yield _claim("kv", storage.persistent_volume_claim.claim_name), {"mountPath": STORAGE_MOUNT}
    if code is not None:
        yield {"name": "connector", "configMap": {"name": code}}, {"mountPath": CODE_MOUNT, "readOnly": True}
    if files:
        items = [
            {"path": name, "fieldRef": {"fieldPath": f"metadata.annotations['{ANNOTATION_FILE}{name}']"}}
            for name in files
        ]
        yield {"name": "files", "downwardAPI": {"items": items}}, {"mountPath": FILES_MOUNT, "readOnly": True}


def _claim(name: str, claim_name: str, **further: bool) -> Manifest:
    return {"name": name, "persistentVolumeClaim": {"claimName": claim_name, **further}}
