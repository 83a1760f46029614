"""Who may do what: the gateway's rights in the cluster, who reaches whom, and how many pods may be taken away."""

from typing import Final

from pdx_api.connectors import identity_ports
from pdx_api.names import (
    ADMIN_PORT,
    ENGINE_PORT,
    GATEWAY_PORT,
    LABEL_DEPLOYMENT,
    LABEL_ROLE,
    LABEL_SERVICE,
    OPERATOR_LABELS,
    PORT_METRICS,
    Role,
    gateway_name,
    policy_name,
    pool_name,
    services_policy_name,
)
from pdx_api.render.engines import side_services
from pdx_api.spec.types import Disruption, ScrapeSource, Spec
from pdx_operator.render.objects import Manifest, Owner, gateway_labels, metadata

_RBAC: Final = "rbac.authorization.k8s.io"


def gateway_rights(owner: Owner) -> tuple[Manifest, ...]:
    """ServiceAccount, Role and RoleBinding of the gateway: it reads the pods of its namespace, and no more."""
    name, labels = gateway_name(owner.name), gateway_labels(owner)
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(owner, name, labels),
        # Only the gateway's own pods ask for the token.
        "automountServiceAccountToken": False,
    }
    role = {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "Role",
        "metadata": metadata(owner, name, labels),
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}],
    }
    binding = {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": metadata(owner, name, labels),
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": owner.namespace}],
    }
    return account, role, binding


def network_policies(spec: Spec, owner: Owner, operator_namespace: str = "") -> tuple[Manifest, ...]:
    """Who reaches the engines and their side services, and who the gateway's admin port.

    The kubelet's probes always pass: a pod's own node is allowed by Kubernetes.
    """
    engines = {
        "matchLabels": {LABEL_DEPLOYMENT: owner.name},
        "matchExpressions": [{"key": LABEL_ROLE, "operator": "In", "values": [str(role) for role in Role]}],
    }
    gateway = {"matchLabels": gateway_labels(owner)}
    services = {
        "matchLabels": {LABEL_DEPLOYMENT: owner.name},
        "matchExpressions": [{"key": LABEL_SERVICE, "operator": "Exists"}],
    }
    scrapers = [_peer(source) for source in spec.observability.scrape_from]
    lookers = [*scrapers, *([_operator(operator_namespace)] if operator_namespace else [])]
    return (
        _policy(
            owner,
            policy_name(owner.name),
            engines,
            _ingress([{"podSelector": gateway}, *scrapers], ENGINE_PORT),
            *(_ingress([{"podSelector": gateway}], port) for port in identity_ports()),
            *(_ingress(scrapers, port) for port in _metrics_ports(spec, beside_engine=True) if scrapers),
            # KV goes over ports that the transfer chooses, so between engines all are open. In every mode: while the
            # mode is switched, engines of the older revision still pair.
            {"from": [{"podSelector": engines}]},
        ),
        _policy(
            owner,
            gateway_name(owner.name),
            gateway,
            {"ports": [{"protocol": "TCP", "port": GATEWAY_PORT}]},
            *([_ingress(lookers, ADMIN_PORT)] if lookers else []),
        ),
        *(
            [
                _policy(
                    owner,
                    services_policy_name(owner.name),
                    services,
                    {"from": [{"podSelector": engines}]},
                    *(_ingress(scrapers, port) for port in _metrics_ports(spec, beside_engine=False) if scrapers),
                )
            ]
            if any(not service.is_sidecar for service in side_services(spec))
            else []
        ),
    )


def disruption_budgets(spec: Spec, owner: Owner) -> tuple[Manifest, ...]:
    """How many pods may be evicted at a time, of the gateway and of each role in all its revisions."""
    roles = {role: pool.disruption for role, pool in spec.pools().items()}
    return (
        *(
            _budget(
                owner, pool_name(owner.name, role), {LABEL_DEPLOYMENT: owner.name, LABEL_ROLE: str(role)}, disruption
            )
            for role, disruption in roles.items()
        ),
        _budget(owner, gateway_name(owner.name), gateway_labels(owner), spec.gateway.disruption),
    )


def _metrics_ports(spec: Spec, *, beside_engine: bool) -> list[int]:
    services = [service for service in side_services(spec) if service.is_sidecar is beside_engine]
    return [service.ports[PORT_METRICS] for service in services if PORT_METRICS in service.ports]


def _policy(owner: Owner, name: str, pods: Manifest, *ingress: Manifest) -> Manifest:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(owner, name),
        "spec": {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": list(ingress)},
    }


def _ingress(peers: list[Manifest], port: int) -> Manifest:
    return {"from": peers, "ports": [{"protocol": "TCP", "port": port}]}


def _peer(source: ScrapeSource) -> Manifest:
    namespaces = {"namespaceSelector": {"matchLabels": source.namespace_labels}} if source.namespace_labels else {}
    return {**namespaces, "podSelector": {"matchLabels": source.pod_labels} if source.pod_labels else {}}


def _operator(namespace: str) -> Manifest:
    """The operator's pods, which ask gateways whether KV travels."""
    place = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    return {**place, "podSelector": {"matchLabels": dict(OPERATOR_LABELS)}}


def _budget(owner: Owner, name: str, labels: dict[str, str], disruption: Disruption) -> Manifest:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(owner, name, labels),
        "spec": {
            "maxUnavailable": disruption.max_unavailable,
            "selector": {"matchLabels": labels},
            # A pod that is not ready serves nobody, so it holds up no drain.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
