"""The operator's configuration."""

from dataclasses import dataclass, field

from pdx_api.names import LogFormat
from pdx_operator.controller.intervals import Intervals
from pdx_operator.render.gateway import Installation


@dataclass(frozen=True, slots=True)
class Settings(Installation):
    """The configuration of one operator: its installation, and how it works."""

    max_gateway_upgrades: int = 4
    """Objects whose gateways are replaced at the same time after an upgrade of the operator."""
    namespaces: tuple[str, ...] = ()
    """Namespaces whose objects it reconciles; empty: all."""
    lease_name: str = ""
    """The Lease of this installation, in the operator's own namespace."""
    lease_seconds: int = 15
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

    @property
    def operator_name(self) -> str:
        """NAMESPACE/NAME of the Lease; empty without one: outside a pod the operator works at once."""
        return f"{self.operator_namespace}/{self.lease_name}" if self.operator_namespace and self.lease_name else ""
