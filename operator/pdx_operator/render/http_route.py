"""The HTTPRoute of the Gateway API that leads to the gateway's Service, and the gateway's URL."""

from collections.abc import Iterator

from pdx_api.kube.kinds import HTTP_ROUTE
from pdx_api.names import gateway_name
from pdx_api.spec.types import Spec
from pdx_operator.render.gateway import service_port
from pdx_operator.render.objects import Manifest, Owner, gateway_labels, metadata

_PLAIN_PORT = 80


def http_routes(spec: Spec, owner: Owner) -> Iterator[Manifest]:
    """The route, if the spec describes one. Without a time-out: the gateway has its own, and answers are long."""
    route = spec.gateway.http_route
    if route is None:
        return
    backend = {"name": gateway_name(owner.name), "port": service_port(spec)}
    yield {
        "apiVersion": HTTP_ROUTE.api_version,
        "kind": HTTP_ROUTE.name,
        "metadata": metadata(owner, gateway_name(owner.name), gateway_labels(owner)),
        "spec": {
            "parentRefs": [each.manifest() for each in route.parent_refs],
            **({"hostnames": route.hostnames} if route.hostnames else {}),
            "rules": [{"backendRefs": [backend], "timeouts": {"request": "0s"}}],
        },
    }


def gateway_url(spec: Spec, name: str, namespace: str) -> str | None:
    """Where clients reach the gateway: the route's first host name, or the Service in the cluster."""
    if not spec.gateway.enabled:
        return None
    route = spec.gateway.http_route
    host = next((each for each in route.hostnames if not each.startswith("*")), "") if route else ""
    if route is not None and host:
        # A listener's port is the Gateway's; only a reference to port 80 shows that it has no TLS.
        plain = all(each.port == _PLAIN_PORT for each in route.parent_refs)
        return f"{'http' if plain else 'https'}://{host}"
    scheme = "http" if spec.gateway.tls is None else "https"
    return f"{scheme}://{gateway_name(name)}.{namespace}.svc"
