"""Policies: which engine of one role a request goes to. Pure functions of engines, loads and the request's key.

A policy scores the endpoints that the caller has filtered and returns the best. The caller defines the load: a request
in flight is 1, and an engine that must receive less than its share may show more.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pdx_proxy.balancing.load_reports import LoadReport
from pdx_proxy.endpoints.endpoint import Endpoint

LoadOf = Callable[[Endpoint], float]
"""Returns the load of an endpoint, in requests."""
Policy = Callable[[Sequence[Endpoint], LoadOf, int], Endpoint]
"""Selects one of one or more endpoints by their load. The integer is a cursor, which alternates between equals."""

BOUND: Final = 1.25
"""How far above the average load an endpoint may go and still keep its keys."""
FREE: Final = 2
"""Below this number of requests an endpoint keeps its keys whatever the load of the others."""
_LEAST_FREE_KV: Final = 0.05


def least(endpoints: Sequence[Endpoint], load_of: LoadOf, cursor: int) -> Endpoint:
    """Select the least loaded endpoint; alternate between equals."""
    if len(endpoints) == 1:
        return endpoints[0]
    loads = [load_of(e) for e in endpoints]
    fewest = min(loads)
    at = loads.index(fewest)
    for _ in range(cursor % loads.count(fewest)):
        at = loads.index(fewest, at + 1)
    return endpoints[at]


def affine(endpoints: Sequence[Endpoint], load_of: LoadOf, key: int) -> tuple[Endpoint, bool]:
    """Select the endpoint that `key` belongs to, or the next one if its load is at the bound; the flag says which.

    Rendezvous hashing: every key ranks all endpoints, so an endpoint that comes or goes moves only the keys that it
    gets or had. Bounded load: the load of the endpoint is less than `BOUND` times the average of all, this request
    included. Such an endpoint always exists: if all were at the bound, their sum would exceed itself.
    """
    if len(endpoints) == 1:
        return endpoints[0], True
    loads = [load_of(e) for e in endpoints]
    bound = max(FREE, BOUND * (sum(loads) + 1) / len(loads))
    factor = key | 1  # odd, so that no two ranks are equal
    ranks = [factor * e.seed & 0xFFFFFFFF for e in endpoints]
    own = ranks.index(max(ranks))
    if loads[own] < bound:
        return endpoints[own], True
    return endpoints[max((rank, i) for i, rank in enumerate(ranks) if loads[i] < bound)[1]], False


@dataclass(frozen=True, slots=True)
class Pressure:
    """What an engine's load report adds to the load that is counted here."""

    external: float
    """Requests of other gateways, plus the waiting requests once more, since all of their work is still to do."""
    kv_cost: float
    """The weight of a request where KV blocks are scarce: 1 if all are free, 20 at most."""


def pressure(report: LoadReport, ours: float) -> Pressure:
    """Compare an engine's report with the load that was counted here at that moment."""
    external = max(0.0, report.running + report.waiting - ours)
    return Pressure(external + report.waiting, 1 / max(_LEAST_FREE_KV, 1 - report.kv_use))


def pressures(endpoints: Sequence[Endpoint], reports: Mapping[str, LoadReport], load_of: LoadOf) -> dict[str, Pressure]:
    """Return the pressures by name. An engine without a report gets the average, so silence is no advantage."""
    found = {e.name: pressure(reports[e.name], load_of(e)) for e in endpoints if e.name in reports}
    if not found:
        return {}
    average = Pressure(
        sum(each.external for each in found.values()) / len(found),
        sum(each.kv_cost for each in found.values()) / len(found),
    )
    return {e.name: found.get(e.name, average) for e in endpoints}


def least_load(by_name: Mapping[str, Pressure]) -> Policy:
    """Return the policy that minimizes (load + 1 + external) * kv_cost."""

    def choose(endpoints: Sequence[Endpoint], load_of: LoadOf, cursor: int) -> Endpoint:
        if len(endpoints) == 1:
            return endpoints[0]

        def score(endpoint: Endpoint) -> float:
            found = by_name.get(endpoint.name)
            load = load_of(endpoint) + 1
            return load if found is None else (load + found.external) * found.kv_cost

        return least(endpoints, score, cursor)

    return choose
