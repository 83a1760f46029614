"""Error events that carry an error of the client: relayed as the engine sent them, and no engine is at fault."""

import json
from typing import Any

import anthropic
import pytest

from pdx_api.names import Order
from pdx_proxy.endpoints.events import Cause
from pdx_sim import FaultKind
from tests.component.conftest import MakeWorld
from tests.component.harness import Shape, eventually

_TEXT = (
    "2 validation errors for ChatCompletionStreamResponse\nmodel\n  Field required [type=missing, input_value="
    "{'error': {'message': 'Gr...am': None, 'code': 400}}, input_type=dict]\n    For further information visit "
    "https://errors.pydantic.dev/2.14/v/missing"
)
_WRAPPED = {"type": "error", "error": {"type": "internal_error", "message": _TEXT}}
_OF_CHATS = {"error": {"message": "Grammar error", "type": "BadRequestError", "param": None, "code": 400}}
_OF_RESPONSES = {"type": "error", "code": 400, "message": "Grammar error", "param": None, "sequence_number": 2}
_NAMED = b"event: error\ndata: "
EVENTS = {
    "messages": (Shape(agent="messages", stream=True), _NAMED + json.dumps(_WRAPPED).encode() + b"\n\n"),
    "responses": (Shape(agent="responses", stream=True), _NAMED + json.dumps(_OF_RESPONSES).encode() + b"\n\n"),
    "chat": (Shape(chat=True, stream=True), b"data: " + json.dumps(_OF_CHATS).encode() + b"\n\n"),
    "text": (Shape(stream=True), b"data: " + json.dumps(_OF_CHATS).encode() + b"\n\n"),
}
_REQUESTS = 6
"""One more than the consecutive errors that eject an engine."""


@pytest.mark.parametrize("api", EVENTS)
async def test_an_error_event_of_the_client_is_relayed_and_ejects_no_engine(
    api: str, order: Order, make_world: MakeWorld
) -> None:
    world = await make_world(order, decode=2)
    shape, event = EVENTS[api]
    for engine in world.decode:
        engine.faults.add(FaultKind.ERROR_EVENT, count=None, error=event)
    before = [engine.counts.requests.total() for engine in world.decode]
    replies = [await world.complete(shape, prompt=f"prompt {number}") for number in range(_REQUESTS)]
    assert {(reply.status, event in reply.raw) for reply in replies} == {(200, True)}
    assert await world.outcomes() == {"refused_by_engine": _REQUESTS}
    assert not world.report["retries"]
    legs = [engine.counts.requests.total() - count for engine, count in zip(world.decode, before, strict=True)]
    assert sum(legs) >= 2 * _REQUESTS, "one leg each, and the request as the client wrote it"
    registry = world.gateway.registry
    assert {e.state.value for e in registry.snapshot.everything} == {"Warm"}
    assert not any(registry.ejections.values()), registry.ejections
    for engine in world.engines:
        engine.faults.clear()
    assert (await world.complete(shape)).text == shape.expected()
    await eventually(lambda: world.settled)
    world.allowed.expired = True
    for engine in world.engines:
        engine.end_leases()


async def test_a_failure_of_the_engine_still_ejects_it(make_world: MakeWorld) -> None:
    """Its text quotes what the client wrote."""
    world = await make_world(Order.PREFILL_FIRST, decode=3)
    shape, _ = EVENTS["messages"]
    quote = {"type": "error", "error": {"type": "internal_error", "message": f"failed on: {_TEXT}"}}
    engine = world.d
    engine.faults.add(FaultKind.ERROR_EVENT, count=20, error=_NAMED + json.dumps(quote).encode() + b"\n\n")
    for number in range(40):
        if world.endpoint(engine).state.value != "Warm":
            break
        assert (await world.complete(shape, prompt=f"prompt {number}")).text == shape.expected(f"prompt {number}")
    assert world.gateway.registry.ejections[Cause.CONSECUTIVE_ERRORS] == 1
    engine.faults.clear()
    world.allowed.expired = True
    for each in world.engines:
        each.end_leases()


async def test_anthropics_sdk_gets_the_engines_event_once(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    world.d.faults.add(FaultKind.ERROR_EVENT, count=None, error=EVENTS["messages"][1])
    client = anthropic.AsyncAnthropic(base_url=world.url, api_key="none")
    message: Any = {"model": "sim", "max_tokens": 8, "messages": [{"role": "user", "content": "a"}], "stream": True}
    with pytest.raises(anthropic.APIStatusError) as raised:
        async for _ in await client.messages.create(**message):
            pass
    await client.close()
    assert "ChatCompletionStreamResponse" in str(raised.value)
    world.sent += 1
    assert await world.outcomes() == {"refused_by_engine": 1}
    world.d.faults.clear()
    world.allowed.expired = True
    for each in world.engines:
        each.end_leases()
