"""The answer equals one engine's, the KV has moved, and foreign KV would be detected."""

import asyncio
from collections.abc import Callable

import pytest

from pdx_api.names import Order, Role
from pdx_sim import Leg, tokenize
from pdx_sim.core.sequence import Sequence
from tests.component.conftest import MakeWorld
from tests.component.harness import PROMPT, Shape


async def test_the_text_equals_one_engines(order: Order, shape: Shape, make_world: MakeWorld) -> None:
    world = await make_world(order)
    before = world.d.counts.prompt_tokens_external
    reply = await world.complete(shape, tokens=40)
    assert (reply.status, reply.text) == (200, shape.expected(tokens=40))
    assert reply.text == (await world.direct(world.d, shape, tokens=40)).text
    assert world.d.counts.prompt_tokens_external - before >= len(tokenize(PROMPT))
    assert await world.outcomes() == {"split": 1}
    assert reply.done is shape.stream


async def test_concurrent_requests_get_their_own_answers(order: Order, shape: Shape, make_world: MakeWorld) -> None:
    world = await make_world(order, 2, 2, p={"jitter": 0.9, "prefill_base_seconds": 0.005})
    prompts = [f"{number} {PROMPT[: number * 13]}" for number in range(40)]
    replies = await asyncio.gather(*(world.complete(shape, prompt=prompt) for prompt in prompts))
    assert [reply.text for reply in replies] == [shape.expected(prompt) for prompt in prompts]
    assert await world.outcomes() == {"split": 40}
    for engine in world.engines:
        assert engine.counts.legs[world.leg_of(engine)] > 10


async def test_foreign_kv_is_detected(order: Order, shape: Shape, make_world: MakeWorld) -> None:
    """Negative control: P prefills another prompt, and the text, the count and the violation show it."""
    world = await make_world(order)
    world.allowed.violations = {"foreign_kv"}
    for connector in (world.p.connector,):
        pin = connector.finish

        def finish(seq: Sequence, pin: Callable[[Sequence], bool] = pin) -> bool:
            seq.digest = "0" * 32
            return pin(seq)

        connector.finish = finish  # type: ignore[method-assign]
    reply = await world.complete(shape)
    assert reply.status == 200
    assert reply.text != shape.expected()
    assert world.d.counts.violations["foreign_kv"] == 1


async def test_aggregated_serves_alone(shape: Shape, make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, 0, 2, d={"role": Role.AGGREGATED})
    for _ in range(4):
        assert (await world.complete(shape)).text == shape.expected()
    assert await world.outcomes() == {"whole": 4}
    assert [engine.counts.legs[Leg.PLAIN] for engine in world.decode] == [3, 3]


@pytest.mark.parametrize("more", [{"n": 2}, {"echo": True}, {"prompt_logprobs": 1}, {"prompt": ["a", "b"]}])
async def test_several_answers_are_not_split(more: dict[str, object], order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order)
    legs = world.p.counts.legs.copy()
    body = {"prompt": PROMPT, "max_tokens": 4, **more}
    reply = await world.post("/v1/completions", body)
    assert reply.status == 200
    assert reply.json["choices"] == (await world.call("POST", f"{world.d.url}/v1/completions", body)).json["choices"]
    assert await world.outcomes() == {"whole": 1}
    assert world.p.counts.legs == legs
