"""Run by test_made_up_connector.py in a copy with the connector Pigeon: from a spec to an answered request."""

import asyncio
import json
import sys
from dataclasses import replace

import pytest

import pdx_api
from pdx_api.connectors.base import Site
from pdx_api.names import Order, Role
from pdx_api.render.engines import engine_command, pairing_revision
from pdx_api.spec.parse import InvalidDeploymentError, parse
from pdx_api.spec.schema import object_schema
from pdx_operator.render.children import children
from pdx_operator.render.gateway import Installation
from pdx_proxy.config.settings import EndpointSpec
from pdx_proxy.discovery.pods import read_pod
from pdx_sim import SimSettings
from tests.component.harness import Shape, World, spec_of
from tests.pddeployments import changed

NAME = "Pigeon"
REFUSED: list[tuple[tuple[str, str], object, str]] = [
    (
        ("kvTransfer", "config"),
        {"wing_beats": 10},
        "spec.kvTransfer.config: wing_beats is 10; write whole beats from 1 to 9.",
    ),
    (("kvTransfer", "poolSize"), "1Gi", "spec.kvTransfer: pigeons carry; leave out poolSize."),
    (
        ("engine", "args"),
        ["--enforce-eager"],
        "pigeons are lazy; leave out --enforce-eager in engine.args, prefill.args, decode.args.",
    ),
]
"""For an object with that connector: a field, its value, and the error."""


def rendered() -> EndpointSpec:
    """The spec is accepted, refused in an order that the connector lacks, and becomes engines of a gateway."""
    assert f"connector {NAME} does not allow this order; write one of: PrefillFirst" in json.dumps(object_schema())
    deployment = parse(changed("spec.kvTransfer", {"connector": NAME, "config": {"wing_beats": 5}}))
    command = engine_command(deployment.spec, Role.PREFILL, site=Site("h", {"loft": 7}), listen="h", port=1)
    assert "PigeonConnector" in " ".join(command.args)
    assert '"wing_beats": 5' in " ".join(command.args)
    assert dict(command.env)["PIGEON_LOFT"] == "7"
    made = children(deployment, pairing_revision(deployment.spec), Installation("gateway"), uid=None)
    template = next(
        m["spec"]["template"] for m in made if m["kind"] == "Deployment" and "prefill" in m["metadata"]["name"]
    )
    endpoint = read_pod({**template, "status": {"phase": "Running", "podIP": "10.0.0.7"}})
    assert isinstance(endpoint, EndpointSpec), endpoint
    return endpoint


def refused() -> None:
    """CRD and CLI both apply the checks in the connector's file."""
    transfer = object_schema()["properties"]["spec"]["properties"]["kvTransfer"]
    setting = {"type": "integer", "minimum": 1, "maximum": 9}
    found = transfer["properties"]["config"]["properties"]["wing_beats"]
    assert found == {**setting, "description": f"{NAME}: how fast it flies, in beats a second."}
    rules = json.dumps(object_schema())
    for (part, field), value, sentence in REFUSED:
        body = changed("spec.kvTransfer.connector", NAME)
        body["spec"].setdefault(part, {})[field] = value
        with pytest.raises(InvalidDeploymentError) as error:
            parse(body)
        assert str(error.value) == sentence
        if field == "config":  # the schema refuses it by itself, whatever the connector
            continue
        assert sentence.removeprefix("spec.kvTransfer: ")[:-1] in rules
        body["spec"]["kvTransfer"]["connector"] = "NIXL"
        parse(body)  # the check belongs to this connector only


async def answered(endpoint: EndpointSpec) -> None:
    """Simulated engines with the connector's family, behind a gateway that gets the connector's name."""
    world = World(Order.PREFILL_FIRST)
    try:
        sims = [SimSettings(role=role, connector=NAME) for role in (Role.PREFILL, Role.DECODE)]
        await world.start_engines(*([sim] for sim in sims))
        found = [replace(spec_of(e, endpoint.order), connector=endpoint.connector) for e in world.engines]
        await world.start_gateway(endpoints=tuple(found))
        reply = await world.complete()
        assert reply.text == Shape().expected(), reply
        assert await world.outcomes() == {"split": 1}
        await world.check()
    finally:
        await world.close()


if __name__ == "__main__":
    assert str(pdx_api.__file__).startswith(sys.argv[1]), pdx_api.__file__
    refused()
    asyncio.run(answered(rendered()))
