"""The operator's configuration."""

from dataclasses import dataclass, field

from pdx_api.names import LogFormat
from pdx_operator.controller.intervals import Intervals


@dataclass(frozen=True, slots=True)
class Settings:
    """The configuration of one operator."""

    gateway_image: str
    """Image of gateways whose spec names none."""
    operator_namespace: str = ""
    """Namespace of the operator's own pod: gateways accept its requests to their admin port. Empty: not in a pod."""
    namespaces: tuple[str, ...] = ()
    """Namespaces whose objects it reconciles; empty: all."""
    health_port: int = 8081
    """Port of /healthz, /readyz and /metrics; 0: none."""
    log_format: LogFormat = LogFormat.TEXT
    verbose: bool = False
    """Log plans and requests too, not only changes."""
    max_concurrent_reconciles: int = 16
    """Objects that are reconciled at the same time; bounds memory."""
    requests: int = 32
    """Concurrent requests to the API server, not counting watches."""
    intervals: Intervals = field(default_factory=Intervals)
