"""Reports of legs, passed on to the load and to the outlier detector."""

from pdx_proxy.balancing.load import Load
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.engines.leg import LegObserver
from pdx_proxy.engines.outlier_detection import OutlierDetector


class EndpointObserver(LegObserver):
    """Counts legs in flight and consecutive failures of one worker."""

    __slots__ = ("_load", "_outliers")

    def __init__(self, load: Load, outliers: OutlierDetector) -> None:
        self._load = load
        self._outliers = outliers

    def acquire(self, endpoint: Endpoint) -> None:
        self._load.acquire(endpoint)

    def release(self, endpoint: Endpoint) -> None:
        self._load.release(endpoint)

    def succeeded(self, endpoint: Endpoint) -> None:
        if self._outliers.counts:
            self._outliers.succeeded(endpoint)

    def failed(self, endpoint: Endpoint, detail: str) -> None:
        self._outliers.failed(endpoint, detail)
