"""The PDDeployments that a cluster stores: read, compared with their converted form, and written."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

from pdx_api.spec import deprecated
from pdx_cli.errors import CommandError, InputError
from pdx_cli.sources.access import unreadable
from pdx_cli.sources.kube import Kube
from pdx_operator.kube.client import ApiError, ConflictError, MissingError
from pdx_operator.kube.crd import missing_fields
from pdx_operator.kube.resources import PDDEPLOYMENT

_SERVER_FIELDS: Final = ("managedFields", "resourceVersion", "uid", "creationTimestamp", "generation", "selfLink")
_ATTEMPTS: Final = 10
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A PDDeployment with deprecated fields."""

    body: Mapping[str, Any]

    @property
    def name(self) -> str:
        """NAMESPACE/NAME."""
        metadata = self.body["metadata"]
        return f"{metadata['namespace']}/{metadata['name']}"

    @property
    def before(self) -> str:
        """The object as YAML, without what the API server adds."""
        return _as_yaml(self.body)

    @property
    def after(self) -> str:
        """The converted object as YAML."""
        return _as_yaml(deprecated.converted(self.body))

    @property
    def patch(self) -> dict[str, Any]:
        """The JSON merge patch that converts it, unless it has changed meanwhile."""
        metadata = self.body["metadata"]
        spec = _merge_patch(self.body["spec"], deprecated.converted(self.body)["spec"])
        return {"metadata": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}, "spec": spec}


async def stored_objects(kube: Kube, namespace: str | None) -> list[StoredObject]:
    """The objects of a namespace, or of all (None), that have deprecated fields. Raises CommandError with code 2."""
    try:
        found = [item async for page in kube.pages(PDDEPLOYMENT, namespace) for item in page["items"]]
    except MissingError as error:
        raise InputError("This cluster has no CRD for PDDeployments, so it has no object to convert.") from error
    except ApiError as error:
        if error.status == 403 and not namespace:
            hint = "with rights in one namespace only, name it with -n"
            raise InputError(f"The cluster cannot be read: {str(error).rstrip('.')}; {hint}.") from error
        raise unreadable(error) from error
    return [StoredObject(item) for item in found if any(deprecated.steps(item))]


async def check_crd(kube: Kube) -> None:
    """Raise InputError if the cluster's CRD would drop fields of converted objects."""
    try:
        missing = await missing_fields(kube)
    except ApiError as error:
        raise unreadable(error) from error
    if missing:
        raise InputError(
            f"The cluster's CRD lacks {missing[0].removeprefix('.')}: it would drop what is converted. Upgrade the "
            "chart, or apply the CRD of this version, and run the command again."
        )


async def write(kube: Kube, stored: StoredObject, manager: str) -> None:
    """Write a converted object under a field manager; raises CommandError."""
    namespace, name = stored.name.split("/")
    spec = stored.body["spec"]
    for _ in range(_ATTEMPTS):
        try:
            await kube.merge(PDDEPLOYMENT, namespace, name, stored.patch, manager=manager)
            return
        except ConflictError:
            stored = StoredObject(await _read(kube, stored))  # the operator may have written the status
        except ApiError as error:
            raise CommandError(f"{stored.name} cannot be written: {str(error).rstrip('.')}.") from error
        if stored.body["spec"] != spec:
            break
    raise CommandError(f"{stored.name} has changed meanwhile; run the command again.")


async def _read(kube: Kube, stored: StoredObject) -> Mapping[str, Any]:
    try:
        return await kube.get(PDDEPLOYMENT, *stored.name.split("/"))
    except ApiError as error:
        raise unreadable(error) from error


def _as_yaml(body: Mapping[str, Any]) -> str:
    metadata = {name: value for name, value in body["metadata"].items() if name not in _SERVER_FIELDS}
    annotations = {key: text for key, text in metadata.pop("annotations", {}).items() if key != _LAST_APPLIED}
    head = {"apiVersion": PDDEPLOYMENT.api_version, "kind": PDDEPLOYMENT.name}
    shown = {**metadata, **({"annotations": annotations} if annotations else {})}
    return yaml.safe_dump({**head, "metadata": shown, "spec": body["spec"]}, sort_keys=False, width=120)


def _merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON merge patch (RFC 7386) between two objects."""
    patch: dict[str, Any] = {name: None for name in before if name not in after}
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            if inner := _merge_patch(old, value):
                patch[name] = inner
        elif value != old:
            patch[name] = value
    return patch
