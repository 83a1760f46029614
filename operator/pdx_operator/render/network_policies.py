"""NetworkPolicies: which pods reach the engines, their side services and the gateway."""

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
    services_policy_name,
)
from pdx_api.render.engines import side_services
from pdx_api.spec.selectors import ScrapeSource
from pdx_api.spec.types import Spec
from pdx_operator.render.objects import Manifest, Owner, gateway_labels, metadata


def network_policies(spec: Spec, owner: Owner, operator_namespace: str = "") -> tuple[Manifest, ...]:
    """One policy for the engines, one for the gateway, and one for the side services if there are any.

    Without a gateway, engines still admit pods with the gateway's labels in their namespace: a router of the user's.
    The kubelet's probes always pass: Kubernetes allows traffic from a pod's own node.
    """
    scrapers = [_scraper(source) for source in spec.observability.scrape_from]
    return (
        _engines(spec, owner, scrapers),
        *([_gateway(owner, scrapers, operator_namespace)] if spec.gateway.enabled else ()),
        *(() if all(s.is_sidecar for s in side_services(spec)) else [_services(spec, owner, scrapers)]),
    )


def _engines(spec: Spec, owner: Owner, scrapers: list[Manifest]) -> Manifest:
    gateway, engines = {"podSelector": {"matchLabels": gateway_labels(owner)}}, _engine_pods(owner)
    return _policy(
        owner,
        policy_name(owner.name),
        engines,
        _ingress([gateway, *scrapers], ENGINE_PORT),
        *(_ingress([gateway], port) for port in identity_ports()),
        *_metrics_ingress(spec, scrapers, sidecars=True),
        # The transfer chooses its ports, so all ports are open between engines. In every mode: while the mode
        # changes, engines of the old revision still pair.
        {"from": [{"podSelector": engines}]},
    )


def _gateway(owner: Owner, scrapers: list[Manifest], operator_namespace: str) -> Manifest:
    readers = [*scrapers, *([_operator(operator_namespace)] if operator_namespace else [])]
    return _policy(
        owner,
        gateway_name(owner.name),
        {"matchLabels": gateway_labels(owner)},
        {"ports": [{"protocol": "TCP", "port": GATEWAY_PORT}]},
        *([_ingress(readers, ADMIN_PORT)] if readers else []),
    )


def _services(spec: Spec, owner: Owner, scrapers: list[Manifest]) -> Manifest:
    services = {
        "matchLabels": {LABEL_DEPLOYMENT: owner.name},
        "matchExpressions": [{"key": LABEL_SERVICE, "operator": "Exists"}],
    }
    return _policy(
        owner,
        services_policy_name(owner.name),
        services,
        {"from": [{"podSelector": _engine_pods(owner)}]},
        *_metrics_ingress(spec, scrapers, sidecars=False),
    )


def _engine_pods(owner: Owner) -> Manifest:
    return {
        "matchLabels": {LABEL_DEPLOYMENT: owner.name},
        "matchExpressions": [{"key": LABEL_ROLE, "operator": "In", "values": [str(role) for role in Role]}],
    }


def _metrics_ingress(spec: Spec, scrapers: list[Manifest], *, sidecars: bool) -> list[Manifest]:
    """Scrapers reach the metrics ports of the side services; an empty list of peers would admit every pod."""
    services = [service for service in side_services(spec) if service.is_sidecar is sidecars]
    ports = [service.ports[PORT_METRICS] for service in services if PORT_METRICS in service.ports]
    return [_ingress(scrapers, port) for port in ports] if scrapers else []


def _policy(owner: Owner, name: str, pods: Manifest, *ingress: Manifest) -> Manifest:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(owner, name),
        "spec": {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": list(ingress)},
    }


def _ingress(peers: list[Manifest], port: int) -> Manifest:
    return {"from": peers, "ports": [{"protocol": "TCP", "port": port}]}


def _scraper(source: ScrapeSource) -> Manifest:
    namespaces, pods = source.namespace_selector, source.pod_selector
    selected = {} if namespaces.is_empty else {"namespaceSelector": namespaces.manifest()}
    return {**selected, "podSelector": pods.manifest()}


def _operator(namespace: str) -> Manifest:
    """The operator's pods, which poll gateways for the results of their transfer probes."""
    namespaces = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    return {**namespaces, "podSelector": {"matchLabels": dict(OPERATOR_LABELS)}}
