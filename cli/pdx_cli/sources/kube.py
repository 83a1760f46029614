"""The API server as a user of `pdx` reaches it: by kubeconfig and context, with the user's own rights.

Pods are queried through the API server's port-forward: it needs no network route to the pod, and NetworkPolicies do not
block it. Without the right to port-forward, they are queried through the API server's proxy of pods.
"""

import asyncio
import socket
from typing import Any, Final, Self
from weakref import WeakSet

import aiohttp
from aiohttp import AddrInfoType
from kubernetes.aio import client

from pdx_api.kube.client import ApiError, Cluster, Json, Request, UnreadableAnswerError
from pdx_api.kube.kinds import POD, Kind
from pdx_cli.sources import kubeconfig as kubeconfigs
from pdx_cli.sources.kubeconfig import ANOTHER

REQUESTS: Final = 8
"""Limit of concurrent requests."""
PROTOCOL: Final = "v4.channel.k8s.io"
"""Port-forward over a WebSocket: the first byte of a message is the number of its channel."""
_DATA: Final = 0
_ERROR: Final = 1
UNAUTHORIZED: Final = 401
ANSWER_SECONDS: Final = 10.0
CLOSE_POLLS: Final = 100
"""One second in all."""


class PodAnswerError(Exception):
    """A pod did not answer 200. The text says why."""

    def __init__(self, message: str, *, reached: bool = True) -> None:
        super().__init__(message)
        self.reached = reached
        """False if the request never reached the pod, so that it shows nothing about the pod."""


class ContextError(ApiError):
    """The server of the context, or its credentials, are wrong. The text is a sentence for the user."""


class Kube(Cluster):
    """Requests to one API server; see `Cluster`."""

    def __init__(self, api: client.ApiClient, context: str) -> None:
        super().__init__(api, REQUESTS, lambda _verb, _status: None)
        self._context = context
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._connector = aiohttp.TCPConnector(
            limit=REQUESTS, ssl=api.rest_client.ssl_context, socket_factory=self._open_socket
        )
        api.configuration.client_session_kwargs["connector"] = self._connector

    @classmethod
    async def of(cls, kubeconfig: str | None, context: str | None) -> tuple[Self, str]:
        """Connect as kubectl does; also return the context's namespace. Raises CommandError with code 2."""
        settings, chosen = await kubeconfigs.load(kubeconfig, context)
        settings.client_session_kwargs = {"trust_env": False}
        api = client.ApiClient(settings)
        api.user_agent = "pdx"
        return cls(api, chosen.name), chosen.namespace

    async def list(self, kind: Kind, namespace: str | None, **query: str) -> Json:
        """See `Cluster`."""
        body = await super().list(kind, namespace, **query)
        items = body.get("items", "missing")
        if not isinstance(items, list | None) or not all(map(_has_metadata, items or ())):
            raise self._foreign()
        return {**body, "items": items or []}

    async def _sized(self, request: Request) -> tuple[Json, int]:
        """Send one request. A server that is no API server answers with something else than an object."""
        try:
            body, size = await super()._sized(request)
        except UnreadableAnswerError as error:
            raise self._foreign() from error
        except ApiError as error:
            if error.status != UNAUTHORIZED:
                raise
            text = f"The API server refuses the credentials of context {self._context} (401)"
            raise ContextError(f"{text}; log in again, {ANOTHER}", status=UNAUTHORIZED) from error
        is_document = request.path.startswith("/openapi/") and isinstance(body, dict)
        if not is_document and not (_has_metadata(body) and isinstance(body.get("kind"), str)):
            raise self._foreign()
        return body, size

    def _foreign(self) -> ContextError:
        server = f"{self._api.configuration.host} (context {self._context})"
        text = f"{server} does not answer like an API server of Kubernetes"
        return ContextError(f"{text}; correct the server of this context, or choose another with --context.")

    def _open_socket(self, address: AddrInfoType) -> socket.socket:
        family, kind, protocol, _, _ = address
        sock = socket.socket(family, kind, protocol)
        self._sockets.add(sock)
        return sock

    async def close(self) -> None:
        """Close every connection. Those with TLS take a round trip, and the event loop often ends right after this."""
        await super().close()
        await self._connector.close()
        for _ in range(CLOSE_POLLS):
            if all(sock.fileno() == -1 for sock in self._sockets):
                return
            await asyncio.sleep(0.01)

    async def lines(self, namespace: str, pod: str, container: str, *, count: int, seconds: int) -> str:
        """Return the newest lines that a running container logged within the last `seconds`."""
        query = {"container": container, "tailLines": str(count), "sinceSeconds": str(seconds)}
        async with self._slots, self._open(Request("GET", POD.path(namespace, pod, "log"), query)) as answer:
            return (await answer.read()).decode(errors="replace")

    async def query_pod(self, namespace: str, pod: str, port: int, path: str) -> bytes:
        """Return the body of a pod's 200 to a GET; raises PodAnswerError."""
        try:
            async with self._slots, asyncio.timeout(ANSWER_SECONDS):
                status, body = await self._forward(namespace, pod, port, path)
        except (PodAnswerError, ApiError, aiohttp.ClientError, OSError, TimeoutError, ValueError) as refused:
            try:
                return await self._proxy(namespace, pod, port, path)
            except (ApiError, TimeoutError) as error:
                if answered := _proxied(path, error):
                    raise PodAnswerError(answered) from error
                reached = isinstance(refused, PodAnswerError | TimeoutError)
                raise PodAnswerError(_message(refused), reached=reached) from refused
        if status != 200:
            raise PodAnswerError(f"{path} answered {status}")
        return body

    async def _proxy(self, namespace: str, pod: str, port: int, path: str) -> bytes:
        request = Request("GET", POD.path(namespace, f"{pod}:{port}", f"proxy{path}"))
        async with self._slots, asyncio.timeout(ANSWER_SECONDS), self._open(request) as answer:
            return await answer.read()

    async def _forward(self, namespace: str, pod: str, port: int, path: str) -> tuple[int, bytes]:
        _, url, headers, _, _ = await self._api.param_serialize(
            "GET", POD.path(namespace, pod, "portforward"), header_params={}, auth_settings=["BearerToken"]
        )
        session = aiohttp.ClientSession(connector=self._connector, connector_owner=False, trust_env=False)
        proxy = self._api.configuration.proxy
        connection = session.ws_connect(f"{url}?ports={port}", protocols=(PROTOCOL,), headers=headers, proxy=proxy)
        async with session, connection as channel:
            # HTTP/1.0: the answer ends with the connection and is not chunked.
            request = f"GET {path} HTTP/1.0\r\nHost: {pod}\r\nAccept: */*\r\n\r\n"
            try:
                await channel.send_bytes(bytes([_DATA]) + request.encode())
                return _parsed(await _received(channel))
            except (aiohttp.ClientError, OSError) as error:
                # The channel was open, so the pod closed it.
                raise PodAnswerError(f"nothing answers on its port {port}") from error


def _has_metadata(body: Any) -> bool:
    """Whether it may be an object of the Kubernetes API, or a list of them."""
    return isinstance(body, dict) and isinstance(body.get("metadata"), dict)


async def _received(channel: "aiohttp.ClientWebSocketResponse") -> bytes:
    """Return the bytes of the data channel; raises PodAnswerError for a message on the error channel."""
    started: set[int] = set()
    data = bytearray()
    async for message in channel:
        if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
            continue
        number, content = message.data[0], message.data[1:]
        if number not in started:
            # The first message of each channel starts with the port.
            started.add(number)
            content = content[2:]
        if number == _ERROR and content:
            raise PodAnswerError(content.decode(errors="replace").strip())
        if number == _DATA:
            data += content
            if _is_whole(data):
                break
    return bytes(data)


def _is_whole(data: bytearray) -> bool:
    head, found, body = bytes(data).partition(b"\r\n\r\n")
    length = _length(head)
    return bool(found) and length is not None and len(body) >= length


def _length(head: bytes) -> int | None:
    lengths = [line.split(b":", 1)[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    return int(lengths[0]) if lengths else None


def _parsed(data: bytes) -> tuple[int, bytes]:
    head, found, body = data.partition(b"\r\n\r\n")
    status_line = head.split(b"\r\n", 1)[0].split()
    if not found or len(status_line) < 2 or not status_line[1].isdigit():
        raise PodAnswerError("it closes the connection without an answer")
    if len(body) < (_length(head) or 0):
        raise PodAnswerError("it closes the connection before the end of its answer")
    return int(status_line[1]), body


def _proxied(path: str, error: Exception) -> str:
    """Return the pod's own answer through the proxy; empty if the request did not reach the pod."""
    status = error.status if isinstance(error, ApiError) else 0
    return "" if status in (0, 403) or "trying to reach service" in str(error) else f"{path} answered {status}"


def _message(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {ANSWER_SECONDS:g} s"
    if isinstance(error, aiohttp.WSServerHandshakeError):
        if error.status == 403:
            return "you may neither use port-forward nor the proxy of pods (pods/portforward, pods/proxy)"
        return f"the API server answered {error.status} to a port-forward"
    return " ".join(str(error).split()) or type(error).__name__
