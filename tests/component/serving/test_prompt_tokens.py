"""D gets the tokens that P has made of a long chat, and does not render its messages again."""

import json
from typing import Any

import pytest

from pdx_api.names import Order
from pdx_proxy.engines.leg import WHOLE_BYTES
from pdx_sim import SimEngine, chat_tokens
from tests.component.conftest import MakeWorld
from tests.component.harness import Shape

LONG = "A question of several pages. " * 1000
CHAT, STREAM = Shape(chat=True), Shape(chat=True, stream=True)
ROOM = {"max_model_len": 40_000, "version": "0.32.0"}


def given(engine: SimEngine) -> list[Any]:
    """The tokens in the legs of clients that an engine got, None for a leg without them."""
    bodies = [seen.body for seen in engine.seen if LONG[:20] in json.dumps(seen.body)]
    return [(body.get("kv_transfer_params") or {}).get("prompt_token_ids") for body in bodies]


@pytest.mark.parametrize("shape", [CHAT, STREAM], ids=lambda shape: shape.label)
async def test_a_long_chat(shape: Shape, make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, sim=ROOM)
    for number in range(2):
        prompt = f"{LONG}{number}"
        assert (await world.complete(shape, prompt=prompt)).text == shape.expected(prompt)
    tokens = [list(chat_tokens([{"role": "user", "content": f"{LONG}{number}"}])) for number in range(2)]
    assert given(world.d) == tokens
    assert given(world.p) == [None, None]
    legs = [seen.body for seen in world.p.seen if LONG[:20] in json.dumps(seen.body)]
    assert [leg["return_token_ids"] for leg in legs] == [True, True]
    assert await world.outcomes() == {"split": 2}


@pytest.mark.parametrize(
    ("order", "shape", "sim", "more"),
    [
        pytest.param(Order.PREFILL_FIRST, CHAT, ROOM, {"prompt": LONG[:4000]}, id="short"),
        pytest.param(Order.PREFILL_FIRST, CHAT, ROOM, {"return_prompt_text": True}, id="shows its prompt"),
        pytest.param(Order.PREFILL_FIRST, CHAT, ROOM, {"user": "u" * 2**20}, id="very long"),
        pytest.param(Order.PREFILL_FIRST, Shape(), ROOM, {}, id="completion"),
        pytest.param(Order.PREFILL_FIRST, CHAT, {**ROOM, "version": "0.31.0"}, {}, id="0.31"),
        pytest.param(Order.CONCURRENT, CHAT, ROOM, {}, id="push"),
    ],
)
async def test_other_requests_are_as_the_client_wrote_them(
    order: Order, shape: Shape, sim: dict[str, Any], more: dict[str, Any], make_world: MakeWorld
) -> None:
    world = await make_world(order, sim=sim)
    body = {"prompt": LONG, **more}
    assert (await world.complete(shape, **body)).text == shape.expected(body["prompt"])
    assert given(world.d) == [None]
    assert not [seen for seen in world.p.seen if "return_token_ids" in seen.body]


async def test_an_answer_with_very_many_tokens(make_world: MakeWorld) -> None:
    """More than the gateway reads of other answers of P: the simulator's tokens have ten digits."""
    world = await make_world(Order.PREFILL_FIRST, sim={**ROOM, "max_model_len": 240_000})
    prompt = LONG * 30
    assert (await world.complete(CHAT, prompt=prompt)).text == CHAT.expected(prompt)
    (tokens,) = given(world.d)
    assert len(json.dumps(tokens)) > WHOLE_BYTES
    assert await world.outcomes() == {"split": 1}


async def test_a_chat_that_is_too_long_gets_the_refusal_of_its_messages(make_world: MakeWorld) -> None:
    """vLLM does not compare the length of tokens and answer with its context, so D must render the messages."""
    tokens = len(chat_tokens([{"role": "user", "content": LONG}]))
    world = await make_world(Order.PREFILL_FIRST, sim={**ROOM, "max_model_len": tokens + 10})
    assert (await world.complete(CHAT, prompt=LONG, tokens=11)).status == 400
    assert given(world.d) == [None, None], "the leg, and the request itself"
    assert (await world.complete(CHAT, prompt=LONG, tokens=10)).text == CHAT.expected(LONG, 10)
    assert given(world.d)[2:] != [None]
