"""The ejection policy: what follows from the report that an endpoint is suspect. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from pdx_api.names import Role
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.endpoints.events import Cause, Suspect

FIRST_PAUSE: Final = 0.2
"""Seconds before the first warm-up after consecutive errors. It doubles with each ejection that follows soon."""
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


def decide(endpoint: Endpoint, suspect: Suspect, others: Iterable[Endpoint], now: float) -> Ejection:
    """Eject the endpoint, unless it is the last one that can do its work and still answers, with errors.

    An endpoint that answers errors is warmed up after a pause. The last one stays, because its errors are no worse
    than no engine.
    """
    errors = suspect.cause is Cause.CONSECUTIVE_ERRORS
    if errors and not _has_substitute(endpoint, others):
        return Ejection(Cause.OVERRIDDEN, endpoint)
    before = 0 if now - endpoint.warm_since > _STEADY_SECONDS else endpoint.ejections
    state = State.COLD if suspect.cause is Cause.TIMEOUT else State.SUSPECT
    ejected = replace(endpoint, identity=None, reason=suspect.reason, ejections=before + errors, warm_up_state=state)
    return Ejection(suspect.cause, ejected, FIRST_PAUSE * 2**before if errors else 0.0)


def _has_substitute(endpoint: Endpoint, others: Iterable[Endpoint]) -> bool:
    warm = [e for e in others if e.warm and e.name != endpoint.name]
    if endpoint.role is Role.PREFILL:
        return any(e.role is Role.PREFILL and e.revision == endpoint.revision for e in warm)
    return any(e.role is not Role.PREFILL for e in warm)
