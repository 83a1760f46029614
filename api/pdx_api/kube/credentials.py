"""How a program reaches its API server. The token of a service account is read again every minute."""

import os
from typing import TYPE_CHECKING

from pdx_api.kube.environment import ProxyError, proxy_of, url_problem
from pdx_api.user_info import shown_url

if TYPE_CHECKING:
    from kubernetes.aio.client import Configuration


class CredentialsError(Exception):
    """There are no credentials for an API server."""


async def credentials(*, own: bool) -> "Configuration":
    """KUBECONFIG, else the pod's service account, else, with `own`, the user's own kubeconfig.

    Raises CredentialsError.
    """
    import yaml
    from kubernetes.aio import client, config

    not_whole = (yaml.YAMLError, TypeError, ValueError, AttributeError, KeyError)  # of the library

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
            if settings.host and (problem := url_problem(settings.host)):
                raise CredentialsError(f"the server {shown_url(settings.host)} in {paths} is not a URL: {problem}")
            settings.proxy = settings.proxy or proxy_of(settings.host)
    except ProxyError as error:
        raise CredentialsError(str(error)) from error
    except (config.ConfigException, OSError) as error:
        raise CredentialsError(f"no service account and no usable kubeconfig: {error}") from error
    except not_whole as error:
        what = (
            f"{paths} is not a kubeconfig with a cluster and a user" if paths else "the service account is not readable"
        )
        raise CredentialsError(what) from error
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
