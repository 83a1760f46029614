"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler as processes of this machine.

They listen on one address: the loopback address, or a network namespace's if a node needs to reach them.
"""

import http.client
import json
import random
import socket
import ssl
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from pdx_cluster.control_plane import credentials as pki
from pdx_cluster.control_plane.credentials import Credentials
from pdx_cluster.errors import ClusterError
from pdx_cluster.system.processes import Supervisor, wait_until

LOOPBACK: Final = "127.0.0.1"
FIRST_PORT: Final = 10_000
LAST_PORT: Final = 29_999
"""Below the node ports (30000 to 32767) and below the kernel's ports for outgoing connections."""
AUDIT_POLICY: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "verbs": ["get", "list", "watch"]},
        # Who holds a Lease is in its body.
        {"level": "Request", "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}]},
        {"level": "Metadata"},
    ],
}
ISSUER: Final = "https://kubernetes.default.svc.cluster.local"


@dataclass(frozen=True, slots=True)
class Location:
    """The addresses of a control plane."""

    address: str
    services: str
    """CIDR of the Services' addresses."""
    first_service: str
    """Address of the Service `kubernetes`: the first of that range."""
    enter: tuple[str, ...] = ()
    """Command prefix that enters the network namespace; empty on the loopback address."""


ON_LOOPBACK: Final = Location(LOOPBACK, "10.96.0.0/16", "10.96.0.1")


@dataclass(frozen=True, slots=True)
class Ports:
    """The port of each process."""

    apiserver: int
    etcd: int
    etcd_peer: int
    controller_manager: int
    scheduler: int


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """A control plane that was prepared in `folder`; its processes may run or not."""

    folder: Path
    location: Location
    ports: Ports
    programs: dict[str, Path]
    supervisor: Supervisor

    @property
    def credentials(self) -> Credentials:
        """Keys, tokens, kubeconfigs."""
        return Credentials(self.folder / "credentials")

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.credentials.kubeconfig("admin")

    @property
    def url(self) -> str:
        """Base URL of the API server."""
        return f"https://{self.location.address}:{self.ports.apiserver}"

    @property
    def audit_log(self) -> Path:
        """A line of JSON for each write that the API server has answered, if `prepare` has turned that on."""
        return self.folder / "audit.log"

    def start(self) -> None:
        """Start all processes and wait until they are ready; raises ClusterError with the end of a log."""
        self._start_etcd()
        self.start_apiserver()
        self._start_controllers()
        wait = [("kube-controller-manager", self.ports.controller_manager), ("kube-scheduler", self.ports.scheduler)]
        for name, port in wait:
            self.supervisor.require(name, lambda port=port: self._answers(port, "/healthz"), 60)  # type: ignore[misc]

    def start_apiserver(self) -> None:
        """Start the API server and wait until it is ready."""
        self.supervisor.start("kube-apiserver", [*self.location.enter, *self._apiserver()])
        self.supervisor.require("kube-apiserver", self.is_ready, 90)

    def stop_apiserver(self, grace_seconds: float = 2.0) -> None:
        """Stop the API server; with a grace period of 0, kill it. With open watches, a stop takes up to a minute."""
        if process := self.supervisor.find("kube-apiserver"):
            self.supervisor.stop(process, grace_seconds)

    def restart_apiserver(self, down_seconds: float = 0.0) -> None:
        """Stop the API server, and start it again at the same address after `down_seconds`."""
        self.stop_apiserver()
        if down_seconds:
            wait_until(lambda: False, down_seconds)
        self.start_apiserver()

    def is_ready(self) -> bool:
        """Whether the API server's /readyz returns 200."""
        return self._answers(self.ports.apiserver, "/readyz")

    def get(self, path: str, timeout_seconds: float = 10.0) -> str:
        """Return the body of a GET to the API server as administrator, for example of `/metrics`; raises OSError."""
        status, body = self._get(self.ports.apiserver, path, timeout_seconds)
        if status != http.client.OK:
            raise OSError(f"GET {path}: {status} {body[:200]}")
        return body

    def _answers(self, port: int, path: str) -> bool:
        try:
            return self._get(port, path, 2.0)[0] == http.client.OK
        except (OSError, http.client.HTTPException):
            return False

    def _get(self, port: int, path: str, timeout_seconds: float) -> tuple[int, str]:
        context = ssl.create_default_context(cafile=str(self.credentials.authority))
        connection = http.client.HTTPSConnection(self.location.address, port, timeout=timeout_seconds, context=context)
        with closing(connection):
            connection.request("GET", path, headers={"Authorization": f"Bearer {self.credentials.token('admin')}"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")

    def _start_etcd(self) -> None:
        client, peer = f"http://{LOOPBACK}:{self.ports.etcd}", f"http://{LOOPBACK}:{self.ports.etcd_peer}"
        self.supervisor.start(
            "etcd",
            [
                *self.location.enter,
                self.programs["etcd"],
                "--name=pdx",
                f"--data-dir={self.folder / 'etcd'}",
                f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=pdx={peer}",
                "--unsafe-no-fsync",
                "--log-level=warn",
            ],
        )

    def _apiserver(self) -> list[str | Path]:
        files = self.credentials
        loopback = self.location.address == LOOPBACK
        return [
            self.programs["kube-apiserver"],
            f"--etcd-servers=http://{LOOPBACK}:{self.ports.etcd}",
            f"--bind-address={self.location.address}",
            f"--secure-port={self.ports.apiserver}",
            f"--advertise-address={self.location.address}",
            # The endpoints of the Service `kubernetes` may not be loopback addresses.
            *(["--endpoint-reconciler-type=none"] if loopback else []),
            f"--service-cluster-ip-range={self.location.services}",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged=true",
            f"--token-auth-file={files.tokens}",
            f"--client-ca-file={files.authority}",
            f"--tls-cert-file={files.certificate('apiserver')}",
            f"--tls-private-key-file={files.key('apiserver')}",
            f"--kubelet-client-certificate={files.certificate('kubelet-client')}",
            f"--kubelet-client-key={files.key('kubelet-client')}",
            f"--kubelet-certificate-authority={files.authority}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--service-account-issuer={ISSUER}",
            f"--service-account-key-file={files.key('accounts')}",
            f"--service-account-signing-key-file={files.key('accounts')}",
            *(self._audit() if self._audit_policy.exists() else ()),
        ]

    @property
    def _audit_policy(self) -> Path:
        return self.folder / "audit-policy.json"

    def _audit(self) -> list[str]:
        # In one file: a second one would begin after 100 MB.
        return [
            f"--audit-policy-file={self._audit_policy}",
            f"--audit-log-path={self.audit_log}",
            "--audit-log-maxsize=10000",
        ]

    def _start_controllers(self) -> None:
        files = self.credentials
        accounts = [
            f"--service-account-private-key-file={files.key('accounts')}",
            f"--root-ca-file={files.authority}",
            "--use-service-account-credentials=true",
            # With the default of 5, creating 10,000 pods takes many minutes.
            "--concurrent-deployment-syncs=20",
            "--concurrent-replicaset-syncs=20",
            "--concurrent-service-endpoint-syncs=20",
        ]
        self._start_controller("controller-manager", self.ports.controller_manager, accounts)
        self._start_controller("scheduler", self.ports.scheduler, [])

    def _start_controller(self, name: str, port: int, more: list[str]) -> None:
        files = self.credentials
        roles = ("", "authentication-", "authorization-")
        command: list[str | Path] = [
            *self.location.enter,
            self.programs[f"kube-{name}"],
            *(f"--{role}kubeconfig={files.kubeconfig(name)}" for role in roles),
            f"--bind-address={self.location.address}",
            f"--secure-port={port}",
            f"--tls-cert-file={files.certificate('apiserver')}",
            f"--tls-private-key-file={files.key('apiserver')}",
            "--leader-elect=false",
            # With the default of 20 requests per second, creating 2,000 pods takes minutes.
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
            *more,
        ]
        self.supervisor.start(f"kube-{name}", command)


def prepare(
    folder: Path, location: Location, programs: dict[str, Path], supervisor: Supervisor, *, audited: bool = False
) -> ControlPlane:
    """Create keys and choose ports for a new control plane in `folder`; start nothing."""
    ports = Ports(*free_ports(len(Ports.__dataclass_fields__)))
    plane = ControlPlane(folder, location, ports, programs, supervisor)
    pki.create(folder / "credentials", plane.url, (location.address, location.first_service))
    record = {
        "place": asdict(location),
        "ports": asdict(ports),
        "programs": {k: str(v) for k, v in programs.items()},
    }
    (folder / "control-plane.json").write_text(json.dumps(record, indent=2))
    if audited:
        (folder / "audit-policy.json").write_text(json.dumps(AUDIT_POLICY))
    return plane


def load(folder: Path, supervisor: Supervisor) -> ControlPlane | None:
    """Return the control plane that `prepare` recorded; None if there is none."""
    try:
        record = json.loads((folder / "control-plane.json").read_text())
    except (OSError, ValueError):
        return None
    location = Location(**{**record["place"], "enter": tuple(record["place"]["enter"])})
    programs = {name: Path(path) for name, path in record["programs"].items()}
    return ControlPlane(folder, location, Ports(**record["ports"]), programs, supervisor)


def free_ports(count: int) -> list[int]:
    """Return different free loopback ports."""
    found: list[int] = []
    for port in random.sample(range(FIRST_PORT, LAST_PORT + 1), 1000):
        with closing(socket.socket()) as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise ClusterError(f"No {count} free ports between {FIRST_PORT} and {LAST_PORT} on {LOOPBACK}.")
