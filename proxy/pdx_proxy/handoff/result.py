"""The result of an attempt: an open answer."""

from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.engines.leg import Leg


class Handoff:
    """D's open answer. `prefill` is its P; None if D serves the request whole. Its owner must end the leg."""

    __slots__ = ("decode", "prefill")

    def __init__(self, decode: Leg, prefill: Endpoint | None = None) -> None:
        self.decode = decode
        self.prefill = prefill
