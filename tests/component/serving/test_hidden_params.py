"""What a D answers for a P (`kv_transfer_params`) never reaches a client: engines' addresses and block numbers."""

import json
from dataclasses import replace

import pytest

from pdx_api.names import Order
from pdx_sim.api.answers import Choice
from pdx_sim.api.apis import read_call, writer_of
from pdx_sim.core.sequence import Finish, Leg, Sequence
from pdx_sim.core.tokens import digest_of
from tests.component.conftest import MakeWorld
from tests.component.harness import AGENT_SHAPES, FAST, SHAPES, Shape

SECRETS = ("192.0.2.7", "5600", "decode-", "remote_")


@pytest.mark.parametrize("shape", [*SHAPES, AGENT_SHAPES[2]], ids=lambda shape: shape.label)
async def test_no_client_gets_them(shape: Shape, order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order, sim={"version": "0.33.0"}, d={"bidirectional": True})
    reply = await world.complete(shape, tokens=12)
    assert (reply.status, reply.text) == (200, shape.expected(tokens=12))
    assert not [secret for secret in SECRETS if secret.encode() in reply.raw]
    documents = reply.chunks if shape.stream else [reply.json]
    shown = [each["kv_transfer_params"] for each in documents if "kv_transfer_params" in each]
    assert shown == [None] * len(shown)
    assert shown
    assert reply.done or not shape.stream


async def test_whole_answers_of_older_versions_have_none_either(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, sim={"version": "0.32.0"}, d={"bidirectional": True})
    reply = await world.complete()
    assert reply.json["kv_transfer_params"] is None
    assert reply.text == Shape().expected()


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.label)
def test_the_simulated_engine_answers_them(shape: Shape) -> None:
    call = read_call(shape.body(kv_transfer_params={"do_remote_prefill": True}), shape.path, None, FAST)
    seq = Sequence(
        "id", call.prompts[0], digest_of(call.prompts[0]), 1, leg=Leg.DECODE, produced=1, finish=Finish.LENGTH
    )
    writer = writer_of(replace(call, leg=Leg.DECODE), replace(FAST, version="0.33.0", bidirectional=True))
    choice = Choice(0, seq)
    shown = b"".join(writer.token(choice)) if shape.stream else json.dumps(writer.whole([choice])).encode()
    assert all(secret.encode() in shown for secret in SECRETS)
