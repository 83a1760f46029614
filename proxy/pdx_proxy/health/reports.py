"""What the scraper of metrics has read: the reports of engines, and those of one round together. Pure."""

from dataclasses import dataclass

from pdx_api.vllm_metrics import EngineMetrics
from pdx_proxy.endpoints.endpoint import Endpoint, Start
from pdx_proxy.endpoints.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Report:
    """The metrics of one endpoint at one moment."""

    endpoint: Endpoint
    metrics: EngineMetrics
    at: float
    """In seconds of the gateway's clock."""


@dataclass(frozen=True, slots=True)
class Round:
    """What one reading of all warm engines has shown."""

    at: float
    """When it ended, in seconds of the gateway's clock."""
    snapshot: Snapshot
    """The endpoints at its begin."""
    new: tuple[Report, ...] = ()
    """The reports of the engines that have answered."""
    latest: tuple[Report, ...] = ()
    """The last report of each warm endpoint, unless it is too old."""
    late: tuple[tuple[Endpoint, ...], ...] = ()
    """The engines that did not answer in time, each with its ranks."""
    is_sample: bool = False
    """Whether it is compared with the round of about ten seconds ago."""

    @property
    def warm(self) -> set[Start]:
        """The warm endpoints."""
        return {endpoint.start for endpoint in self.snapshot.everything if endpoint.warm}
