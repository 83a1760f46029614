"""What a tenant with `edit` in one namespace may create to harm others: docs/security.md lists it."""

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Any

from pdx_api.names import ADMIN_PORT, API_VERSION, KIND, LABEL_DEPLOYMENT, LABEL_ROLE
from tests.cluster.runtime.harness import SPEC

Body = dict[str, Any]

LARGE = 2**20 - 2**14
"""Bytes of a text; the object with it has 1 MiB."""
_ENDLESS_BYTES = 2**28


class HostileGateway(ThreadingHTTPServer):
    """The admin port of every pod of a namespace: redirects, endless bodies, deep and strange answers."""

    daemon_threads = True

    def __init__(self, numbers: Random) -> None:
        self.address = ".".join(map(str, (127, *(numbers.randint(1, 250) for _ in range(3)))))
        super().__init__((self.address, ADMIN_PORT), _Handler)
        self.polls = 0
        self.followed = 0
        """Requests for the target of a redirect."""
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_: object) -> None:
        """An operator that has read enough closes the connection."""


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        gateway = self.server
        assert isinstance(gateway, HostileGateway)
        if self.path.startswith("/elsewhere"):
            gateway.followed += 1
            return
        gateway.polls += 1
        _ANSWERS[gateway.polls % len(_ANSWERS)](self)

    def log_message(self, *_: object) -> None:
        pass


def _redirect(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(307)
    handler.send_header("Location", f"http://{handler.headers['Host']}/elsewhere")
    handler.send_header("Content-Length", "0")
    handler.end_headers()


def _endless(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(_ENDLESS_BYTES // 2**16):
        handler.wfile.write(b" " * 2**16)


def _send(text: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text.encode())

    return send


_STRANGE = {"stamp": 7, "finding": {"verdict": "Verified" * 1000, "pairs": -1, "broken": [None] * 500}}
_ANSWERS = (_redirect, _endless, _send("[" * 60_000), _send(json.dumps(_STRANGE)), _send(""))


def attempts(victim: str, uid: str, other_namespace: str) -> tuple[Callable[[int], tuple[str, Body]], ...]:
    """Functions of a number that make a kind and an object of that kind.

    `victim` and `uid` are a PDDeployment of another namespace.
    """

    def deployment(name: str, spec: Mapping[str, Any], **metadata: Any) -> tuple[str, Body]:
        return KIND, {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name, **metadata}, "spec": spec}

    def overlaid(name: str, overlay: Body) -> tuple[str, Body]:
        return deployment(name, {**SPEC, "decode": {**SPEC["decode"], "podTemplate": overlay}})

    def large_text(number: int) -> tuple[str, Body]:
        env = [{"name": "TEXT", "value": "x" * LARGE}]
        return overlaid(f"large-{number}", {"spec": {"containers": [{"name": "other", "image": "x", "env": env}]}})

    def foreign_overlay(number: int) -> tuple[str, Body]:
        pod = {"serviceAccountName": "pdx-operator", "hostNetwork": True, "hostPID": True, "nodeName": "any"}
        return overlaid(f"overlay-{number}", {"spec": pod})

    def same_name(number: int) -> tuple[str, Body]:
        name = (victim, f"{victim}-gateway", f"{victim}-gateway-role")[number] if number < 3 else f"{victim}-{number}"
        return deployment(name, SPEC)

    def claimed(number: int) -> tuple[str, Body]:
        return deployment(f"claimed-{number}", SPEC, annotations={"pdx.dev/operator": f"{other_namespace}/any"})

    def labelled(number: int) -> tuple[str, Body]:
        owner = {"apiVersion": API_VERSION, "kind": KIND, "name": victim, "uid": uid, "controller": True}
        metadata = {
            "name": f"{victim}-stray-{number}",
            "labels": {LABEL_DEPLOYMENT: victim, LABEL_ROLE: "gateway"},
            "annotations": {"text": "x" * 200_000},
            "ownerReferences": [owner],
        }
        return "Service", {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"ports": [{"port": 1}]},
        }

    def plain(number: int) -> tuple[str, Body]:
        return deployment(f"plain-{number}", SPEC)

    return plain, large_text, foreign_overlay, same_name, claimed, labelled
