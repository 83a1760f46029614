"""The configuration files of a node's programs, as values. Pure."""

from pathlib import Path
from typing import Any, Final

from pdx_cluster.control_plane.credentials import Credentials
from pdx_cluster.node.network import Addresses

SOCKET: Final = "/run/containerd/containerd.sock"
MACHINE_FOLDERS: Final = ("/var/lib/cni", "/var/log/containers")
"""Paths that are built into programs; the node mounts its own tmpfs over them."""
DOMAIN: Final = "cluster.local"


def containerd(folder: Path, plugins: Path, pause_image: str) -> str:
    """Return containerd's configuration."""
    return f"""\
version = 2
root = "{folder}/containerd"
state = "/run/containerd/state"
# It creates a folder in /opt.
disabled_plugins = ["io.containerd.internal.v1.opt"]

[grpc]
  address = "{SOCKET}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause_image}"
  # Without CAP_SYS_RESOURCE, containerd cannot lower the score, and no sandbox starts.
  restrict_oom_score_adj = true

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{folder}/cni"

  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""


def cni(addresses: Addresses, folder: Path) -> dict[str, Any]:
    """Return the pods' network: a link from each pod to the node, which routes."""
    # A bridge delivers a Service's answer between two pods without the node's address translation.
    link = {
        "type": "ptp",
        "ipMasq": False,
        "ipam": {
            "type": "host-local",
            "dataDir": f"{folder}/addresses",
            "ranges": [[{"subnet": str(addresses.pods)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    return {
        "cniVersion": "0.4.0",
        "name": "pdx",
        "plugins": [link, {"type": "portmap", "capabilities": {"portMappings": True}}],
    }


def kubelet(folder: Path, addresses: Addresses, credentials: Credentials) -> dict[str, Any]:
    """Return kubelet's configuration."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": addresses.node,
        "healthzBindAddress": "127.0.0.1",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(credentials.authority)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(credentials.certificate("kubelet")),
        "tlsPrivateKeyFile": str(credentials.key("kubelet")),
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{addresses.device}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "localStorageCapacityIsolation": False,
        "clusterDNS": [addresses.dns],
        "clusterDomain": DOMAIN,
        "resolvConf": f"{folder}/resolv.conf",
        "podLogsDir": f"{folder}/pod-logs",
        "volumePluginDir": f"{folder}/volume-plugins",
        # Imported images cannot be pulled again, and a developer's disk is often nearly full.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
    }


def proxy(addresses: Addresses, name: str, kubeconfig: Path) -> dict[str, Any]:
    """Return kube-proxy's configuration."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "bindAddress": addresses.node,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "clusterCIDR": str(addresses.pods),
        "hostnameOverride": name,
        "mode": "iptables",
        # Limits of connection tracking apply to the whole machine; zero does not change them.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }


def corefile(addresses: Addresses, kubeconfig: Path) -> str:
    """Return CoreDNS' configuration: it resolves only names of the cluster."""
    return f"""\
.:53 {{
    bind {addresses.node}
    errors
    kubernetes {DOMAIN} in-addr.arpa {{
        kubeconfig {kubeconfig}
        ttl 5
    }}
    cache 5
}}
"""


def dns_objects(addresses: Addresses) -> dict[str, Any]:
    """Return CoreDNS' rights, and a Service whose endpoint is CoreDNS on the node."""
    rights = {"apiGroups": ["", "discovery.k8s.io"], "resources": _DNS_READS, "verbs": ["list", "watch"]}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:coredns"}
    ports = [{"name": f"dns-{protocol.lower()}", "port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]
    metadata = {"name": "kube-dns", "namespace": "kube-system"}
    items = [
        _object("rbac.authorization.k8s.io/v1", "ClusterRole", {"name": "system:coredns"}, rules=[rights]),
        _object(
            "rbac.authorization.k8s.io/v1",
            "ClusterRoleBinding",
            {"name": "system:coredns"},
            roleRef=role,
            subjects=[{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:coredns"}],
        ),
        _object("v1", "Service", metadata, spec={"clusterIP": addresses.dns, "ports": ports}),
        _object(
            "discovery.k8s.io/v1",
            "EndpointSlice",
            metadata | {"labels": {"kubernetes.io/service-name": "kube-dns"}},
            addressType="IPv4",
            endpoints=[{"addresses": [addresses.node]}],
            ports=ports,
        ),
    ]
    return _object("v1", "List", {}, items=items)


_DNS_READS: Final = ["endpointslices", "namespaces", "pods", "services"]


def _object(api_version: str, kind: str, metadata: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}
