"""Load-balancing policies: which engine of one role a request goes to. Pure.

A policy scores the endpoints that the caller has filtered and returns the best. The caller defines the load: a request
in flight is 1, and an engine that must receive less than its share may show more.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from pdx_api.names import Policy as PolicyName
from pdx_proxy.balancing.load_reports import LoadReport
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.payload.body import Body
from pdx_proxy.telemetry.counters import Affinity

LoadOf = Callable[[Endpoint], float]
"""Returns the load of an endpoint, in requests."""

BOUND: Final = 1.25
"""How far above the average load an endpoint may go and still keep its keys."""
FREE: Final = 2
"""Below this number of requests an endpoint keeps its keys whatever the load of the others."""
_LEAST_FREE_KV: Final = 0.05
_KEPT: Final = Affinity.KEPT.value
_MOVED: Final = Affinity.MOVED.value


class Needs:
    """What must be known of prompts for a policy to decide. Immutable by convention."""

    __slots__ = ("backlog", "kept", "key")

    def __init__(self, *, key: bool = False, backlog: bool = False, kept: bool = False) -> None:
        self.key = key
        """The key of each prompt, which is equal for prompts with the same beginning."""
        self.backlog = backlog
        """The blocks of each prompt, and what each engine of the role has to prefill."""
        self.kept = kept
        """Which prompts each engine keeps, if their blocks are known because of another policy."""


_NOTHING: Final = Needs()


class Policy:
    """A way to select one engine of a role. A base class: mypyc calls its methods faster than a Protocol's."""

    __slots__ = ("name", "needs")

    def __init__(self, name: PolicyName, needs: Needs = _NOTHING) -> None:
        self.name: str = name.value
        """Its name in the settings, and in what is counted."""
        self.needs = needs

    def deciding(self, body: Body) -> "Policy":
        """Return the policy that decides for a request: this one, or `LEAST` if nothing is known to decide by."""
        return self

    def choose(self, body: Body, endpoints: Sequence[Endpoint], load_of: LoadOf, cursor: int) -> Endpoint:
        """Select one of one or more endpoints. `cursor` alternates between equals."""
        raise NotImplementedError

    def compare(self, endpoints: Sequence[Endpoint], reports: Mapping[str, LoadReport], load_of: LoadOf) -> None:
        """Receive the engines' load reports, and compare them with the load that is counted at this moment."""


class LeastRequests(Policy):
    """Selects the engine with the fewest requests."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(PolicyName.LEAST_REQUESTS)

    def choose(self, body: Body, endpoints: Sequence[Endpoint], load_of: LoadOf, cursor: int) -> Endpoint:
        return least(endpoints, load_of, cursor)


LEAST: Final = LeastRequests()


class LeastLoad(Policy):
    """Selects the engine with the least load, by its requests and by its report."""

    __slots__ = ("_pressures",)

    def __init__(self) -> None:
        super().__init__(PolicyName.LEAST_LOAD)
        self._pressures: Mapping[str, Pressure] | None = None
        """None until the first reports."""

    def deciding(self, body: Body) -> Policy:
        return LEAST if self._pressures is None else self

    def choose(self, body: Body, endpoints: Sequence[Endpoint], load_of: LoadOf, cursor: int) -> Endpoint:
        return least_load(endpoints, load_of, cursor, self._pressures or {})

    def compare(self, endpoints: Sequence[Endpoint], reports: Mapping[str, LoadReport], load_of: LoadOf) -> None:
        self._pressures = pressures(endpoints, reports, load_of)


class PrefixAffinity(Policy):
    """Selects the same engine for prompts with the same beginning."""

    __slots__ = ("_counts",)

    def __init__(self, counts: dict[str, int]) -> None:
        """`counts`: how often a key stayed with its engine, and how often it moved."""
        super().__init__(PolicyName.PREFIX_AFFINITY, Needs(key=True))
        self._counts = counts

    def deciding(self, body: Body) -> Policy:
        return LEAST if body.features.key is None else self

    def choose(self, body: Body, endpoints: Sequence[Endpoint], load_of: LoadOf, cursor: int) -> Endpoint:
        return _affine(endpoints, load_of, body.features.key or 0, self._counts)


class SessionAffinity(Policy):
    """Selects the same engine for requests of one session."""

    __slots__ = ("_counts",)

    def __init__(self, counts: dict[str, int]) -> None:
        """`counts`: as in `PrefixAffinity`."""
        super().__init__(PolicyName.SESSION_AFFINITY)
        self._counts = counts

    def deciding(self, body: Body) -> Policy:
        return self if body.session else LEAST

    def choose(self, body: Body, endpoints: Sequence[Endpoint], load_of: LoadOf, cursor: int) -> Endpoint:
        return _affine(endpoints, load_of, zlib.crc32(body.session.encode("utf-8", "replace")), self._counts)


def least(endpoints: Sequence[Endpoint], load_of: LoadOf, cursor: int) -> Endpoint:
    """Select the least loaded endpoint; alternate between equals."""
    if len(endpoints) == 1:
        return endpoints[0]
    loads, fewest = [load_of(e) for e in endpoints], inf
    for load in loads:
        fewest = min(fewest, load)
    equals = [at for at, load in enumerate(loads) if load == fewest]
    return endpoints[equals[cursor % len(equals)]]


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


def _affine(endpoints: Sequence[Endpoint], load_of: LoadOf, key: int, counts: dict[str, int]) -> Endpoint:
    endpoint, kept = affine(endpoints, load_of, key)
    counts[_KEPT if kept else _MOVED] += 1
    return endpoint


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
    reported = {e.name: pressure(reports[e.name], load_of(e)) for e in endpoints if e.name in reports}
    if not reported:
        return {}
    average = Pressure(
        sum(one.external for one in reported.values()) / len(reported),
        sum(one.kv_cost for one in reported.values()) / len(reported),
    )
    return {e.name: reported.get(e.name, average) for e in endpoints}


def least_load(
    endpoints: Sequence[Endpoint], load_of: LoadOf, cursor: int, by_name: Mapping[str, Pressure]
) -> Endpoint:
    """Select the endpoint with the least (load + 1 + external) * kv_cost."""
    if len(endpoints) == 1:
        return endpoints[0]

    def score(endpoint: Endpoint) -> float:
        pressure_here = by_name.get(endpoint.name)
        load = load_of(endpoint) + 1
        return load if pressure_here is None else (load + pressure_here.external) * pressure_here.kv_cost

    return least(endpoints, score, cursor)
