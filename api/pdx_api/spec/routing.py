"""How the gateway treats requests: `spec.routing`, and most of `spec.gateway`."""

from typing import Annotated, Any, ClassVar, Final

from pydantic import Field, StringConstraints

from pdx_api.rule import Rule, matching
from pdx_api.rules.routing_rules import DEADLINES_RULES, RETRIES_RULES, ROUTING_RULES
from pdx_api.settings import gateway
from pdx_api.spec.fields import ObjectName, Part, SecretKey, Text, without_default


class Deadlines(Part, gateway.Deadlines):
    """The deadlines of a request."""

    rules: ClassVar[tuple[Rule, ...]] = DEADLINES_RULES


class Retries(Part, gateway.Retries):
    """How often a request is retried. After the first event of its answer it is not."""

    rules: ClassVar[tuple[Rule, ...]] = RETRIES_RULES


class Queue(Part, gateway.Queue):
    """The requests that one gateway accepts at a time. Further ones are shed: 429 or 503 with Retry-After."""


class OutlierDetection(Part, gateway.OutlierDetection):
    """When a failing engine is ejected. A probe brings it back. The last engine of a role is never ejected."""


class Routing(Part, gateway.SlowStart, gateway.PrefillFailures, gateway.Choosing):
    """How the gateway chooses engines, and what it does when one fails or all are busy. Only a change of
    deadlines.handoffSeconds replaces engines; every other change replaces gateways."""

    rules: ClassVar[tuple[Rule, ...]] = ROUTING_RULES

    retries: Retries = Field(default=Retries(), description="How often the gateway retries a request.")
    deadlines: Deadlines = Field(default=Deadlines(), description="The deadlines of a request.")
    queue: Queue = Field(default=Queue(), description="The requests that one gateway accepts at a time.")
    outlier_detection: OutlierDetection = Field(
        default=OutlierDetection(),
        description="When the gateway ejects a failing engine.",
        json_schema_extra=without_default,
    )


class GatewayLimits(Part, gateway.ClientLimits):
    """The limits for clients of the gateway."""


class GatewayLogs(Part, gateway.Logs):
    """The gateway's log on stderr: one line for each request that failed or was slow. No line contains any part of a
    prompt, a key or a body."""


class GatewayCORS(Part, gateway.CORS):
    """Requests of browsers from pages of other origins (CORS)."""


class ClientKeys(Part):
    """A Secret in the namespace of the object with the API keys of the clients."""

    name: ObjectName = Field(description="Name of the Secret.")
    key: SecretKey = Field(
        default="keys",
        description="Key of the value in the Secret. Each line of the value is `sha256:HEX NAME`: the hash of an API "
        "key, and the key's owner.",
    )


class GatewayAuth(Part):
    """The clients that may use the gateway."""

    secret_ref: ClientKeys = Field(
        description="The API keys. A client must send one of them as `Authorization: Bearer KEY`; otherwise it gets "
        "401. The gateway reads a change within two minutes. Not for `pdx up`."
    )


class EngineKey(Part):
    """A Secret in the namespace of the object with one API key."""

    name: ObjectName = Field(description="Name of the Secret.")
    key: SecretKey = Field(default="api-key", description="Key of the value in the Secret.")


class CertificateSecret(Part):
    """A Secret of type kubernetes.io/tls in the namespace of the object."""

    name: ObjectName = Field(description="Name of the Secret, with tls.crt and tls.key.")


class GatewayTLS(Part):
    """TLS on the gateway's serving port."""

    secret_ref: CertificateSecret = Field(
        description="The certificate and its key. When they change, the gateway reads them again and closes no "
        "connection."
    )


_HOSTNAME: Final = r"^([*][.])?[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
Hostname = Annotated[
    str,
    StringConstraints(max_length=253),
    matching(_HOSTNAME, "write a host name in lower case, for example llm.example.com or *.example.com"),
]


class ParentReference(Part):
    """A Gateway, or another parent of an HTTPRoute, as in the Gateway API."""

    group: Text | None = Field(default=None, description="API group. Default: gateway.networking.k8s.io.")
    kind: Text | None = Field(default=None, description="Kind. Default: Gateway.")
    namespace: ObjectName | None = Field(default=None, description="Namespace. Default: the object's.")
    name: ObjectName = Field(description="Name.")
    section_name: Text | None = Field(default=None, description="Name of a listener. Default: all listeners.")
    port: Annotated[int, Field(strict=True, ge=1, le=65_535)] | None = Field(
        default=None, description="Port of a listener. Default: all ports."
    )

    def manifest(self) -> dict[str, Any]:
        """The reference as in an HTTPRoute."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class GatewayHTTPRoute(Part):
    """An HTTPRoute to the gateway."""

    parent_refs: Annotated[list[ParentReference], Field(min_length=1, max_length=16)] = Field(
        description="The Gateways to which the route is attached."
    )
    hostnames: Annotated[list[Hostname], Field(max_length=16)] = Field(
        default=[], description="Host names of requests. The first one is the host of status.url. Default: all."
    )


class SLO(Part, gateway.SLO):
    """The service level objectives of a request: the targets of routing and of measurements. No request ends because
    it misses them."""
