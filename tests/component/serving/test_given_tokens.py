"""A client's token IDs for the KV protocol (`kv_transfer_params.prompt_token_ids`) reach no engine.

vLLM takes them instead of the messages of a chat. D would keep the KV of P, which is that of the messages, as the KV of
these tokens, and serve it to every client whose prompt has them.
"""

import json

import pytest

from pdx_api.names import Order
from pdx_sim import chat_tokens, expected_text
from tests.component.conftest import MakeWorld
from tests.component.harness import AGENT_SHAPES, SHAPES, Shape

CHAT = Shape(chat=True)
CACHES = {"enable_prefix_caching": True, "step_seconds": 0.001, "step_token_seconds": 1e-6}
MINE, THEIRS = "A prompt of my own. " * 30, "The prompt of another client. " * 30
TOKENS = list(chat_tokens([{"role": "user", "content": THEIRS}]))


@pytest.mark.parametrize("shape", [*SHAPES, *AGENT_SHAPES], ids=lambda shape: shape.label)
@pytest.mark.parametrize("size", [1, 300_000])
async def test_they_are_refused_before_anything_is_sent(shape: Shape, size: int, make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    before = [engine.counts.requests.total() for engine in world.engines]
    reply = await world.post(shape.path, shape.body("a" * size, kv_transfer_params={"prompt_token_ids": TOKENS}))
    assert reply.status == 400
    text = json.dumps(reply.json)
    assert "kv_transfer_params.prompt_token_ids is not accepted" in text
    assert "send the tokens as `prompt` of /v1/completions" in text
    assert [engine.counts.requests.total() for engine in world.engines] == before


@pytest.mark.parametrize("name", ['"prompt_token_ids"', '"prompt_token_ids" ', r'"prompt\u005ftoken_ids"'])
@pytest.mark.parametrize("outer", ["kv_transfer_params", "vllm_xargs"])
async def test_they_never_change_the_answer_of_another_client(
    name: str, outer: str, order: Order, make_world: MakeWorld
) -> None:
    world = await make_world(order, sim=CACHES)
    params = f'{{{name}: {json.dumps(TOKENS)}, "do_remote_prefill": false}}'
    given = params if outer == "kv_transfer_params" else f'{{"kv_transfer_params": {params}}}'
    body = json.dumps(CHAT.body(MINE)).encode()[:-1] + f', "{outer}": {given}}}'.encode()
    reply = await world.post(CHAT.path, body)
    assert (reply.status == 400) or reply.text == CHAT.expected(MINE)
    for prompt in (THEIRS, MINE):
        assert (await world.complete(CHAT, prompt=prompt)).text == CHAT.expected(prompt)
    assert not [seen for engine in world.engines for seen in engine.seen if "prompt_token_ids" in json.dumps(seen.body)]


@pytest.mark.parametrize("given", [None, "absent"])
async def test_other_parameters_are_removed_as_before(given: str | None, make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    params = {"prompt_token_ids": None} if given is None else {"text": '"prompt_token_ids": [1]'}
    assert (await world.complete(CHAT, kv_transfer_params=params)).text == CHAT.expected()
    assert await world.outcomes() == {"split": 1}


async def test_an_engine_would_take_them(make_world: MakeWorld) -> None:
    """Without a gateway: the negative control."""
    world = await make_world(Order.PREFILL_FIRST)
    world.allowed.violations |= {"params_malformed", "client_params"}
    reply = await world.direct(world.d, CHAT, prompt=MINE, kv_transfer_params={"prompt_token_ids": TOKENS})
    assert reply.text == expected_text(tuple(TOKENS), 8) == CHAT.expected(THEIRS)
