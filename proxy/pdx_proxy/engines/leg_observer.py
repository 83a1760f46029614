"""What a leg reports about its endpoint."""

from pdx_proxy.balancing.prefill.backlog import Reservation
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.http.upstream.failures import EngineUnready


class LegObserver:
    """Receives legs' reports about their endpoints. A base class: mypyc calls its methods faster than a Protocol's."""

    __slots__ = ()

    def succeeded(self, endpoint: Endpoint) -> None:
        """The endpoint has answered 200."""
        raise NotImplementedError

    def completed(self, endpoint: Endpoint) -> None:
        """The endpoint has sent a whole answer."""
        raise NotImplementedError

    def failed(self, endpoint: Endpoint, detail: str) -> None:
        """The endpoint's answer reports a failure of the engine."""
        raise NotImplementedError

    def busy(self, endpoint: Endpoint, seconds: float) -> None:
        """The endpoint accepts no request for so long, by its own answer."""
        raise NotImplementedError

    def unready(self, endpoint: Endpoint, failure: EngineUnready) -> None:
        """The endpoint accepts no request at all, by its own answer."""
        raise NotImplementedError

    def counted(self, reservation: Reservation) -> None:
        """An endpoint has answered 200, so its request counts for the policies."""
        raise NotImplementedError
