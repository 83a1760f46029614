"""How many legs one gateway sends to each endpoint at a time (Envoy's max_requests). Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import floor, inf
from typing import Final

from pdx_api.names import Order, Role
from pdx_proxy.balancing.engine_limits import FIRST_LIMIT, UNREPORTED_LIMIT, Legs, own_limit, under_way
from pdx_proxy.balancing.load_reports import LoadReports
from pdx_proxy.config.settings import Limits
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.endpoints.snapshot import Snapshot

_EVEN_SHARE: Final = 0.25
"""By how much more a D may get than another one, while both may be able to run more; by one request at least."""
_NO_BATCHES: Final[Mapping[str, float]] = {}


def leg_limits(
    snapshot: Snapshot,
    reports: LoadReports,
    limits: Limits,
    legs_at: Callable[[Endpoint], Legs],
    batches: Mapping[str, float] = _NO_BATCHES,
) -> dict[str, float]:
    """Return the most legs of this gateway at each endpoint that may be selected, by name.

    `legs_at` returns the legs that the gateway has there. A limit of the settings is a bound; it also applies while the
    engine reports nothing. `batches`: the requests that D's may run by the objective for TPOT.
    """
    found: dict[str, float] = {}
    for prefill in snapshot.prefill:
        found[prefill.name] = _bounded(_limit(prefill, reports, legs_at(prefill)), limits.max_in_flight_per_prefill)
    seconds = {revision: _prefill_seconds(peers, reports) for revision, peers in snapshot.peers.items()}
    for decode in snapshot.decode:
        waits = decode.order is Order.PREFILL_FIRST and decode.role is Role.DECODE
        batch = batches.get(decode.name, inf)
        ahead = seconds.get(decode.revision, 0.0) if waits else 0.0
        limit = _limit(decode, reports, legs_at(decode), ahead, batch)
        found[decode.name] = _bounded(limit, limits.max_in_flight_per_decode)
    _even(snapshot.decode, reports, found)
    return found


def _even(decodes: Sequence[Endpoint], reports: LoadReports, found: dict[str, float]) -> None:
    """Bound the limits of D's that may be able to run more by the lowest one of their revision, but not below the load.

    Their reports come at different times. Otherwise the first D whose limit rises would get all requests that wait,
    those that the other ones could run included, and keep them in its queue.
    """
    growing: dict[str, list[Endpoint]] = {}
    for decode in decodes:
        limit = reports.limits.get(decode.name)
        if limit is not None and limit.grows:
            growing.setdefault(decode.revision, []).append(decode)
    for peers in growing.values():
        least = min(found[decode.name] for decode in peers)
        most = floor(least + max(1.0, _EVEN_SHARE * least))
        for decode in peers:
            found[decode.name] = min(found[decode.name], max(most, reports.limits[decode.name].load))


def _limit(
    endpoint: Endpoint, reports: LoadReports, legs: Legs, prefill_seconds: float = 0.0, batch: float = inf
) -> float | None:
    """The limit by the engine's reports and the largest batch; None if it reports nothing and has no such batch.

    A D whose P goes first gets its leg only when P has finished. So besides the legs that it has room for now, it gets
    those that find room by then.
    """
    limit = reports.limits.get(endpoint.name)
    if limit is not None:
        limit = replace(limit, requests=min(limit.requests, batch))
        return floor(own_limit(limit, legs, floor(under_way(limit, prefill_seconds))))
    if endpoint.name not in reports.silent:
        return FIRST_LIMIT
    return None if batch == inf else batch


def _bounded(limit: float | None, most: int) -> float:
    if limit is None:
        return most or UNREPORTED_LIMIT
    return min(limit, most) if most else limit


def _prefill_seconds(prefill: Sequence[Endpoint], reports: LoadReports) -> float:
    """How long a leg to a P takes, its wait in P's queue included; the average of those that have finished one."""
    found = [limit.latency for each in prefill if (limit := reports.limits.get(each.name)) is not None]
    found = [latency for latency in found if latency]
    return sum(found) / len(found) if found else 0.0
