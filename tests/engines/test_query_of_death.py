"""A request that crashes real vLLM engines: at most one engine of each role dies.

With LoRA on, vLLM 0.32 for the CPU crashes on several prompts with `prompt_logprobs` in one step
(punica_cpu.add_lora_logits). Such a request is not divided, so a decode engine gets it first.
"""

from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from pdx_api.names import Order, Role
from pdx_api.spec.model import Adapter
from tests.engines.support.harness import Engine, Gateway, complete, gateway, make_prompt, running, tiny_spec
from tests.engines.test_lora import ADAPTER, write_adapter

CRASH = {"max_tokens": 2, "prompt_logprobs": 1, "prompt": [make_prompt(number, 5) for number in range(12)]}


@pytest.fixture
def front(tiny_model: Path, tmp_path: Path) -> Iterator[Gateway]:
    """One P and three D."""
    spec = tiny_spec(tiny_model, order="PrefillFirst")
    adapter = Adapter(name=ADAPTER, path=str(write_adapter(tmp_path / "adapter")))
    spec = spec.model_copy(update={"model": spec.model.model_copy(update={"adapters": [adapter]})})
    prefill, *decodes = [Engine(spec, role, tmp_path) for role in (Role.PREFILL, *[Role.DECODE] * 3)]
    with running(prefill, *decodes), gateway(Order.PREFILL_FIRST, [prefill], decodes, tmp_path) as ready:
        yield ready


async def test_two_decode_engines_survive(session: aiohttp.ClientSession, front: Gateway) -> None:
    assert (await complete(session, front.url, {"prompt": "before", "max_tokens": 4})).status == 200
    answer = await complete(session, front.url, CRASH)
    assert (answer.status, "It is not tried again" in answer.text) == (500, True), answer
    assert [await _lives(session, engine) for engine in front.decode].count(True) == 2
    again = await complete(session, front.url, CRASH)
    assert again.status == 500
    assert [await _lives(session, engine) for engine in front.decode].count(True) == 2
    for number in range(8):
        body = {"prompt": make_prompt(100 + number, 20), "max_tokens": 4}
        assert (await complete(session, front.url, body)).status == 200


async def _lives(session: aiohttp.ClientSession, engine: Engine) -> bool:
    try:
        async with session.get(f"{engine.url}/health") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False
