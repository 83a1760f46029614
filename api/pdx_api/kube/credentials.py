"""How a program reaches its API server. The token of a service account is read again every minute."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kubernetes.aio.client import Configuration


class CredentialsError(Exception):
    """There are no credentials for an API server."""


async def credentials(*, own: bool) -> "Configuration":
    """KUBECONFIG, else the pod's service account, else, with `own`, the user's own kubeconfig.

    Raises CredentialsError.
    """
    from kubernetes.aio import client, config

    settings, paths = client.Configuration(), _chosen()
    try:
        try:
            if not paths:
                config.load_incluster_config(settings)  # type: ignore[no-untyped-call]
        except config.ConfigException:
            paths = _own() if own else ""
            if not paths:
                raise
        if paths:
            await config.load_kube_config(paths, client_configuration=settings)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError) as error:
        raise CredentialsError(f"no service account and no usable kubeconfig: {error}") from error
    return settings


def _chosen() -> str:
    paths = os.environ.get("KUBECONFIG", "")
    if paths and not any(os.path.exists(os.path.expanduser(path)) for path in paths.split(os.pathsep)):
        raise CredentialsError(f"KUBECONFIG is {paths}, which is not a file")
    return paths


def _own() -> str:
    """The user's own kubeconfig; empty if there is none."""
    path = os.path.expanduser("~/.kube/config")
    return path if os.path.isfile(path) else ""
