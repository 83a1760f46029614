"""Lists and watches the pods of one namespace at the API server."""

import contextlib
import os
import socket
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Final, Self

import aiohttp
import orjson

from pdx_proxy.discovery.pods import Pod

if TYPE_CHECKING:
    from kubernetes.aio.client import ApiClient

_CALL_SECONDS: Final = 15.0
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
"""TCP keep-alive: a watch whose peer is lost without a FIN fails after 25 s."""


class ClusterError(Exception):
    """The API server did not answer, or answered with an error; the message names it."""


class ExpiredError(ClusterError):
    """The version to watch from is too old (410): the pods must be listed again."""


class CredentialsError(Exception):
    """There are no credentials for an API server."""


class PodApi:
    """The pods of one namespace that match a label selector."""

    def __init__(self, client: "ApiClient", namespace: str, selector: str) -> None:
        self._client = client
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._selector = selector

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(cls, namespace: str, selector: str) -> AsyncIterator["PodApi"]:
        """Connect with KUBECONFIG if it is set, else with the service account of the pod; raises CredentialsError."""
        # The client's models take 50 MB and most of a second, so only a gateway with pod discovery imports them.
        from kubernetes.aio import client, config

        configuration = client.Configuration()
        kubeconfig = _kubeconfig()
        try:
            if kubeconfig:
                await config.load_kube_config(kubeconfig, client_configuration=configuration)  # type: ignore[no-untyped-call]
            else:
                config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
        except (config.ConfigException, OSError) as error:
            raise CredentialsError(f"no service account and no usable KUBECONFIG: {error}") from error
        async with client.ApiClient(configuration) as connected:
            yield cls(connected, namespace, selector)

    async def list(self) -> tuple[list[Pod], str]:
        """Return all pods and the version to watch from; raises ClusterError."""
        async with self._get(aiohttp.ClientTimeout(total=_CALL_SECONDS)) as response:
            with _as_cluster_error():
                document = orjson.loads(await response.read())
                return document["items"] or [], document["metadata"]["resourceVersion"]

    @contextlib.asynccontextmanager
    async def watch(self, version: str, seconds: int) -> AsyncIterator["Events"]:
        """Watch the changes after a version for some seconds; raises ClusterError, also during iteration.

        The watch may be silent all the time: without changes an API server sends no bookmarks either.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CALL_SECONDS, sock_read=seconds + _CALL_SECONDS)
        since = (("resourceVersion", version), ("timeoutSeconds", str(seconds)))
        async with self._get(timeout, ("watch", "true"), ("allowWatchBookmarks", "true"), *since) as response:
            _keep_alive(response)
            yield Events(response)

    @contextlib.asynccontextmanager
    async def _get(
        self, timeout: aiohttp.ClientTimeout, *query: tuple[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        with _as_cluster_error():
            params = [("labelSelector", self._selector), *query]
            method, url, headers, *_ = await self._client.param_serialize(
                "GET", self._path, query_params=params, auth_settings=["BearerToken"]
            )
            answer = await self._client.call_api(method, url, headers, _request_timeout=timeout)
        response: aiohttp.ClientResponse = answer.response
        try:
            if response.status != 200:
                with _as_cluster_error():
                    raise _error(response.status, (await response.text())[:300])
            yield response
        finally:
            _abort(response)


def _abort(response: aiohttp.ClientResponse) -> None:
    """Close the connection at once, unless the answer is complete. TLS would first await the server's end."""
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()
    response.close()


class Events:
    """The events of a watch, until the server ends it."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[str, Pod]:
        """Return the kind (ADDED, MODIFIED, DELETED, BOOKMARK) and the pod; a bookmark's pod has only a version."""
        with _as_cluster_error():
            line = await self._response.content.readline()
            if not line:
                raise StopAsyncIteration
            event = orjson.loads(line)
            if event["type"] == "ERROR":
                raise _error(event["object"].get("code"), event["object"].get("message"))
            return event["type"], event["object"]


@contextlib.contextmanager
def _as_cluster_error() -> Iterator[None]:
    try:
        yield
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise ClusterError(str(error) or type(error).__name__) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ClusterError(f"the answer is not one of an API server: {error!r}") from error


def _error(code: Any, message: Any) -> ClusterError:
    return (ExpiredError if code == 410 else ClusterError)(f"status {code}: {message}")


def _kubeconfig() -> str:
    paths = os.environ.get("KUBECONFIG", "")
    if paths and not any(os.path.isfile(path) for path in paths.split(os.pathsep)):
        raise CredentialsError(f"KUBECONFIG is {paths}, which is not a file")
    return paths


def _keep_alive(response: aiohttp.ClientResponse) -> None:
    transport = response.connection.transport if response.connection is not None else None
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
