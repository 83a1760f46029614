"""Policies: which of the engines of one role a request goes to. Pure functions of engines, loads and the request's key.

A policy scores what the caller has filtered and takes the best. Its load is whatever the caller counts: a request in
flight is 1, and an engine that is to get less than its share may show more than it has.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pdx_proxy.balancing.load_reports import LoadReport
from pdx_proxy.endpoints.endpoint import Endpoint

Load = Callable[[Endpoint], float]
"""What an endpoint has to do, in requests."""
Policy = Callable[[Sequence[Endpoint], Load, int], Endpoint]
"""Of one or more endpoints by their load the one to take; the integer is the turn, which decides between equals."""

BOUND: Final = 1.25
"""How far above the average load an endpoint may go to keep the keys it has."""
FREE: Final = 2
"""Requests below which an endpoint keeps its keys whatever the others have: sparing it one would gain nothing."""
_LEAST_FREE_KV: Final = 0.05


def least(endpoints: Sequence[Endpoint], load: Load, turn: int) -> Endpoint:
    """The least loaded, equals in turn."""
    if len(endpoints) == 1:
        return endpoints[0]
    loads = [load(e) for e in endpoints]
    fewest = min(loads)
    at = loads.index(fewest)
    for _ in range(turn % loads.count(fewest)):
        at = loads.index(fewest, at + 1)
    return endpoints[at]


def affine(endpoints: Sequence[Endpoint], load: Load, key: int) -> tuple[Endpoint, bool]:
    """The endpoint that `key` belongs to, and whether it was taken: when its load is at the bound, the next one is.

    Rendezvous hashing: every key ranks all endpoints, so one that comes or goes moves only the keys that it gets or
    had. Bounded load: none is taken whose load is `BOUND` times the average of all, this request included, or more. One
    below that always exists: were all at the bound, their sum would be above itself.
    """
    if len(endpoints) == 1:
        return endpoints[0], True
    loads = [load(e) for e in endpoints]
    bound = max(FREE, BOUND * (sum(loads) + 1) / len(loads))
    factor = key | 1  # odd, so that no two ranks are equal
    ranks = [factor * e.seed & 0xFFFFFFFF for e in endpoints]
    own = ranks.index(max(ranks))
    if loads[own] < bound:
        return endpoints[own], True
    return endpoints[max((rank, i) for i, rank in enumerate(ranks) if loads[i] < bound)[1]], False


@dataclass(frozen=True, slots=True)
class Pressure:
    """What an engine's own numbers add to the load that is counted here."""

    more: float
    """Requests of others; and those that wait once more, since all of their work is still to be done."""
    scarcity: float
    """What a request weighs where KV blocks are scarce: 1 where all are free, 20 at most."""


def pressure(measure: LoadReport, ours: float) -> Pressure:
    """Of an engine's numbers, and the load that was counted here when they were taken."""
    foreign = max(0.0, measure.running + measure.waiting - ours)
    return Pressure(foreign + measure.waiting, 1 / max(_LEAST_FREE_KV, 1 - measure.kv_use))


def pressures(endpoints: Sequence[Endpoint], measures: Mapping[str, LoadReport], load: Load) -> dict[str, Pressure]:
    """By name; an engine without numbers gets the average of the others, so that silence is no reason to call it."""
    known = {e.name: pressure(measures[e.name], load(e)) for e in endpoints if e.name in measures}
    if not known:
        return {}
    average = Pressure(
        sum(each.more for each in known.values()) / len(known),
        sum(each.scarcity for each in known.values()) / len(known),
    )
    return {e.name: known.get(e.name, average) for e in endpoints}


def least_load(by_name: Mapping[str, Pressure]) -> Policy:
    """The least requests for what is free of the KV cache: (load + 1 + what others have it do) x scarcity."""

    def choose(endpoints: Sequence[Endpoint], load: Load, turn: int) -> Endpoint:
        if len(endpoints) == 1:
            return endpoints[0]

        def score(endpoint: Endpoint) -> float:
            found = by_name.get(endpoint.name)
            return load(endpoint) + 1 if found is None else (load(endpoint) + 1 + found.more) * found.scarcity

        return least(endpoints, score, turn)

    return choose
