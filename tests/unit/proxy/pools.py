"""Endpoints for tables of tests."""

from pdx_api.names import Role
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.payload.body import Body

BODY = Body()

P, D, BOTH = Role.PREFILL, Role.DECODE, Role.AGGREGATED


def endpoint(port: int, role: Role = D, state: State = State.WARM, since: float = 0.0, **fields: object) -> Endpoint:
    spec = EndpointSpec(Address("h", port), role, **fields)  # type: ignore[arg-type]
    return Endpoint(spec, state, generation=1, warm_since=since)
