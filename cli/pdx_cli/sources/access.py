"""Reads of one PDDeployment's objects with the user's own rights."""

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import aiohttp

from pdx_api.kube.client import ApiError, MissingError
from pdx_api.kube.kinds import PDDEPLOYMENT, POD, Kind
from pdx_api.names import LABEL_DEPLOYMENT, LABEL_ROLE, ROLE_GATEWAY
from pdx_cli.errors import CommandError
from pdx_cli.inputs.target import InCluster
from pdx_cli.sources.client import reason
from pdx_cli.sources.kube import ContextError, Kube
from pdx_cli.sources.kubeconfig import ANOTHER
from pdx_cli.sources.observation import Body

NO_CRD: Final = "This cluster has no CRD for PDDeployments; install PDX, or choose another cluster with --context."

Answer = TypeVar("Answer")


@dataclass(slots=True)
class ObjectAccess:
    """Access to one PDDeployment and to what belongs to it.

    A read that fails is recorded in `unseen` and replaced by a default, so that the inspection goes on.
    """

    kube: Kube
    namespace: str
    name: str
    unseen: dict[str, str] = field(default_factory=dict)
    """What could not be read -> why."""

    async def object(self) -> Body:
        """Return the PDDeployment; raises CommandError with code 2."""
        try:
            return await self.kube.get(PDDEPLOYMENT, self.namespace, self.name)
        except MissingError as error:
            raise CommandError(NO_CRD if _lacks_crd(error) else await self._missing(), code=2) from error
        except ApiError as error:
            raise unreadable(error) from error

    async def items(self, kind: Kind, what: str, **query: str) -> list[dict[str, Any]]:
        """Return the objects of a kind in the namespace."""
        body = await self.read(what, self.kube.list(kind, self.namespace, **query), {"items": []})
        return list(body["items"])

    async def read(self, what: str, request: Awaitable[Answer], default: Answer) -> Answer:
        """Return the answer, or the default if it cannot be read; `what` names it in `unseen`."""
        try:
            return await request
        except MissingError:
            return default
        except ApiError as error:
            self.unseen[what] = "not allowed" if error.status == 403 else str(error)
            return default

    async def gateway_pods(self) -> list[str]:
        """Return the names of the pods of running gateways; raises ApiError."""
        selector = f"{LABEL_DEPLOYMENT}={self.name},{LABEL_ROLE}={ROLE_GATEWAY}"
        pods = (await self.kube.list(POD, self.namespace, labelSelector=selector))["items"]
        return sorted(pod["metadata"]["name"] for pod in pods if (pod.get("status") or {}).get("phase") == "Running")

    async def _missing(self) -> str:
        found = await self.items(PDDEPLOYMENT, "PDDeployments")
        names = ", ".join(item["metadata"]["name"] for item in found) or "none"
        return (
            f"Namespace {self.namespace} has no PDDeployment {self.name} (it has: {names}); "
            "select another namespace with -n."
        )


@asynccontextmanager
async def access_to(target: InCluster) -> AsyncIterator[ObjectAccess]:
    """Connect to a PDDeployment, or to the only one if none is named; raises CommandError with code 2."""
    kube, namespace = await Kube.of(target.kubeconfig, target.context)
    try:
        namespace = target.namespace or namespace
        yield ObjectAccess(kube, namespace, target.name or await _sole_name(kube, namespace))
    finally:
        await kube.close()


async def _sole_name(kube: Kube, namespace: str) -> str:
    """Return the name of the only PDDeployment in a namespace; raises CommandError with code 2."""
    try:
        found = (await kube.list(PDDEPLOYMENT, namespace))["items"]
    except MissingError as error:
        raise CommandError(NO_CRD, code=2) from error
    except ApiError as error:
        raise unreadable(error) from error
    names = [str(item["metadata"]["name"]) for item in found]
    if len(names) == 1:
        return names[0]
    content = f"has {', '.join(names)}" if names else "has none"
    raise CommandError(f"Name a PDDeployment: namespace {namespace} {content}.", code=2)


def _lacks_crd(error: MissingError) -> bool:
    """Whether the API server does not know the kind. It names an object that does not exist."""
    return str(error) == f"HTTP {error.status}" or "could not find the requested resource" in str(error)


def unreadable(error: ApiError) -> CommandError:
    """Return the error of a command that the API server refuses or does not answer, with code 2."""
    if isinstance(error, ContextError):
        return CommandError(str(error), code=2)
    cause = error.__cause__
    if isinstance(cause, aiohttp.ClientError | OSError):  # TimeoutError is one
        return CommandError(f"The cluster cannot be read: the API server does not answer: {reason(cause)}.", code=2)
    if error.status and str(error) == f"HTTP {error.status}":
        text = f"The cluster cannot be read: the API server answers with status {error.status}"
        return CommandError(f"{text}; try again later, {ANOTHER}", code=2)
    return CommandError(f"The cluster cannot be read: {str(error).rstrip('.')}.", code=2)
