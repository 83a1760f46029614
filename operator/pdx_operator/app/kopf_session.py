"""kopf's connection to the API server. It gives kopf only objects that kopf can decode and process.

kopf ends at an answer that it cannot decode, and an answer contains the objects of all tenants. So an object that is
too deep or odd is replaced by its stub, and one without an identity is left out.
"""

import json
import logging
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import aiohttp
import kopf

from pdx_api.kube.decoder import decode, lines_of
from pdx_operator.kube.object_shape import UnusableObjectError, fault_of, require_identity, stub

_OBJECT_EVENTS: Final = ("ADDED", "MODIFIED", "DELETED")

log = logging.getLogger(__name__)


async def login(**kwargs: Any) -> kopf.AiohttpSession | None:
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
        response_class=_Answer,
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

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        """Read the head of the answer."""
        await super().start(connection)
        self.content = _Content(self.content)  # type: ignore[assignment]
        return self

    async def json(self, **options: Any) -> Any:
        """Decode the answer. Raises ContentTypeError and ValueError if it is no JSON."""
        if "json" not in self.content_type:
            return await super().json(**options)
        document = decode(await self.read())
        if isinstance(document, dict) and isinstance(document.get("items"), list):
            kind = str(document.get("kind") or "").removesuffix("List")
            document["items"] = [body for item in document["items"] if (body := _usable(item, kind)) is not None]
        return document


class _Content:
    """The body of an answer. Everything but the lines of a watch is as aiohttp has it."""

    def __init__(self, stream: aiohttp.StreamReader) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """The lines of a watch that kopf can process."""
        async for line in lines_of(self._stream.iter_chunked(size)):
            if event := usable_event(line):
                yield event + b"\n"


def usable_event(line: bytes) -> bytes:
    """Return an event that kopf can process; empty if a line contains none."""
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
    body = _usable(event["object"], "")
    return b"" if body is None else json.dumps({**event, "object": body}).encode()


def _usable(body: Any, kind: str) -> Mapping[str, Any] | None:
    """The object, or its stub; None if it has no identity. `kind` is that of a list's objects."""
    try:
        require_identity(body)
    except UnusableObjectError as error:
        log.warning("%s among the PDDeployments is skipped", error)
        return None
    reason = fault_of(body)
    return stub({"kind": kind, **body} if kind else body, reason) if reason else body
