"""Where traces go: an OTLP receiver over HTTP, and the names under which engines and gateway appear there. Pure.

OTLP over HTTP, not gRPC: one address then serves both. vLLM sends gRPC without TLS only (vLLM 0.32 `tracing/otel.py`),
and a gRPC library in the gateway would have threads and sockets beside its event loop.
"""

import re
from typing import Final

from pdx_api.rule import Rule

TRACES_PATH: Final = "/v1/traces"
GATEWAY_SERVICE: Final = "pdx-gateway"
"""The gateway's `service.name`. An engine's is `pdx-` and its role."""
TRACES_FLAG: Final = "--otlp-traces-endpoint"
"""vLLM's flag."""

_PATTERN: Final = (
    r"^https?://([A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?|\[[0-9a-fA-F:.]+\])"
    r"(:[1-9][0-9]{0,4})?(/[-._~%A-Za-z0-9/]*)?$"
)
_GRPC: Final = r":4317(/.*)?$"
ENDPOINT_RULES: Final = (
    Rule(
        f"self.matches(r'{_PATTERN}')",
        "write the URL of an OTLP receiver over HTTP, for example http://collector.observability:4318",
        lambda url: re.fullmatch(_PATTERN, url) is not None,
    ),
    Rule(
        f"!self.matches(r'{_GRPC}')",
        "4317 is the port of OTLP over gRPC; write the receiver's port for OTLP over HTTP, usually 4318",
        lambda url: re.search(_GRPC, url) is None,
    ),
)


def traces_url(endpoint: str) -> str:
    """The URL to which spans are posted. An endpoint without a path gets OTLP's path, as in OpenTelemetry's SDKs."""
    scheme, _, rest = endpoint.partition("://")
    host, _, path = rest.partition("/")
    return endpoint if path else f"{scheme}://{host}{TRACES_PATH}"


def engine_variables(role: str) -> dict[str, str]:
    """The environment with which vLLM sends its spans to `TRACES_FLAG`.

    vLLM writes a span for every request, also for one without a sampled parent. The gateway decides which requests are
    sampled, so engines follow it and sample nothing by themselves.
    """
    return {
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_SERVICE_NAME": f"pdx-{role}",
        "OTEL_TRACES_SAMPLER": "parentbased_always_off",
    }
