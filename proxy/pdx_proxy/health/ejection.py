"""The ejection policy: what follows from the report that an endpoint is suspect. Pure.

Evidence about an engine ejects it, whatever the others do: it lost or refused a connection, it answered no health
check, or its running requests made no progress. Inference from requests (5xx, failed hand-offs) may be wrong, and may
be wrong about all engines at once.

Invariant: inference leaves at most half of a role ejected by inference, and never ejects the last warm engine of a
role. (Envoy's outlier detection: max ejection percent.)
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from pdx_api.names import Role
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.endpoints.events import INFERENCE, Cause, Suspect

MAX_EJECTED_SHARE: Final = 0.5
"""Share of a role that may be ejected by inference at once."""
FIRST_PAUSE: Final = 0.2
"""Seconds before the first warm-up after an ejection by inference. It doubles with each one that follows soon."""
_STEADY_SECONDS: Final = 60.0
"""An endpoint that was warm for longer than this starts again with the first pause."""


@dataclass(frozen=True, slots=True)
class Ejection:
    """A decision about a suspect endpoint."""

    cause: Cause
    """The label under which it is counted."""
    endpoint: Endpoint
    """The endpoint in its new state; unchanged if it is not ejected."""
    pause: float = 0.0
    """Seconds to wait before it is warmed up."""


def decide(endpoint: Endpoint, suspect: Suspect, everything: Iterable[Endpoint], now: float) -> Ejection:
    """Eject the endpoint, unless that would be inference and too many of its role would be ejected.

    `everything` contains all endpoints. An endpoint that is ejected by inference answers, so it is warmed up after a
    pause.
    """
    inference = suspect.cause in INFERENCE
    if inference and not _may_infer(endpoint, everything):
        return Ejection(Cause.OVERRIDDEN, endpoint)
    before = 0 if now - endpoint.warm_since > _STEADY_SECONDS else endpoint.ejections
    ejected = replace(
        endpoint,
        identity=None,
        reason=suspect.reason,
        ejections=before + inference,
        ejected_by=suspect.cause,
        warm_up_state=State.SUSPECT,
    )
    return Ejection(suspect.cause, ejected, FIRST_PAUSE * 2**before if inference else 0.0)


def _may_infer(endpoint: Endpoint, everything: Iterable[Endpoint]) -> bool:
    peers = [e for e in everything if _substitutes(e, endpoint)]
    warm = sum(e.warm and e.name != endpoint.name for e in peers)
    ejected = sum(e.ejected_by_inference for e in peers)
    return warm > 0 and ejected + 1 <= MAX_EJECTED_SHARE * (warm + ejected + 1)


def _substitutes(other: Endpoint, endpoint: Endpoint) -> bool:
    """Whether `other` does the work of `endpoint`: a P of its revision, or else any engine that answers clients."""
    if endpoint.role is Role.PREFILL:
        return other.role is Role.PREFILL and other.revision == endpoint.revision
    return other.role is not Role.PREFILL
