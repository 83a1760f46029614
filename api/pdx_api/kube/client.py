"""The few requests that PDX sends to the API server, and an exception for each error that it handles.

Bodies are plain mappings: the client's typed models cost more than the requests they describe.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlencode

import aiohttp

from pdx_api.kube.credentials import credentials
from pdx_api.kube.decoder import decode, lines_of
from pdx_api.kube.kinds import PDDEPLOYMENT, POD, Kind
from pdx_api.names import FIELD_MANAGER

if TYPE_CHECKING:
    from kubernetes.aio.client import ApiClient

Json = dict[str, Any]
"""A body that is sent or received."""

ANSWER_SECONDS: Final = 30.0
"""Deadline of one answer from the API server."""
_LONGEST_WAIT: Final = 60.0
"""Seconds of a `Retry-After` that are obeyed: a proxy may name an hour, and the API server returns before."""
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
"""TCP keep-alive: a watch whose peer has vanished fails after 25 s."""
_METADATA_LIST: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_FIRST_PAGE: Final = 25
_MAX_PAGE: Final = 200
"""Objects of one page of a list."""
_PAGE_BYTES: Final = 2 * 2**20
"""Bytes of a page above which the next one is shorter."""
_LOG_LINES: Final = 150
_LOG_BYTES: Final = 32_768
CUT: Final = 1000
"""Characters kept of an error message of the API server."""
_UNTYPED: Final = "failed to create typed patch object"
"""Start of a message with status 500 that in fact reports an unknown field or a value of a wrong type."""


class ApiError(Exception):
    """The API server did not perform a request."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class UnavailableError(ApiError):
    """The API server is unreachable, overloaded or failing inside. A later attempt may succeed."""

    def __init__(self, message: str, *, status: int = 0, after: float = 0.0) -> None:
        super().__init__(message, status=status)
        self.after = after
        """Seconds of its Retry-After header; 0 without one."""


class UnreadableAnswerError(UnavailableError):
    """The API server's answer is no JSON object: another server may answer there."""


class FaultError(UnavailableError):
    """The API server fails at this request, for example because a webhook is down. Other requests may succeed."""


class MissingError(ApiError):
    """The object does not exist (404)."""


class ConflictError(ApiError):
    """The object differs from the request's precondition: it has another uid or version (409)."""


class ExpiredError(ApiError):
    """The API server has dropped the version to continue from (410)."""


class RefusedError(ApiError):
    """The object is invalid, or the program lacks the permission (400, 403, 422, and 500 for a wrong field)."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request to the API server."""

    method: str
    path: str
    query: Mapping[str, str] | None = None
    body: Json | None = None
    content: str = "application/json"
    accept: str = "application/json"


class Cluster:
    """Requests to one API server, bounded in number. Each one has a deadline."""

    def __init__(self, api: "ApiClient", requests: int, count: Callable[[str, int], None]) -> None:
        self._api = api
        self._slots = asyncio.Semaphore(requests)
        self._count = count
        self.fence: Callable[[], bool] = lambda: True
        """Whether this operator may write now. Writes of the Lease itself are not fenced."""

    @classmethod
    async def connect(
        cls,
        agent: str,
        requests: int,
        watches: int,
        count: Callable[[str, int], None] = lambda _verb, _status: None,
        *,
        own: bool = True,
    ) -> Self:
        """Connect by KUBECONFIG, else as the pod's service account, else, with `own`, by the user's own kubeconfig.

        `count` is called with the verb and the status of each request; the status is 0 without an answer. Raises
        CredentialsError.
        """
        # The library takes 50 MB and most of a second, so only a program that connects imports it.
        from kubernetes.aio.client import ApiClient

        settings = await credentials(own=own)
        settings.connection_pool_maxsize = requests + watches
        # Otherwise every request reads ~/.netrc and the proxy settings, in a thread.
        settings.client_session_kwargs = {"trust_env": False}
        api = ApiClient(settings)
        api.user_agent = f"{agent} ({socket.gethostname()}-{os.getpid()})"
        return cls(api, requests, count)

    async def close(self) -> None:
        """Close every connection."""
        await self._api.close()  # type: ignore[no-untyped-call]

    async def get(self, kind: Kind, namespace: str, name: str) -> Json:
        """Read one object; raises MissingError."""
        return await self._request(Request("GET", kind.path(namespace, name)))

    async def head(self, kind: Kind, namespace: str, name: str) -> Json | None:
        """Read the metadata of one object; None when it does not exist."""
        try:
            accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
            return await self._request(Request("GET", kind.path(namespace, name), accept=accept))
        except MissingError:
            return None

    async def list(self, kind: Kind, namespace: str | None, **query: str) -> Json:
        """List the objects of a kind."""
        return await self._request(Request("GET", kind.path(namespace), query))

    async def pages(
        self, kind: Kind, namespace: str | None, *, metadata_only: bool = False, **query: str
    ) -> AsyncIterator[Json]:
        """List the objects of a kind, page by page.

        Users choose the size of objects, so the first page is short, and further ones grow while their bytes are few.
        """
        limit, token = _FIRST_PAGE, ""
        while True:
            further = {"continue": token} if token else {}
            full = {**query, "limit": str(limit), **further}
            accept = _METADATA_LIST if metadata_only else "application/json"
            page, size = await self._sized(Request("GET", kind.path(namespace), full, accept=accept))
            token = metadata_of(page).get("continue") or ""
            # An empty list of metadata has null in place of items.
            yield {**page, "items": page.get("items") or []}
            if not token:
                return
            limit = min(_MAX_PAGE, 2 * limit) if size < _PAGE_BYTES else max(1, limit // 2)

    async def apply(
        self,
        kind: Kind,
        manifest: Json,
        *,
        uid: str | None,
        subresource: str = "",
        manager: str = FIELD_MANAGER,
    ) -> Json:
        """Server-side apply of a manifest under a field manager, with force.

        `uid` is a precondition: the object must have that uid; with an empty one it must not exist; None sets no
        precondition. Raises ConflictError when the precondition fails, and RefusedError.
        """
        metadata = manifest["metadata"]
        # The API server compares versions only if the object exists, and no object has this version.
        condition = {"uid": uid} if uid else {"resourceVersion": "1"}
        if uid is not None:
            manifest = {**manifest, "metadata": {**metadata, **condition}}
        request = Request(
            "PATCH",
            kind.path(metadata["namespace"], metadata["name"], subresource),
            {"fieldManager": manager, "force": "true"},
            body=manifest,
            content="application/apply-patch+yaml",
        )
        return await self._request(request)

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str, foreground: bool = False) -> None:
        """Delete one object and its dependents, unless it is gone or another object has its name.

        In the foreground it exists, terminating, until its dependents are gone.
        """
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Foreground" if foreground else "Background",
            "preconditions": {"uid": uid},
        }
        try:
            await self._request(Request("DELETE", kind.path(namespace, name), body=body))
        except (MissingError, ConflictError):
            return

    async def apply_status(self, namespace: str, name: str, *, uid: str, status: Json, version: str = "") -> Json:
        """Write the status of a PDDeployment. Conditions of other writers stay.

        With `version` it raises ConflictError if the object has another one.
        """
        manifest = {
            "apiVersion": PDDEPLOYMENT.api_version,
            "kind": PDDEPLOYMENT.name,
            "metadata": {
                "namespace": namespace,
                "name": name,
                **({"resourceVersion": version} if version else {}),
            },
            "status": status,
        }
        return await self.apply(PDDEPLOYMENT, manifest, uid=uid, subresource="status")

    async def create(self, kind: Kind, namespace: str, body: Json, *, fenced: bool = True) -> None:
        """Create one object."""
        await self._request(Request("POST", kind.path(namespace), body=body), fenced=fenced)

    async def replace(self, kind: Kind, namespace: str, name: str, body: Json, *, fenced: bool = True) -> None:
        """Replace one object; raises ConflictError if it has another version than the body."""
        await self._request(Request("PUT", kind.path(namespace, name), body=body), fenced=fenced)

    async def document(self, path: str) -> Json:
        """Read a document that is no object."""
        return await self._request(Request("GET", path))

    async def log(self, namespace: str, pod: str, container: str, *, previous: bool) -> str:
        """The end of a container's log, or of its previous run's log."""
        query = {"container": container, "tailLines": str(_LOG_LINES), "limitBytes": str(_LOG_BYTES)}
        query |= {"previous": "true"} if previous else {}
        async with self._slots, self._open(Request("GET", POD.path(namespace, pod, "log"), query)) as answer:
            return (await answer.read()).decode(errors="replace")

    @asynccontextmanager
    async def watch(
        self, kind: Kind, namespace: str | None, seconds: int, **query: str
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a watch for some seconds: one JSON event on each line, of any length.

        It may be silent all the time: without changes an API server sends no bookmarks either. Raises ExpiredError when
        the version is too old.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_SECONDS, sock_read=seconds + ANSWER_SECONDS)
        query |= {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
        async with self._open(Request("GET", kind.path(namespace), query), timeout) as answer:
            _keep_alive(answer)
            yield lines_of(answer.content.iter_any())

    async def _request(self, request: Request, *, fenced: bool = True) -> Json:
        if fenced and request.method != "GET" and not self.fence():
            raise UnavailableError("This operator does not hold its Lease")
        return (await self._sized(request))[0]

    async def _sized(self, request: Request) -> tuple[Json, int]:
        """Send one request; returns the answer and its bytes."""
        async with self._slots, self._open(request) as answer:
            text = await answer.read()
            return _decoded(text), len(text)

    @asynccontextmanager
    async def _open(
        self,
        request: Request,
        timeout: aiohttp.ClientTimeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS),  # noqa: B008
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send one request. Every failure is raised as an ApiError."""
        try:
            accepted = {"Accept": request.accept, "Content-Type": request.content}
            _, url, headers, _, _ = await self._api.param_serialize(
                request.method, request.path, header_params=accepted, auth_settings=["BearerToken"]
            )
            url += f"?{urlencode(request.query)}" if request.query else ""
            status = 0
            try:
                answer = await self._api.call_api(request.method, url, headers, request.body, _request_timeout=timeout)
                response: aiohttp.ClientResponse = answer.response
                status = response.status
            finally:
                self._count(request.method, status)
            try:
                if response.status >= 400:
                    raise error_of(response.status, response.headers, _message(await response.read()))
                yield response
            finally:
                _abort(response)
        except (aiohttp.ClientError, OSError, TimeoutError, ssl.SSLError) as error:
            raise UnavailableError(f"The API server is unreachable: {error or type(error).__name__}") from error


def _abort(answer: aiohttp.ClientResponse) -> None:
    """Close the connection at once, unless the answer is complete. TLS would first await the server's end."""
    if answer.connection is not None and answer.connection.transport is not None:
        answer.connection.transport.abort()
    answer.close()


def _keep_alive(answer: aiohttp.ClientResponse) -> None:
    transport = answer.connection.transport if answer.connection is not None else None
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def error_of(status: int, headers: Mapping[str, str], text: str) -> ApiError:
    """The exception for an error status; `text` is the message of a Status object, if there was one."""
    message = text or f"HTTP {status}"
    match status:
        case 404:
            return MissingError(message, status=status)
        case 409:
            return ConflictError(message, status=status)
        case 410:
            return ExpiredError(message, status=status)
        case 400 | 403 | 422:
            return RefusedError(message, status=status)
        case 500 if text.startswith(_UNTYPED):
            return RefusedError(message, status=status)
        case _:
            after = headers.get("Retry-After", "")
            kind = FaultError if text and status >= 500 else UnavailableError
            wait = float(after) if after.isascii() and after.isdecimal() else 0.0
            return kind(message, status=status, after=min(wait, _LONGEST_WAIT))


def metadata_of(page: Json) -> Json:
    """The metadata of a list. Raises UnreadableAnswerError if it is no list of an API server."""
    metadata = page.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(page.get("items"), list | None):
        raise UnreadableAnswerError("The API server's answer is no list")
    return metadata


def _decoded(text: bytes) -> Json:
    try:
        document = decode(text)
    except ValueError as error:
        raise UnreadableAnswerError(f"The API server's answer is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise UnreadableAnswerError("The API server's answer is no object")
    return document


def _message(body: bytes) -> str:
    """The message of a Status object. Other bodies are dropped, because their content is arbitrary."""
    try:
        status = decode(body)
    except ValueError:
        return ""
    return str(status.get("message") or "")[:CUT] if isinstance(status, dict) and status.get("kind") == "Status" else ""
