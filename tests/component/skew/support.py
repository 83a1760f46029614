"""The recorded version of PDX in a process of its own, and the version after it: the working tree, with additions."""

import copy
import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any, Final

import pytest

from pdx_api.connectors import CONNECTORS
from pdx_api.names import API_VERSION, KIND
from pdx_api.spec.schema import object_schema
from pdx_operator.kube.resources import ChildKey, Snapshot
from pdx_operator.plan.reconcile_plan import Plan, plan
from pdx_operator.render.gateway import Installation
from tests.component.skew.record import WHEEL

Body = dict[str, Any]
Live = dict[ChildKey, Body]

_PROGRAM: Final = """
import json, sys
from pdx_api.spec.schema import object_schema
from pdx_operator.kube.resources import ChildKey, Snapshot
from pdx_operator.plan.reconcile_plan import plan
from pdx_operator.render.children import Installation
from pdx_proxy.__main__ import create_parser
from pdx_proxy.discovery.pods import read_pod

def planned(body, live):
    children = {ChildKey(*key): child for key, child in live}
    step = plan(Snapshot(body, children), Installation("gateway:1"))
    return {
        "invalid": step.invalid,
        "applies": [apply.manifest for apply in step.applies],
        "deletes": [list(delete.key) for delete in step.deletes],
    }

def flags(args):
    try:
        create_parser().parse_args(args)
    except Exception as error:
        return str(error)
    except SystemExit as error:
        return str(error.code)
    return ""

found = []
for name, arguments in json.load(sys.stdin):
    if name == "plan":
        found.append(planned(*arguments))
    elif name == "read_pod":
        endpoint = read_pod(*arguments)
        fields = ("role", "revision", "connector", "order")
        found.append({field: str(getattr(endpoint, field, None)) for field in fields})
    elif name == "flags":
        found.append(flags(*arguments))
    else:
        found.append(object_schema())
json.dump(found, sys.stdout)
"""


def previous(*calls: tuple[str, *tuple[Any, ...]]) -> list[Any]:
    """The results of functions of the recorded version."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        input=json.dumps([[name, arguments] for name, *arguments in calls]),
        env={**os.environ, "PYTHONPATH": str(WHEEL)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results: list[Any] = json.loads(done.stdout)
    return results


def body_of(spec: Body) -> Body:
    """A PDDeployment with this spec."""
    metadata = {"name": "m", "namespace": "ns", "uid": "u", "generation": 1, "resourceVersion": "1"}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def planned(spec: Body, live: Live | None = None) -> Plan:
    """The plan of the working tree."""
    return plan(Snapshot(body_of(spec), live or {}), Installation("gateway:1"))


def settled(manifests: list[Body]) -> Live:
    """The children once all pods serve."""
    live: Live = {}
    for manifest in manifests:
        body = copy.deepcopy(manifest)
        key = ChildKey(body["kind"], body["metadata"]["name"])
        body["metadata"]["uid"] = f"uid of {key}"
        if key.kind == "Deployment":
            n = body["spec"].setdefault("replicas", 1)
            body["status"] = {"observedGeneration": 1, "replicas": n, "updatedReplicas": n, "availableReplicas": n}
        live[key] = body
    return live


def entries(live: Live) -> list[Any]:
    """Children as JSON for `previous`."""
    return [[list(key), body] for key, body in live.items()]


def pods_of(manifests: list[Body]) -> list[Body]:
    """A serving pod of each engine Deployment."""
    templates = [m["spec"]["template"] for m in manifests if m["kind"] == "Deployment"]
    engines = [t for t in templates if t["metadata"]["labels"].get("pdx.dev/role") in ("prefill", "decode")]
    status = {"phase": "Running", "podIP": "10.0.0.7"}
    return [{**t, "metadata": {**t["metadata"], "name": "p", "uid": "u"}, "status": status} for t in engines]


def arguments_of_gateway(manifests: list[Body]) -> list[str]:
    """The command line of the gateway."""
    (gateway,) = (m for m in manifests if (m["kind"], m["metadata"]["name"]) == ("Deployment", "m-gateway"))
    args: list[str] = gateway["spec"]["template"]["spec"]["containers"][0]["args"]
    return args


def next_schema() -> Body:
    """The CRD of the next version: one more field with a default, and one more field of the status."""
    schema = copy.deepcopy(object_schema())
    parts = schema["properties"]
    parts["spec"]["properties"]["gateway"]["properties"]["compression"] = {"type": "boolean", "default": True}
    parts["status"]["properties"]["newer"] = {"type": "string"}
    return schema


def use_next_wiring(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the working tree is a version with the next wiring number of each connector."""
    for name, connector in list(CONNECTORS.items()):
        monkeypatch.setitem(CONNECTORS, name, replace(connector, wiring=connector.wiring + 1))


def with_defaults(value: Any, schema: Body) -> Any:
    """A value with the defaults of a structural schema, as the API server adds them."""
    if not isinstance(value, dict):
        return value
    found = copy.deepcopy(value)
    for name, inner in (schema.get("properties") or {}).items():
        if name not in found and "default" in inner:
            found[name] = copy.deepcopy(inner["default"])
        if name in found:
            found[name] = with_defaults(found[name], inner)
    return found
