"""The operator as a process against a real API server, and hands that do what kubelets and users would do."""

import contextlib
import copy
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

from pdx_api.kube.decoder import decode
from pdx_api.kube.kinds import CHILD_KINDS, PDDEPLOYMENT, POD, Kind
from pdx_api.names import API_VERSION, GATEWAY_ROLE, KIND, LABEL_DEPLOYMENT
from pdx_cluster.app.cluster import Cluster
from pdx_operator.app.permissions import ACCESS, OWN_ACCESS
from tests.ports import free_port

Body = dict[str, Any]

_CRDS = Path(__file__).parents[3] / "crds"

OPERATOR = "pdx-operator"
SYSTEM = "pdx-system"
SPEC: Body = {
    "model": {"name": "m"},
    "prefill": {"replicas": 1},
    "decode": {"replicas": 1},
}
# TLS connections are closed by the end of the process.
_WARNINGS = ("-W", "error", "-W", "ignore::ResourceWarning")
GRACE = 30.0
"""Seconds that Kubernetes gives a pod to end."""
_REQUESTS = "pdx_operator_api_requests_total{"
CHILDREN = 11
"""Of an object with SPEC."""
_PAGE = 20
LONG = 60.0
"""Seconds in which everything happens, on a busy machine too."""


def eventually(check: Callable[[], Any], within: float = LONG, what: str = "", every: float = 0.05) -> Any:
    """The first true value of `check`, which runs `every` so many seconds; AssertionError after `within` seconds."""
    end = time.monotonic() + within
    while True:
        value = check()
        if value:
            return value
        assert time.monotonic() < end, f"never: {what or check}: {value!r}"
        time.sleep(every)


def at_rest(read: Callable[[], Any], seconds: float = 4.0) -> Any:
    """The value of `read` once it has not changed for so many seconds; AssertionError if it never stops changing."""
    end, value, since = time.monotonic() + LONG, read(), time.monotonic()
    while time.monotonic() - since < seconds:
        time.sleep(0.2)
        if (found := read()) != value:
            assert time.monotonic() < end, f"never at rest: {found!r}"
            value, since = found, time.monotonic()
    return value


class Api:
    """Plain requests to the API server, as administrator or with another token."""

    def __init__(self, cluster: Cluster, token: str = "") -> None:
        self._url = cluster.url
        self._token = token or cluster.token
        self._tls = ssl.create_default_context(cafile=str(cluster.authority))

    def request(
        self, method: str, path: str, body: Body | bytes | None = None, content: str = "application/json"
    ) -> Body:
        """One request; raises urllib.error.HTTPError. What an answer nests too deeply is null."""
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": content, "User-Agent": "pdx-test"}
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=120, context=self._tls) as answer:
            found: Body = decode(answer.read())
        return found

    def get(self, kind: Kind, namespace: str, name: str) -> Body | None:
        """One object; None when there is none."""
        try:
            return self.request("GET", kind.path(namespace, name))
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise

    def items(self, kind: Kind, namespace: str | None, **query: str) -> list[Body]:
        """All objects of a kind. They are read in pages, because hundreds may have a megabyte each."""
        items: list[Body] = []
        page = {"limit": str(_PAGE), **query}
        while True:
            found = self.request("GET", f"{kind.path(namespace)}?{urlencode(page)}")
            items += found["items"]
            if not found["metadata"].get("continue"):
                return items
            page["continue"] = found["metadata"]["continue"]

    def create(self, kind: Kind, namespace: str, body: Body | bytes) -> Body:
        """Make an object."""
        return self.request("POST", kind.path(namespace), body)

    def patch(self, kind: Kind, namespace: str, name: str, body: Body, subresource: str = "") -> Body:
        """Merge into an object."""
        return self.request("PATCH", kind.path(namespace, name, subresource), body, "application/merge-patch+json")

    def delete(self, kind: Kind, namespace: str, name: str) -> None:
        """Delete an object in the background."""
        with contextlib.suppress(urllib.error.HTTPError):
            self.request("DELETE", kind.path(namespace, name), {"propagationPolicy": "Background"})

    def deploy(self, namespace: str, name: str = "m", spec: Body | None = None) -> Body:
        """Make a PDDeployment."""
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": name},
            "spec": copy.deepcopy(SPEC if spec is None else spec),
        }
        return self.create(PDDEPLOYMENT, namespace, body)

    def change(self, namespace: str, spec: Body, name: str = "m") -> Body:
        """Merge into the spec of a PDDeployment."""
        return self.patch(PDDEPLOYMENT, namespace, name, {"spec": spec})

    def status(self, namespace: str, name: str = "m") -> Body:
        """Its status."""
        status: Body = (self.get(PDDEPLOYMENT, namespace, name) or {}).get("status") or {}
        return status

    def condition(self, namespace: str, kind: str, name: str = "m") -> Body:
        """One of its conditions; empty when it is not there."""
        conditions: list[Body] = self.status(namespace, name).get("conditions") or []
        return next((condition for condition in conditions if condition["type"] == kind), {})

    def is_ready(self, namespace: str, name: str = "m") -> bool:
        """Whether its condition Ready is True for the current generation."""
        body = self.get(PDDEPLOYMENT, namespace, name) or {}
        ready = self.condition(namespace, "Ready", name)
        generation = (body.get("metadata") or {}).get("generation")
        return ready.get("status") == "True" and ready.get("observedGeneration") == generation

    def events(self, namespace: str) -> list[Body]:
        """Events on PDDeployments."""
        found = self.items(Kind("events.k8s.io/v1", "Event", "events"), namespace, limit="200")
        return [event for event in found if event["regarding"].get("kind") == KIND]

    def children(self, namespace: str, name: str = "m") -> dict[tuple[str, str], Body]:
        """Everything that carries its label, by kind and name."""
        return {
            (kind.name, body["metadata"]["name"]): body
            for kind in CHILD_KINDS
            for body in self.items(kind, namespace, labelSelector=f"{LABEL_DEPLOYMENT}={name}")
        }


def essence(children: Mapping[tuple[str, str], Body]) -> dict[tuple[str, str], object]:
    """What of children must not depend on how they came about."""
    return {key: _plain(body) for key, body in children.items()}


def _plain(body: Body) -> object:
    metadata = body["metadata"]
    kept = {name: value for name, value in body.items() if name not in ("metadata", "status")}
    owners = [(ref["kind"], ref["name"], ref.get("controller")) for ref in metadata.get("ownerReferences") or ()]
    annotations = dict(metadata.get("annotations") or {})
    # Counts template changes, and holds uids of the owner.
    for name in ("deployment.kubernetes.io/revision", "pdx.dev/applied"):
        annotations.pop(name, None)
    kept["spec"] = {k: v for k, v in (kept.get("spec") or {}).items() if k not in ("clusterIP", "clusterIPs")}
    for subject in kept.get("subjects") or ():
        subject.pop("namespace", None)
    text = json.dumps([kept, metadata.get("labels"), annotations, owners], sort_keys=True)
    return text.replace(metadata["namespace"], "NAMESPACE")


@dataclass
class Operator:
    """`python -m pdx_operator` in a process of its own."""

    process: "subprocess.Popen[bytes]"
    log: Path
    port: int

    @classmethod
    def start(
        cls, kubeconfig: Path, folder: Path, *flags: str, program: Sequence[str] = ("-m", "pdx_operator")
    ) -> Self:
        """Start it with these flags; it logs to a file in `folder`."""
        port = free_port()
        log = folder / f"operator-{port}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, *_WARNINGS, *program, "--health-port", str(port), "--verbose", *flags],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, "KUBECONFIG": str(kubeconfig)},
            )
        return cls(process, log, port)

    def wait_until_working(self, within: float = LONG) -> Self:
        """Return once it has read the cluster; AssertionError after `within` seconds."""
        working = "operator: watching"
        eventually(lambda: working in self.text() or self.process.poll() is not None, within, what="working")
        assert self.process.poll() is None, self.text()
        return self

    def text(self) -> str:
        """What it has logged."""
        return self.log.read_text()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()

    def end(self) -> float:
        """SIGTERM; the seconds it took to go."""
        began = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        return time.monotonic() - began

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of a GET to its health port; raises URLError when nobody listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def writes(self) -> float:
        """Requests that it has made to write anything: children, status, Events, deletions."""
        return sum(count for verb, count in self._requests() if verb != "GET")

    def object_writes(self) -> float:
        """The same without the renewals of its Lease, the only PUTs."""
        return sum(count for verb, count in self._requests() if verb not in ("GET", "PUT"))

    def _requests(self) -> list[tuple[str, float]]:
        """Verbs and counts of all requests so far, from one page."""
        lines = [line for line in self.get("/metrics")[1].splitlines() if line.startswith(_REQUESTS)]
        return [(line.partition('verb="')[2].partition('"')[0], float(line.rpartition(" ")[2])) for line in lines]

    def cpu_seconds(self) -> float:
        """Processor time it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Kubelets(threading.Thread):
    """Marks pods of a namespace as ready, as nodes do, except the pods that `holds` selects."""

    def __init__(
        self, api: Api, namespace: str, holds: Callable[[Body], bool] = lambda pod: False, address: str | None = None
    ) -> None:
        super().__init__(daemon=True)
        self._address = {"podIP": address, "podIPs": [{"ip": address}]} if address else {}
        self._api = api
        self._namespace = namespace
        self._over = threading.Event()
        self.holds = holds

    def run(self) -> None:
        """Until `end`; the API server may be away meanwhile."""
        while not self._over.wait(0.1):
            with contextlib.suppress(OSError, ValueError):
                for pod in self._api.items(POD, self._namespace):
                    self._care(pod)

    def _care(self, pod: Body) -> None:
        # Long ago, so that minReadySeconds are over.
        since, before = (time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - ago)) for ago in (60, 30))
        conditions = pod["status"].get("conditions") or ()
        ready = any(
            c["type"] == "Ready" and c["status"] == "True" and c["lastTransitionTime"] < before for c in conditions
        )
        if ready or self.holds(pod):
            return
        conditions = [{"type": t, "status": "True", "lastTransitionTime": since} for t in ("PodScheduled", "Ready")]
        status = {"status": {"phase": "Running", "conditions": conditions, **self._address}}
        self._api.patch(POD, self._namespace, pod["metadata"]["name"], status, "status")

    def end(self) -> None:
        """Stop."""
        self._over.set()
        self.join()


@contextlib.contextmanager
def kubelets(
    api: Api, namespace: str, holds: Callable[[Body], bool] = lambda pod: False, address: str | None = None
) -> Iterator[Kubelets]:
    """Kubelets for the length of a block; `address` is what their pods get."""
    thread = Kubelets(api, namespace, holds, address)
    thread.start()
    try:
        yield thread
    finally:
        thread.end()


class Sampled(threading.Thread):
    """All values that a check has for the length of a block, as `values`."""

    def __init__(self, check: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._check = check
        self._over = threading.Event()
        self.values: set[Any] = set()

    def run(self) -> None:
        """Until the block ends."""
        while not self._over.wait(0.02):
            self.values.add(self._check())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()
        self.values.add(self._check())


def install(cluster: Cluster) -> None:
    """The CRD; returns once it is served."""
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(_CRDS))
    api = Api(cluster)

    def served() -> bool:
        with contextlib.suppress(urllib.error.HTTPError):
            api.items(PDDEPLOYMENT, None)
            return True
        return False

    eventually(served, what="the CRD served")


def uninstall(cluster: Cluster) -> None:
    """Without the CRD, of which Helm takes none that it has not made; returns once it is gone."""
    cluster.kubectl("delete", "-f", str(_CRDS), "--ignore-not-found", "--wait")


def revoke(cluster: Cluster) -> None:
    """Without what `grant` has made: the chart's objects have these names, and Helm takes none that it has not made."""
    roles = (f"clusterrolebinding/{OPERATOR}", f"clusterrole/{OPERATOR}", f"clusterrole/{GATEWAY_ROLE}")
    names = (*roles, f"serviceaccount/{OPERATOR}")
    cluster.kubectl("delete", *names, "--namespace", SYSTEM, "--ignore-not-found", "--wait")


def grant(cluster: Cluster, folder: Path) -> Path:
    """The kubeconfig of a service account whose rights are those of `ACCESS`."""
    metadata = {"name": OPERATOR, "namespace": SYSTEM}
    rules = [_rule(resource, verbs) for resource, verbs in (*ACCESS.items(), *OWN_ACCESS.items())]
    rbac = "rbac.authorization.k8s.io"
    names = {"resourceNames": [GATEWAY_ROLE], "verbs": ["bind"]}
    rules.append({"apiGroups": [rbac], "resources": ["clusterroles", "roles"], **names})
    gateways = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]
    objects = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": {"name": OPERATOR}, "rules": rules},
        {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": {"name": GATEWAY_ROLE}, "rules": gateways},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": OPERATOR},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": OPERATOR},
            "subjects": [{"kind": "ServiceAccount", **metadata}],
        },
    ]
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    token = cluster.kubectl("create", "token", OPERATOR, "-n", SYSTEM, "--duration=24h").strip()
    config = json.loads(cluster.kubectl("config", "view", "--raw", "-o", "json"))
    config["users"][0]["user"] = {"token": token}
    path = folder / "operator.kubeconfig"
    path.write_text(json.dumps(config))
    return path


def _rule(resource: str, verbs: tuple[str, ...]) -> Body:
    name, _, subresource = resource.partition("/")
    plural, _, group = name.partition(".")
    spelt = f"{plural}/{subresource}" if subresource else plural
    return {"apiGroups": [group], "resources": [spelt], "verbs": list(verbs)}
