"""The worst objects that an API server takes from a tenant with `edit`: depth, size, number, metadata and changes."""

import contextlib
import copy
import http.client
import itertools
import json
import re
import threading
import time
import urllib.error
from collections.abc import Callable, Iterator
from typing import Any, Final

from pdx_api.kube.kinds import DEPLOYMENT, KIND_OF, PDDEPLOYMENT, Kind
from pdx_api.names import API_VERSION, KIND, LABEL_DEPLOYMENT, LABEL_REVISION, LABEL_ROLE
from tests.cluster.runtime.harness import SPEC, Api

Body = dict[str, Any]
Made = tuple[Kind, Body]

_DEEPEST: Final = 9_900
"""Levels of lists: the API server's decoder takes 10,000 in all."""
_SEVERAL: Final = 1_500
_METADATA_BYTES: Final = 250_000
"""Of annotations, of which an API server takes 256 KiB."""
_SERVICE: Final = KIND_OF["Service"]
_FOREIGN: Final = {"apiVersion": "v1", "kind": "ConfigMap", "name": "nobody", "uid": "0", "controller": True}


def _object(name: str, spec: Body | None = None, **metadata: Any) -> Made:
    body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name, **metadata}}
    return PDDEPLOYMENT, {**body, "spec": copy.deepcopy(SPEC if spec is None else spec)}


def _overlaid(name: str, pod: Any, **metadata: Any) -> Made:
    return _object(name, {**SPEC, "decode": {**SPEC["decode"], "podTemplate": {"spec": pod}}}, **metadata)


def _nested(levels: int) -> str:
    """Lists in lists, which `text_of` writes: Python's encoder writes fewer levels than the API server reads."""
    return f"NESTED {levels}"


def text_of(body: Body) -> bytes:
    """An object as the API server gets it."""
    text = json.dumps(body)
    return re.sub(r'"NESTED (\d+)"', lambda found: "[" * int(found[1]) + "]" * int(found[1]), text).encode()


def _plain(number: int) -> Made:
    return _object(f"plain-{number}")


def _deep(number: int) -> Made:
    return _overlaid(f"deep-{number}", {"x": _nested(_SEVERAL if number % 2 else _SEVERAL // 25)})


def _large(number: int) -> Made:
    env = [{"name": "TEXT", "value": "x" * (2**20)}]
    return _overlaid(f"large-{number}", {"containers": [{"name": "other", "image": "x", "env": env}]})


def _wide(number: int) -> Made:
    """As many fields as fit into what the operator keeps."""
    return _overlaid(f"wide-{number}", {"nodeSelector": {f"k{each}": "" for each in range(15_000)}})


def _odd(number: int) -> Made:
    pods: tuple[Body, ...] = (
        {"volumes": {"a": []}},
        {"hostNetwork": "x"},
        {"tolerations": 7},
        {"nodeSelector": [None]},
    )
    return _overlaid(f"odd-{number}", pods[number % len(pods)])


def _annotated(number: int) -> Made:
    texts = {f"a{each}": "" for each in range(_METADATA_BYTES // 8)}
    labels = {f"l{each}": f"v{each}" for each in range(2_000)}
    return _object(f"annotated-{number}", annotations=texts, labels=labels)


def _generated(number: int) -> Made:
    owners = [
        {"apiVersion": API_VERSION, "kind": KIND, "name": f"generated-{each}", "uid": str(each)} for each in range(50)
    ]
    kind, body = _object("", ownerReferences=owners)
    body["metadata"] = {**body["metadata"], "generateName": "generated-"}
    del body["metadata"]["name"]
    return kind, body


def _finalized(number: int) -> Made:
    """The disturbances delete it, and it stays."""
    return _object(f"finalized-{number}", finalizers=["example.com/never"])


def _refused(number: int) -> Made:
    """The API server refuses its children, again and again."""
    return _overlaid(f"refused-{number}", {"restartPolicy": "Sometimes"})


def _child(number: int) -> Made:
    """It has the labels of an engine, and another owner, or none."""
    owner = {"ownerReferences": [_FOREIGN]} if number % 2 else {}
    labels = {
        LABEL_DEPLOYMENT: f"plain-{number}",
        LABEL_ROLE: "decode" if number % 3 else "x",
        LABEL_REVISION: "y" * 60,
    }
    metadata = {"name": f"child-{number}", "labels": labels, "annotations": {"text": "x" * _METADATA_BYTES}, **owner}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": pod}
    return DEPLOYMENT, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


def _blocked_child(number: int) -> Made:
    metadata = {"name": f"blocked-{number}", "labels": {LABEL_DEPLOYMENT: f"plain-{number}"}}
    metadata |= {"finalizers": ["example.com/never"]}
    return _SERVICE, {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 1}]}}


WORST: Final[tuple[Callable[[int], Made], ...]] = (
    *(_plain, _deep, _large, _wide, _odd, _annotated, _generated, _finalized, _refused, _child, _blocked_child),
)
"""Functions of a number that make an object."""


def deepest() -> Made:
    """The deepest object that the API server takes."""
    return _overlaid("deepest", {"x": _nested(_DEEPEST)})


def _patch_text(tenant: Api, namespace: str, number: int) -> None:
    tenant.patch(PDDEPLOYMENT, namespace, f"large-{number % 3}", {"metadata": {"annotations": {"n": str(number)}}})


def _patch_spec(tenant: Api, namespace: str, number: int) -> None:
    tenant.change(namespace, {"decode": {"replicas": number % 5}}, f"plain-{number % 4}")


def _patch_child(tenant: Api, namespace: str, number: int) -> None:
    change = {"spec": {"replicas": 7}, "metadata": {"labels": {LABEL_REVISION: None}}}
    tenant.patch(DEPLOYMENT, namespace, f"plain-{number % 4}-gateway", change)


def _recreate(tenant: Api, namespace: str, number: int) -> None:
    tenant.delete(PDDEPLOYMENT, namespace, f"finalized-{number % 3}")
    tenant.delete(PDDEPLOYMENT, namespace, f"flap-{number % 4}")
    tenant.create(*_at(namespace, _object(f"flap-{number % 4}")))


def _delete_children(tenant: Api, namespace: str, number: int) -> None:
    tenant.delete(_SERVICE, namespace, f"plain-{number % 4}-gateway")
    tenant.delete(_SERVICE, namespace, f"blocked-{number % 3}")


def _at(namespace: str, made: Made) -> tuple[Kind, str, bytes]:
    return made[0], namespace, text_of(made[1])


DISTURBANCES: Final = (_patch_text, _patch_spec, _patch_child, _recreate, _delete_children)


@contextlib.contextmanager
def disturbed(tenant: Api, namespace: str, pause: float) -> Iterator[None]:
    """Change the objects for the length of a block: each sort of change has its own thread, which pauses in between."""
    over = threading.Event()

    def run(change: Callable[[Api, str, int], None]) -> None:
        for number in itertools.count():
            if over.wait(pause):
                return
            with contextlib.suppress(urllib.error.HTTPError):
                change(tenant, namespace, number)

    threads = [threading.Thread(target=run, args=(change,), daemon=True) for change in DISTURBANCES]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def clear(admin: Api, namespace: str, within: float) -> None:
    """Delete everything that the tenant has made, what finalizers hold too."""
    end = time.monotonic() + within
    for kind in (PDDEPLOYMENT, DEPLOYMENT, _SERVICE):
        while found := admin.items(kind, namespace):
            assert time.monotonic() < end, [body["metadata"]["name"] for body in found]
            # The API server ends an answer that takes it more than a minute. It goes on deleting.
            with contextlib.suppress(urllib.error.HTTPError, http.client.HTTPException):
                admin.request("DELETE", kind.path(namespace), {"propagationPolicy": "Background"})
            for body in found:
                if body["metadata"].get("finalizers"):
                    with contextlib.suppress(urllib.error.HTTPError):
                        admin.patch(kind, namespace, body["metadata"]["name"], {"metadata": {"finalizers": None}})
            time.sleep(0.5)
