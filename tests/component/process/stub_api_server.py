"""A stub of Kubernetes' API server: it lists and watches PDDeployments as bytes, and records what is written."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from aiohttp import web
from aiohttp.test_utils import TestServer

from pdx_api.names import API_VERSION, GROUP, KIND, PLURAL, VERSION

_ROOT = f"/apis/{GROUP}/{VERSION}"
_KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{{name: a, cluster: {{server: "{url}"}}}}]
users: [{{name: a, user: {{}}}}]
contexts: [{{name: a, context: {{cluster: a, user: a}}}}]
current-context: a
"""


class StubAPIServer:
    """Owner of the objects and of the record of writes."""

    def __init__(self, *objects: bytes) -> None:
        self.objects = list(objects)
        """PDDeployments as JSON, in the order of a list."""
        self.events: asyncio.Queue[bytes] = asyncio.Queue()
        """Lines for the watch of PDDeployments."""
        self.fails_watches = False
        """Whether each watch of PDDeployments ends with an error, which ends kopf."""
        self.watches = 0
        """Watches of PDDeployments so far."""
        self.written: dict[str, Mapping[str, Any]] = {}
        """The last body that was applied, by path."""
        self._version = 100

    @classmethod
    @asynccontextmanager
    async def started(cls, *objects: bytes, kubeconfig: Path) -> AsyncIterator[Self]:
        """Start one, and write the kubeconfig that leads to it."""
        stub, app = cls(*objects), web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", stub._answer)
        async with TestServer(app) as server:
            kubeconfig.write_text(_KUBECONFIG.format(url=str(server.make_url("")).rstrip("/")))  # noqa: ASYNC240
            yield stub

    def children_of(self, namespace: str) -> set[str]:
        """The paths of the children that were written into a namespace."""
        return {path for path in self.written if f"/namespaces/{namespace}/" in path and "/status" not in path}

    def reason_of(self, namespace: str) -> str:
        """The reason of the Ready condition that was written to the PDDeployment of a namespace."""
        path = f"{_ROOT}/namespaces/{namespace}/{PLURAL}/chat/status"
        status = self.written.get(path, {}).get("status", {})
        return next((c["reason"] for c in status.get("conditions", ()) if c["type"] == "Ready"), "")

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if request.method == "PATCH":
            return self._apply(path, json.loads(await request.read()))
        if request.method == "POST":
            return web.json_response({}, status=201)
        if "watch" in request.query:
            return await self._watch(request)
        if path in _DOCUMENTS:
            return web.json_response(_DOCUMENTS[path])
        if path == f"{_ROOT}/{PLURAL}":
            return self._list()
        if path.startswith(_ROOT):
            return self._read(path)
        return web.json_response({"items": [], "metadata": {"resourceVersion": "100"}})

    def _list(self) -> web.Response:
        head = {"kind": f"{KIND}List", "apiVersion": API_VERSION, "metadata": {"resourceVersion": "100"}, "items": []}
        return _json(json.dumps(head).encode().removesuffix(b"]}") + b", ".join(self.objects) + b"]}")

    def _read(self, path: str) -> web.Response:
        *_, namespace, _, name = path.split("/")
        named = (f'"namespace": "{namespace}"'.encode(), f'"name": "{name}"'.encode())
        body = next((body for body in self.objects if all(part in body for part in named)), None)
        return web.Response(status=404) if body is None else _json(body)

    def _apply(self, path: str, body: dict[str, Any]) -> web.Response:
        self._version += 1
        self.written[path] = body
        metadata = {
            **body["metadata"],
            "uid": body["metadata"].get("uid") or path,
            "resourceVersion": str(self._version),
        }
        metadata.setdefault("generation", 1)
        self._store_status(path, body)
        return web.json_response({**body, "metadata": metadata})

    def _store_status(self, path: str, body: dict[str, Any]) -> None:
        """Keep the claim of the operator, so that it goes on."""
        if not path.endswith("/status"):
            return
        for i, text in enumerate(self.objects):
            if f'"uid": "{body["metadata"].get("uid")}"'.encode() in text and text.endswith(b'"status": {}}'):
                status = json.dumps(body["status"]).encode()
                self.objects[i] = text.removesuffix(b"{}}") + status + b"}"

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        if not request.path.endswith(f"/{PLURAL}"):
            await asyncio.sleep(3600)
        self.watches += 1
        if self.fails_watches:
            await answer.write(b'{"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "no"}}\n')
            return answer
        while True:
            await answer.write(await self.events.get() + b"\n")


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")


def _resource(plural: str, kind: str, *, namespaced: bool = True) -> dict[str, Any]:
    verbs = ["get", "list", "watch", "patch"]
    return {"name": plural, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": verbs}


def _group(name: str, version: str) -> dict[str, Any]:
    return {"name": name, "versions": [{"version": version}], "preferredVersion": {"version": version}}


_DOCUMENTS: dict[str, Any] = {
    "/api": {"versions": ["v1"]},
    "/apis": {"groups": [_group(GROUP, VERSION), _group("apiextensions.k8s.io", "v1")]},
    "/api/v1": {"resources": [_resource("namespaces", "Namespace", namespaced=False), _resource("events", "Event")]},
    "/apis/apiextensions.k8s.io/v1": {
        "resources": [_resource("customresourcedefinitions", "CustomResourceDefinition", namespaced=False)]
    },
    _ROOT: {"resources": [_resource(PLURAL, KIND)]},
}
"""What kopf reads before it watches."""
