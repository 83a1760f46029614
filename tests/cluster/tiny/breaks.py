"""Ways in which a cluster keeps KV from travelling though every pod is Ready. No PDDeployment's spec says any of them.

`blocked_ports`: a firewall in a pod's network namespace. `rewritten_pods`: a policy of the cluster that writes other
arguments into new pods, as a policy engine, a mutating webhook or an image with flags of its own does.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from pdx_api.names import LABEL_DEPLOYMENT, LABEL_ROLE, Role
from pdx_cluster.errors import ClusterError
from pdx_cluster.system.shell import run
from tests.cluster.tiny import objects
from tests.cluster.tiny.scene import Room, Scene

_ADMISSION: Final = "admissionregistration.k8s.io/v1"
_ARGS: Final = "/spec/containers/0/args"
OTHER_MODEL: Final = f'[JSONPatch{{op: "replace", path: "{_ARGS}/1", value: "{objects.MODEL.parent}/./tiny"}}]'
"""The same folder, written in another way: vLLM compares the strings."""
NO_CONNECTOR: Final = (
    f'[JSONPatch{{op: "replace", path: "{_ARGS}", value: object.spec.containers[0].args.filter(argument, '
    """argument != "--kv-transfer-config" && !argument.startsWith('{"kv_connector"'))}]"""
)
"""vLLM without its KV connector."""


@dataclass(frozen=True, slots=True)
class _Network:
    """The network namespace of a pod."""

    scene: Scene
    process: str
    """A pid in it, as the node counts."""

    def iptables(self, *arguments: str) -> None:
        node = self.scene.cluster.node
        assert node is not None
        run([*node.namespaces.enter, "nsenter", f"--target={self.process}", "--net", "--", "iptables", *arguments])


@contextmanager
def blocked_ports(scene: Scene, role: Role, *which: str) -> Iterator[None]:
    """Drop what comes to those TCP ports of a role's pod (iptables' words for them), open connections included."""
    network = _network(scene, engine_pod(scene, role))
    rule = ("INPUT", "--in-interface", "eth0", "--protocol", "tcp", *which, "--jump", "DROP")
    network.iptables("--append", *rule)
    try:
        yield
    finally:
        with suppress(ClusterError):  # the pod may be gone, and the rule with it
            network.iptables("--delete", *rule)


def _network(scene: Scene, pod: dict[str, Any]) -> _Network:
    assert scene.cluster.node is not None
    name = pod["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]
    tasks = (line.split() for line in scene.cluster.node.ctr("tasks", "ls").splitlines())
    return _Network(scene, next(task[1] for task in tasks if task[0] == name))


def engine_pod(scene: Scene, role: Role) -> dict[str, Any]:
    """The only pod of a role that is to stay."""
    found = scene.pods(f"{LABEL_ROLE}={role}")
    (pod,) = [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]
    return pod


@contextmanager
def rewritten_pods(scene: Scene, role: Role, change: str) -> Iterator[None]:
    """A MutatingAdmissionPolicy that makes this change, a CEL list of JSONPatch, to each new pod of the role."""
    pod = engine_pod(scene, role)
    policy = json.dumps({"apiVersion": "v1", "kind": "List", "items": _policy(scene, role, change)})
    scene.cluster.kubectl("apply", "-f", "-", stdin=policy)
    try:
        _wait_until(scene, pod, changed=True)
        yield
    finally:
        scene.cluster.kubectl("delete", "-f", "-", stdin=policy)
    _wait_until(scene, pod, changed=False)


def _policy(scene: Scene, role: Role, change: str) -> list[dict[str, Any]]:
    name = f"{scene.namespace}-{role}"
    created = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    labels = {LABEL_DEPLOYMENT: scene.name, LABEL_ROLE: str(role)}
    spec = {
        "matchConstraints": {"resourceRules": [created], "objectSelector": {"matchLabels": labels}},
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": change}}],
    }
    where = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": scene.namespace}}}
    return [
        _object("MutatingAdmissionPolicy", name, spec),
        _object("MutatingAdmissionPolicyBinding", name, {"policyName": name, "matchResources": where}),
    ]


def _object(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": _ADMISSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _wait_until(scene: Scene, pod: dict[str, Any], *, changed: bool) -> None:
    """Until a pod like this one would, or would not, be changed: the API server learns of policies a moment later."""
    metadata = {"name": "like-it", "labels": pod["metadata"]["labels"]}
    like = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod["spec"]})
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        made = json.loads(scene.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=like))
        if (made["spec"]["containers"][0]["args"] != pod["spec"]["containers"][0]["args"]) is changed:
            return
        time.sleep(0.2)
    raise ClusterError(f"new {pod['metadata']['labels'][LABEL_ROLE]} pods are {'not ' if changed else ''}rewritten")


def replace_engine(scene: Scene, role: Role) -> None:
    """Delete a role's pod and wait until the one that takes its place is Ready."""
    old = engine_pod(scene, role)["metadata"]["name"]
    scene.kubectl("delete", "pod", old, "--wait=false")
    deadline, room = time.monotonic() + 400, Room()
    while time.monotonic() < deadline:
        room.check(scene.conditions())
        found = [p for p in scene.pods(f"{LABEL_ROLE}={role}") if p["metadata"]["name"] != old]
        ready = [
            c for p in found for c in p["status"].get("conditions", ()) if (c["type"], c["status"]) == ("Ready", "True")
        ]
        if ready:
            return
        time.sleep(0.5)
    raise ClusterError(f"no {role} engine has taken the place of {old}\n{scene.kubectl('get', 'pods', '-o', 'wide')}")
