"""After the first event no request is repeated. A stream whose engine is lost never ends like a complete one."""

import pytest

from pdx_api.names import Order
from pdx_sim import FaultKind
from tests.component.conftest import MakeWorld
from tests.component.harness import Shape

STREAMS = [Shape(chat, True) for chat in (False, True)]


@pytest.fixture(params=STREAMS, ids=["text", "chat"])
def stream(request: pytest.FixtureRequest) -> Shape:
    return Shape(request.param.chat, True)


@pytest.mark.parametrize("events", [2, 5, 20])
async def test_a_stream_cut_between_events_ends_with_an_error(
    events: int, order: Order, stream: Shape, make_world: MakeWorld
) -> None:
    world = await make_world(order, d={"decode_token_seconds": 0.002})
    world.fault(world.d, FaultKind.DIE_AFTER_EVENTS, events=events)
    reply = await world.complete(stream, tokens=40)
    assert not reply.cut
    assert reply.done
    *whole, last = reply.chunks
    assert len(whole) == events
    assert last["error"] == {
        "message": "The engine was lost while it answered.",
        "type": "InternalServerError",
        "param": None,
        "code": 500,
    }
    assert reply.text == stream.expected(tokens=events - stream.chat)
    assert await world.outcomes() == {"broken": 1}
    assert world.d.counts.legs["decode"] == 2  # the warm-up and this request
    await world.warm()
    assert (await world.complete(stream)).text == stream.expected()


@pytest.mark.parametrize("events", [2, 5])
async def test_a_stream_cut_inside_an_event_has_no_end(
    events: int, order: Order, stream: Shape, make_world: MakeWorld
) -> None:
    world = await make_world(order, d={"decode_token_seconds": 0.002})
    world.fault(world.d, FaultKind.DIE_IN_EVENT, events=events)
    reply = await world.complete(stream, tokens=40)
    assert reply.cut
    assert not reply.done
    assert await world.outcomes() == {"broken": 1}


async def test_an_error_event_later_on_is_the_clients(order: Order, stream: Shape, make_world: MakeWorld) -> None:
    world = await make_world(order)
    world.fault(world.d, FaultKind.ERROR_EVENT, events=4)
    reply = await world.complete(stream, tokens=40)
    assert reply.done
    assert reply.chunks[-1]["error"]["code"] == 500
    assert world.d.counts.legs["decode"] == 2


async def test_an_old_client_sees_a_cut(order: Order, make_world: MakeWorld) -> None:
    """HTTP/1.0 has no framing: only the reset distinguishes a loss from the end."""
    world = await make_world(order, d={"decode_token_seconds": 0.002})
    world.fault(world.d, FaultKind.DIE_AFTER_EVENTS, events=5)
    reader, writer = await world.raw(Shape(stream=True).body(tokens=40), version="1.0")
    with pytest.raises(ConnectionResetError):
        await reader.read(-1)
    writer.close()
    assert await world.outcomes() == {"broken": 1}
