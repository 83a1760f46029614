"""Run by test_made_up_connector.py where the connector Pigeon is one more file: from a spec to an answered request."""

import asyncio
import json
import sys
from dataclasses import replace

import pdx_api
from pdx_api.connectors.base import Site
from pdx_api.engines import engine_command
from pdx_api.names import Order, Role
from pdx_api.parse import parse
from pdx_api.schema import object_schema
from pdx_operator.manifests import children
from pdx_proxy.pods import read_pod
from pdx_proxy.settings import EndpointSpec
from pdx_sim import SimSettings
from tests.component.harness import Shape, World, spec_of
from tests.pddeployments import changed

NAME = "Pigeon"


def rendered() -> EndpointSpec:
    """The spec is taken, refused in an order that the connector lacks, and becomes engines that a gateway knows."""
    assert f"connector {NAME} does not allow this order; write one of: PrefillFirst" in json.dumps(object_schema())
    deployment = parse(changed("spec.kvTransfer", {"connector": NAME}))
    command = engine_command(deployment.spec, Role.PREFILL, site=Site("h", {"loft": 7}), listen="h", port=1)
    assert "PigeonConnector" in " ".join(command.args)
    assert dict(command.env)["PIGEON_LOFT"] == "7"
    made = children(deployment, uid=None, gateway_image="gateway")
    template = next(
        m["spec"]["template"] for m in made if m["kind"] == "Deployment" and "prefill" in m["metadata"]["name"]
    )
    endpoint = read_pod({**template, "status": {"phase": "Running", "podIP": "10.0.0.7"}})
    assert isinstance(endpoint, EndpointSpec), endpoint
    return endpoint


async def answered(endpoint: EndpointSpec) -> None:
    """Simulated engines that hand over as the connector's family says, behind a gateway that is told its name."""
    world = World(Order.PREFILL_FIRST)
    try:
        await world.start_engines([SimSettings(role=Role.PREFILL)], [SimSettings(role=Role.DECODE)])
        found = [replace(spec_of(e, endpoint.order), connector=endpoint.connector) for e in world.engines]
        await world.start_gateway(endpoints=tuple(found))
        reply = await world.ask()
        assert reply.text == Shape().expected(), reply
        assert await world.outcomes() == {"split": 1}
        await world.check()
    finally:
        await world.close()


if __name__ == "__main__":
    assert str(pdx_api.__file__).startswith(sys.argv[1]), pdx_api.__file__
    asyncio.run(answered(rendered()))
