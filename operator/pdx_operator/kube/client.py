"""The API server as the operator uses it: a handful of requests, and the errors that somebody handles.

Bodies go in and come out as plain mappings: the typed models of the client cost more than the requests they describe.
"""

import asyncio
import json
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Self
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import client, config

from pdx_api.names import FIELD_MANAGER
from pdx_operator.kube.resources import PDDEPLOYMENT, POD, Kind

Body = dict[str, Any]

ANSWER_SECONDS: Final = 30.0
"""How long the API server may take for one answer."""
WATCH_SECONDS: Final = 300
"""After so long the API server ends a watch, which may have been silent all the time."""
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
"""A watch whose other end is lost without a word is known to be dead after 25 s."""
_LOG_LINES: Final = 150
_LOG_BYTES: Final = 32_768
CUT: Final = 1000
"""Characters kept of what the API server says about an error."""
_UNTYPED: Final = "failed to create typed patch object"
"""How it begins to say, as a fault of its own, that a manifest has an unknown field or a value of a wrong type."""


class ApiError(Exception):
    """The API server did not do what it was asked to."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class AwayError(ApiError):
    """It cannot answer now: it is not reached, overloaded, or failing inside. Asking again later may help."""

    def __init__(self, message: str, *, status: int = 0, after: float = 0.0) -> None:
        super().__init__(message, status=status)
        self.after = after
        """Seconds that it asks to be left alone."""


class FaultError(AwayError):
    """It fails at this request and says how: a webhook that is down, for example. Others may well succeed."""


class MissingError(ApiError):
    """The object does not exist (404)."""


class ConflictError(ApiError):
    """The object is not the one that was meant, or has changed meanwhile (409)."""


class ExpiredError(ApiError):
    """The version to go on from is no longer kept (410)."""


class RefusedError(ApiError):
    """It will not do it: the object is invalid, or the operator may not (400, 403, 422, 500 for a wrong field)."""


class Cluster:
    """Requests to one API server; bounded in number, each under a deadline."""

    def __init__(self, api: client.ApiClient, requests: int, count: Callable[[str, int], None]) -> None:
        self._api = api
        self._slots = asyncio.Semaphore(requests)
        self._count = count

    @classmethod
    async def connect(cls, requests: int, watches: int, count: Callable[[str, int], None]) -> Self:
        """By KUBECONFIG, otherwise as the pod's service account, otherwise by the user's own file.

        `count` is called with the verb and the status of each request; 0 when there was no answer. Raises
        ConfigException.
        """
        settings = client.Configuration()
        try:
            if os.environ.get("KUBECONFIG"):
                await config.load_kube_config(client_configuration=settings)  # type: ignore[no-untyped-call]
            else:
                config.load_incluster_config(settings)  # type: ignore[no-untyped-call]
        except config.ConfigException:
            await config.load_kube_config(client_configuration=settings)  # type: ignore[no-untyped-call]
        settings.connection_pool_maxsize = requests + watches
        # Otherwise every request reads ~/.netrc and asks for proxies, in a thread.
        settings.client_session_kwargs = {"trust_env": False}
        api = client.ApiClient(settings)
        api.user_agent = FIELD_MANAGER
        return cls(api, requests, count)

    async def close(self) -> None:
        """Close every connection."""
        await self._api.close()  # type: ignore[no-untyped-call]

    async def get(self, kind: Kind, namespace: str, name: str) -> Body:
        """Read one object; raises MissingError."""
        return await self._ask("GET", kind.path(namespace, name))

    async def head(self, kind: Kind, namespace: str, name: str) -> Body | None:
        """Read the metadata of one object; None where there is none."""
        try:
            accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
            return await self._ask("GET", kind.path(namespace, name), accept=accept)
        except MissingError:
            return None

    async def list(self, kind: Kind, namespace: str | None, **query: str) -> Body:
        """Read the objects of a kind."""
        return await self._ask("GET", kind.path(namespace), query)

    async def apply(
        self,
        kind: Kind,
        manifest: Body,
        *,
        uid: str | None,
        subresource: str = "",
        manager: str = FIELD_MANAGER,
    ) -> Body:
        """Write what the manifest says, and nothing else, as the field manager's own.

        The object must be the one that has the uid; with an empty one it must not exist yet; None asks for nothing.
        Raises ConflictError when it is otherwise, RefusedError.
        """
        metadata = manifest["metadata"]
        # The API server compares a version only with that of an object that exists, and none has this one.
        condition = {"uid": uid} if uid else {"resourceVersion": "1"}
        if uid is not None:
            manifest = {**manifest, "metadata": {**metadata, **condition}}
        return await self._ask(
            "PATCH",
            kind.path(metadata["namespace"], metadata["name"], subresource),
            {"fieldManager": manager, "force": "true"},
            body=manifest,
            content="application/apply-patch+yaml",
        )

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str) -> None:
        """Delete one object, unless it is gone or another has its name; what depends on it follows by itself."""
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": uid},
        }
        try:
            await self._ask("DELETE", kind.path(namespace, name), body=body)
        except (MissingError, ConflictError):
            return

    async def report(self, namespace: str, name: str, *, uid: str, status: Body) -> Body:
        """Write the status of a PDDeployment; conditions of other writers stay."""
        manifest = {
            "apiVersion": PDDEPLOYMENT.api_version,
            "kind": PDDEPLOYMENT.name,
            "metadata": {"namespace": namespace, "name": name},
            "status": status,
        }
        return await self.apply(PDDEPLOYMENT, manifest, uid=uid, subresource="status")

    async def create(self, kind: Kind, namespace: str, body: Body) -> None:
        """Create one object."""
        await self._ask("POST", kind.path(namespace), body=body)

    async def log(self, namespace: str, pod: str, container: str, *, previous: bool) -> str:
        """The end of what a container of a pod wrote, or of what its previous run wrote."""
        query = {"container": container, "tailLines": str(_LOG_LINES), "limitBytes": str(_LOG_BYTES)}
        query |= {"previous": "true"} if previous else {}
        async with self._slots, self._open("GET", POD.path(namespace, pod, "log"), query) as answer:
            return (await answer.read()).decode(errors="replace")

    @asynccontextmanager
    async def watch(self, kind: Kind, namespace: str | None, **query: str) -> AsyncIterator[aiohttp.StreamReader]:
        """Open a watch: JSON events, one on each line. Raises ExpiredError when the version is too old."""
        silence = WATCH_SECONDS + ANSWER_SECONDS
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_SECONDS, sock_read=silence)
        query |= {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_SECONDS)}
        async with self._open("GET", kind.path(namespace), query, timeout=timeout) as answer:
            _keep_alive(answer)
            yield answer.content

    async def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: Body | None = None,
        content: str = "application/json",
        accept: str = "application/json",
    ) -> Body:
        async with self._slots, self._open(method, path, query, body=body, content=content, accept=accept) as answer:
            return json.loads(await answer.read())  # type: ignore[no-any-return]

    @asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: Body | None = None,
        content: str = "application/json",
        accept: str = "application/json",
        timeout: aiohttp.ClientTimeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS),  # noqa: B008
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One request; what goes wrong on the way leaves as an ApiError."""
        try:
            _, url, headers, _, _ = await self._api.param_serialize(
                method, path, header_params={"Accept": accept, "Content-Type": content}, auth_settings=["BearerToken"]
            )
            url += f"?{urlencode(query)}" if query else ""
            status = 0
            try:
                answer = await self._api.call_api(method, url, headers, body, _request_timeout=timeout)
                response: aiohttp.ClientResponse = answer.response
                status = response.status
            finally:
                self._count(method, status)
            async with response:
                if response.status >= 400:
                    raise error_of(response.status, response.headers, _message(await response.read()))
                yield response
        except (aiohttp.ClientError, OSError, TimeoutError, ssl.SSLError) as error:
            raise AwayError(f"The API server is not reached: {error or type(error).__name__}") from error


def _keep_alive(answer: aiohttp.ClientResponse) -> None:
    transport = answer.connection.transport if answer.connection is not None else None
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def error_of(status: int, headers: Mapping[str, str], words: str) -> ApiError:
    """What an error means to the operator; `words` are those of a Status object, if there was one."""
    message = words or f"HTTP {status}"
    match status:
        case 404:
            return MissingError(message, status=status)
        case 409:
            return ConflictError(message, status=status)
        case 410:
            return ExpiredError(message, status=status)
        case 400 | 403 | 422:
            return RefusedError(message, status=status)
        case 500 if words.startswith(_UNTYPED):
            return RefusedError(message, status=status)
        case _:
            after = headers.get("Retry-After", "")
            kind = FaultError if words and status >= 500 else AwayError
            return kind(message, status=status, after=float(after) if after.isdigit() else 0.0)


def _message(body: bytes) -> str:
    """The words of a Status object; of anything else nothing, because it may hold anything."""
    try:
        status = json.loads(body)
    except ValueError:
        return ""
    return str(status.get("message") or "")[:CUT] if isinstance(status, dict) and status.get("kind") == "Status" else ""
