"""kopf's connection to the API server. It gives kopf the identities of objects, and keeps the objects for the handler.

kopf ends at an answer that it cannot decode, and an answer contains the objects of all tenants. It would also decode
each large object of a tenant again, while the events of all others wait. An object without an identity is left out.
"""

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any, Final

import aiohttp
import kopf

from pdx_api.kube.decoder import decode, lines_of
from pdx_operator.kube.object_shape import UnusableObjectError, require_identity
from pdx_operator.kube.resources import Body

_OBJECT_EVENTS: Final = ("ADDED", "MODIFIED", "DELETED")
_IDENTITY: Final = ("namespace", "name", "uid", "resourceVersion")

log = logging.getLogger(__name__)


class Bodies:
    """Owner of the objects that the watch has received and kopf's handler has not taken yet: the newest of each uid."""

    def __init__(self) -> None:
        self._held: dict[str, Body] = {}
        self._unread = 0
        """Watches that have received something that kopf has not read yet."""
        self.caught_up = asyncio.Event()
        """Set while there is no such watch."""
        self.caught_up.set()

    async def read(self, chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        """The chunks of a watch."""
        async for chunk in chunks:
            self._unread += 1
            self.caught_up.clear()
            try:
                yield chunk
            finally:
                self._unread -= 1
                if not self._unread:
                    self.caught_up.set()

    def hold(self, body: Body) -> dict[str, Any]:
        """Keep an object until it is taken; return its identity."""
        self._held[body["metadata"]["uid"]] = body
        return _identity(body)

    def drop(self, body: Body) -> dict[str, Any]:
        """Forget a deleted object; return its identity."""
        self._held.pop(body["metadata"]["uid"], None)
        return _identity(body)

    def clear(self) -> None:
        """Forget all objects: kopf has ended, and its queued events with it."""
        self._held.clear()

    def take(self, identity: Body) -> Body | None:
        """The newest version of an object; None if it has been taken with an earlier event, or is deleted."""
        return self._held.pop(identity["metadata"]["uid"], None)


async def login(bodies: Bodies, **kwargs: Any) -> kopf.AiohttpSession | None:
    """Connect as the pod's service account or by a kubeconfig, in the same order as `Cluster.connect`."""
    logins = [kopf.login_with_service_account, kopf.login_with_kubeconfig]
    logins.sort(key=lambda login: login is kopf.login_with_service_account and bool(os.environ.get("KUBECONFIG")))
    info = next((info for login in logins if (info := login(**kwargs)) is not None), None)
    if info is None:
        return None
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
        headers=info.as_http_headers(),
        proxy=info.proxy_url,
        trust_env=info.trust_env,
        response_class=type("Answer", (_Answer,), {"bodies": bodies}),
    )
    return kopf.AiohttpSession(
        aiohttp_session=session,
        server=info.server,
        default_namespace=info.default_namespace,
        priority=info.priority,
        expiration=info.expiration,
    )


class _Answer(aiohttp.ClientResponse):
    """An answer of the API server: kopf reads a list with `json`, and a watch from `content`."""

    bodies: Bodies

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        """Read the head of the answer."""
        await super().start(connection)
        self.content = _Content(self.content, self.bodies)  # type: ignore[assignment]
        return self

    async def json(self, **options: Any) -> Any:
        """Decode the answer. Raises ContentTypeError and ValueError if it is no JSON."""
        if "json" not in self.content_type:
            return await super().json(**options)
        document = decode(await self.read())
        if isinstance(document, dict) and isinstance(document.get("items"), list):
            kind = str(document.get("kind") or "").removesuffix("List")
            identified = [item for item in document["items"] if _identified(item)]
            document["items"] = [self.bodies.hold({"kind": kind, **item}) for item in identified]
        return document


class _Content:
    """The body of an answer. Everything but the lines of a watch is as aiohttp has it."""

    def __init__(self, stream: aiohttp.StreamReader, bodies: Bodies) -> None:
        self._stream = stream
        self._bodies = bodies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """The lines of a watch that kopf can process."""
        async for line in lines_of(self._bodies.read(self._stream.iter_chunked(size))):
            if event := usable_event(line, self._bodies):
                yield event + b"\n"


def usable_event(line: bytes, bodies: Bodies) -> bytes:
    """Return an event that kopf can process, with the identity of its object; empty if a line contains none."""
    try:
        event = decode(line)
    except ValueError as error:
        log.warning("A line of the watch of PDDeployments is no JSON and is skipped: %s", error)
        return b""
    if not isinstance(event, dict) or not isinstance(event.get("object"), dict) or "type" not in event:
        log.warning("A line of the watch of PDDeployments is no event and is skipped")
        return b""
    if event["type"] not in _OBJECT_EVENTS:
        return json.dumps(event).encode()
    body = event["object"]
    if not _identified(body):
        return b""
    identity = bodies.drop(body) if event["type"] == "DELETED" else bodies.hold(body)
    return json.dumps({"type": event["type"], "object": identity}).encode()


def _identity(body: Body) -> dict[str, Any]:
    """What kopf reads of an object."""
    kind = {name: body[name] for name in ("apiVersion", "kind") if name in body}
    return {**kind, "metadata": {name: body["metadata"][name] for name in _IDENTITY}}


def _identified(body: Any) -> bool:
    """Whether an object has an identity."""
    try:
        require_identity(body)
    except UnusableObjectError as error:
        log.warning("%s among the PDDeployments is skipped", error)
        return False
    return True
