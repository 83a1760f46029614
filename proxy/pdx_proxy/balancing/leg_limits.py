"""How many legs one gateway sends to each endpoint at a time (Envoy's max_requests). Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import floor, inf
from typing import Final

from pdx_api.names import Order, Role
from pdx_proxy.balancing.engine_limits import FIRST_LIMIT, UNREPORTED_LIMIT, EngineLimit, Legs, own_limit, under_way
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
    ahead = {d.name: _ahead(d, reports, seconds.get(d.revision, 0.0)) for d in snapshot.decode}
    even = _even_limits(snapshot.decode, reports, ahead)
    for decode in snapshot.decode:
        name = decode.name
        batch, most = batches.get(name, inf), even.get(name, inf)
        limit = _limit(decode, reports, legs_at(decode), ahead[name], batch, most)
        found[name] = _bounded(limit, limits.max_in_flight_per_decode)
    return found


def _ahead(decode: Endpoint, reports: LoadReports, prefill_seconds: float) -> int:
    """How many requests of all gateways for a D may be at a P.

    A D whose P goes first gets its leg only when P has finished. So besides the legs that it has room for now, it gets
    those that find room by then.
    """
    limit = reports.limits.get(decode.name)
    if limit is None or decode.order is not Order.PREFILL_FIRST or decode.role is not Role.DECODE:
        return 0
    return floor(under_way(limit, prefill_seconds))


def _even_limits(decodes: Sequence[Endpoint], reports: LoadReports, ahead: Mapping[str, int]) -> dict[str, float]:
    """Return the most requests of all gateways for each D that may be able to run more.

    Each gets at most a quarter more, or one request, than the lowest limit in its revision, or than it runs. The
    reports of D's come at different times. Without this bound, the first D whose limit rises would get all requests
    that wait, and those that the others could run would wait in its queue.
    """
    found: dict[str, float] = {}
    growing: dict[str, dict[str, EngineLimit]] = {}
    for decode in decodes:
        limit = reports.limits.get(decode.name)
        if limit is not None and limit.grows:
            growing.setdefault(decode.revision, {})[decode.name] = limit
    for peers in growing.values():
        least = min(limit.requests + ahead[name] for name, limit in peers.items())
        for name, limit in peers.items():
            base = max(least, limit.load - limit.queued)
            found[name] = base + max(1.0, _EVEN_SHARE * base)
    return found


def _limit(
    endpoint: Endpoint, reports: LoadReports, legs: Legs, ahead: int = 0, batch: float = inf, most: float = inf
) -> float | None:
    """The limit by the engine's reports and the largest batch; None if it reports nothing and has no such batch.

    `ahead` and `most`: see `_ahead` and `_even_limits`.
    """
    limit = reports.limits.get(endpoint.name)
    if limit is not None:
        requests = min(limit.requests, most)
        limit = replace(limit, requests=min(requests, batch))
        return floor(own_limit(limit, legs, min(ahead, most - requests)))
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
