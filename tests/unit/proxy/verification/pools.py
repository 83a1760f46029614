"""Pools of warm engines and their pairs."""

from typing import Any, Final

from pdx_api.names import Role
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint, Names, State
from pdx_proxy.verification.record import Pair
from pdx_proxy.verification.schedule import candidates

P: Final = Role.PREFILL
D: Final = Role.DECODE


def engine(role: Role, number: int, revision: str = "a", **fields: Any) -> Endpoint:
    spec = EndpointSpec(
        Address(f"10.0.{role is D:d}.{number}", 8000), role, revision, pod=f"{role}-{revision}-{number}"
    )
    return Endpoint(spec, **{"warm_up_state": State.WARM, "generation": 1, **fields})


def pool(prefill: int, decode: int, revision: str = "a") -> list[Endpoint]:
    return [engine(P, n, revision) for n in range(prefill)] + [engine(D, n, revision) for n in range(decode)]


def pairs_of(prefill: int, decode: int) -> list[Pair]:
    (pairs,) = candidates(pool(prefill, decode))
    return pairs


def names(pairs: list[Pair]) -> list[Names]:
    return [(p.name, d.name) for p, d in pairs]
