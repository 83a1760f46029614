"""All policies that are compared, by name."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.goodput.decode import LeastItl
from benchmarks.goodput.engine import Engine, EngineModel
from benchmarks.goodput.expected_wait import ExpectedWait
from benchmarks.goodput.gateway import Choosing, Gateway, Gateways, LeastLoad, PrefixAffinity, Stateless
from benchmarks.goodput.measures import Slo
from benchmarks.goodput.peers.base import Groups, PeerRouter, Policies
from benchmarks.goodput.peers.dynamo import KvRouter
from benchmarks.goodput.peers.llm_d import Scorers
from benchmarks.goodput.peers.vllm_router import CacheAware, PowerOfTwo, RoundRobin
from benchmarks.goodput.simulation import Router
from pdx_proxy.balancing.decode import placement

Maker = Callable[[Sequence[Engine], EngineModel, random.Random], Router]


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy."""

    name: str
    make: Maker
    sources: tuple[str, ...]
    """Modules and packages whose change makes its results obsolete, besides those of the simulation."""
    pdx: bool = False
    default: bool = False
    """Whether the gateway uses it by default: it is compared with what is required."""
    for_slo: Callable[[Slo], Maker] | None = None
    """Of a policy that uses the SLO."""

    def router(self, engines: Sequence[Engine], model: EngineModel, rng: random.Random, slo: Slo) -> Router:
        """A new router for this SLO."""
        return (self.for_slo(slo) if self.for_slo is not None else self.make)(engines, model, rng)


_GATEWAY: Final = (
    "benchmarks.goodput.gateway",
    *(f"pdx_proxy.balancing.{name}" for name in ("engine_limits", "leg_limits", "load", "pick", "policies")),
)
_EXPECTED_WAIT: Final = (
    "benchmarks.goodput.expected_wait",
    *(f"pdx_proxy.balancing.prefill.{name}" for name in ("expected_wait", "backlog", "rate", "prefix_cache")),
    "pdx_proxy.payload.prompt_blocks",
)


_DECODE: Final = (
    "benchmarks.goodput.decode",
    *(
        f"pdx_proxy.balancing.decode.{name}"
        for name in ("balancer", "itl", "measurement", "placement", "streams", "view")
    ),
)
_SLO: Final = Slo(5.0, 0.05)


def _pdx(
    name: str,
    choosing: Callable[[EngineModel], Choosing],
    gateways: int = 1,
    sources: tuple[str, ...] = (),
    *,
    default: bool = False,
) -> Policy:
    """A policy of PDX for the engines that prefill; D's are chosen by LeastRequests."""

    def make(engines: Sequence[Engine], model: EngineModel, rng: random.Random) -> Router:
        splits = bool(Groups(engines).prefill)
        pairs = [(choosing(model), Stateless() if splits else None) for _ in range(gateways)]
        found = [Gateway(engines, first, first if second is None else second) for first, second in pairs]
        return found[0] if gateways == 1 else Gateways(found)

    return Policy(name, make, (*_GATEWAY, *sources), pdx=True, default=default)


def _least_itl(slo: Slo | None = None, gateways: int = 1) -> Maker:
    """P's by ExpectedWait and D's by LeastITL, as the gateway chooses by default."""

    def make(engines: Sequence[Engine], model: EngineModel, rng: random.Random) -> Router:
        objectives = placement.Targets(slo.ttft, slo.tpot) if slo is not None else placement.Targets()
        splits = bool(Groups(engines).prefill)
        prefills = [ExpectedWait(model.tokens) for _ in range(gateways)]
        found = [
            Gateway(engines, each, LeastItl(each, objectives) if splits else each, lends=True) for each in prefills
        ]
        return found[0] if gateways == 1 else Gateways(found)

    return make


def _peer(name: str, policies: Policies, source: str) -> Policy:
    def make(engines: Sequence[Engine], model: EngineModel, rng: random.Random) -> Router:
        return PeerRouter(engines, policies, policies, Groups(engines), rng)

    return Policy(name, make, (f"benchmarks.goodput.peers.{source}", "benchmarks.goodput.peers.base"))


def _dynamo(engines: Sequence[Engine], model: EngineModel, rng: random.Random) -> Router:
    return KvRouter(engines, model.limits.max_num_batched_tokens, rng)


def _expected_wait(gateways: int) -> Policy:
    """The default with so many gateways."""
    name = DEFAULT if gateways == 1 else f"{DEFAULT}, {gateways} gateways"
    sources = (*_GATEWAY, *_EXPECTED_WAIT, *_DECODE)
    return Policy(name, _least_itl(None, gateways), sources, pdx=True, default=gateways == 1)


DEFAULT: Final = "ExpectedWait"
WITH_SLO: Final = f"{DEFAULT}, with the SLO"
BASELINE: Final = "LeastRequests"
_ALL: Final = (
    *(_expected_wait(gateways) for gateways in (1, 2, 4)),
    Policy(WITH_SLO, _least_itl(_SLO), (*_GATEWAY, *_EXPECTED_WAIT, *_DECODE), pdx=True, for_slo=_least_itl),
    _pdx(BASELINE, lambda _: Stateless()),
    _pdx("LeastLoad", lambda _: LeastLoad()),
    _pdx("PrefixAffinity", lambda _: PrefixAffinity()),
    _peer("vllm-router cache_aware", CacheAware, "vllm_router"),
    _peer("vllm-router power_of_two", PowerOfTwo, "vllm_router"),
    _peer("llm-d", Scorers, "llm_d"),
    Policy("Dynamo", _dynamo, ("benchmarks.goodput.peers.dynamo", "benchmarks.goodput.peers.base")),
    _peer("round robin", RoundRobin, "vllm_router"),
)
POLICIES: Final[Mapping[str, Policy]] = {policy.name: policy for policy in _ALL}
