"""What the tests of LMCache's connectors ask of a pair of engines."""

import asyncio
import contextlib
import importlib.util
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from pdx_cli.main import main as pdx
from tests.engines.conftest import Pair
from tests.engines.support.campaign import hang_up_at_random
from tests.engines.support.harness import Answer, Engine, Gateway, complete, eventually, make_prompt
from tests.engines.support.mooncake import libraries

CHUNK: Final = 128
"""Tokens that are saved and found as one."""
RELOADS: Final = {"VLLM_SERVER_DEV_MODE": "1"}
"""Lets an engine take other weights: `check_foreign`."""
needs_lmcache: Final = pytest.mark.skipif(
    importlib.util.find_spec("lmcache") is None, reason="LMCache is not installed: run `make install-lmcache`"
)


def tokens(answer: Answer) -> int:
    """Length of its prompt."""
    return int(answer.usage["prompt_tokens"])


def environment(patch: pytest.MonkeyPatch) -> None:
    """Where Mooncake's package is installed too, LMCache loads it, and needs its libraries."""
    for name, value in libraries().items():
        patch.setenv(name, value)


async def check(session: aiohttp.ClientSession, front: Gateway, pair: Pair, body: dict[str, Any]) -> bool:
    """P's own text, and every whole chunk from outside; False for a prompt that ends with a chunk."""
    before = pair.decode.external_tokens
    got = await complete(session, front.url, body)
    alone = await complete(session, pair.prefill.url, body)  # P has computed the prompt, and decodes over its own KV
    assert (got.status, got.complete, got.text) == (200, True, alone.text)
    assert len(alone.text) > 10, "a text that shows nothing proves nothing"
    moved = tokens(got) // CHUNK * CHUNK
    assert moved > 0
    if tokens(got) % CHUNK == 0:
        return False
    await eventually(lambda: pair.decode.external_tokens - before == moved, 20, f"{moved} tokens did not come")
    return True


async def check_shape(
    session: aiohttp.ClientSession, front: Gateway, pair: Pair, seeds: Iterator[int], *, chat: bool, stream: bool
) -> None:
    """A request of this shape, as `check` has it."""
    for number in seeds:
        prompt = make_prompt(number, 120)
        body: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
        body |= {"max_tokens": 24, "stream": stream, **({"stream_options": {"include_usage": True}} if stream else {})}
        if await check(session, front, pair, body):
            return


async def check_alone(session: aiohttp.ClientSession, pair: Pair, prompt: str) -> None:
    """D computes a prompt that only D gets: the counter counts nothing that has not come."""
    before = pair.decode.metrics()
    answer = await complete(session, pair.decode.url, {"prompt": prompt, "max_tokens": 8})
    after = pair.decode.metrics()
    assert after["external_kv_transfer"] == before["external_kv_transfer"]
    assert after["local_compute"] - before["local_compute"] == tokens(answer)


async def check_foreign(session: aiohttp.ClientSession, pair: Pair, prompt: str, own: Path, foreign: Path) -> None:
    """The negative control: KV is named by the prompt, so P makes foreign KV of the same prompt, with other weights."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pdx_cli.commands.tiny_model.SEED", 1)
        assert pdx(["tiny-model", str(foreign)]) == 0
    body = {"prompt": prompt, "max_tokens": 24}
    alone = await complete(session, pair.decode.url, {**body, "cache_salt": "alone"})
    await _take_weights(session, pair.prefill, foreign)
    try:
        assert (await complete(session, pair.prefill.url, {**body, "max_tokens": 1})).status == 200
    finally:
        await _take_weights(session, pair.prefill, own)
    before = pair.decode.external_tokens
    over_foreign = await complete(session, pair.decode.url, body)
    await eventually(lambda: pair.decode.external_tokens > before, 20, "D has not taken P's KV")
    assert over_foreign.status == 200
    assert over_foreign.text != alone.text


async def _take_weights(session: aiohttp.ClientSession, engine: Engine, model: Path) -> None:
    call = {"method": "reload_weights", "kwargs": {"weights_path": str(model)}}
    async with session.post(f"{engine.url}/collective_rpc", json=call) as answer:
        assert answer.status == 200, await answer.text()


async def check_hang_ups(session: aiohttp.ClientSession, front: Gateway, pair: Pair, seeds: Iterator[int]) -> None:
    """Clients that leave at any moment, also while P or D loads, end no engine and leave nothing held."""
    outcomes = await hang_up_at_random(session, front, 80, seed=next(seeds))
    assert outcomes["left"] > 10
    rng = random.Random(next(seeds))
    prompts = [make_prompt(next(seeds), 400) for _ in range(20)]
    for prompt in prompts:
        await complete(session, pair.prefill.url, {"prompt": prompt, "max_tokens": 1})
    before = pair.prefill.external_tokens

    async def leave(prompt: str) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(rng.uniform(0.0, 0.15)):
                await complete(session, front.url, {"prompt": prompt, "max_tokens": 1})
                return False
        return True

    left = 0
    for _ in range(3):
        async with session.post(f"{pair.prefill.url}/reset_prefix_cache") as answer:
            assert answer.status == 200, await answer.text()
        for pairs in zip(prompts[::2], prompts[1::2], strict=True):
            left += sum(await asyncio.gather(*map(leave, pairs)))
        await eventually(lambda: not any(front.state()["inFlight"].values()), 30, "the gateway does not come to rest")
    assert left > 3
    assert pair.prefill.external_tokens > before, "P has loaded nothing, which proves nothing"
    await check_serves(session, front, pair.prefill, make_prompt(next(seeds), 120))
    await eventually(lambda: pair.prefill.kv_usage == 0 and pair.decode.kv_usage == 0, 20, "blocks are still held")


async def check_serves(session: aiohttp.ClientSession, front: Gateway, single: Engine, prompt: str) -> None:
    """A single engine's text within a minute, wherever D's KV is from."""
    body = {"prompt": prompt, "max_tokens": 16}
    async with asyncio.timeout(60):
        got = await complete(session, front.url, body)
    assert (got.status, got.text) == (200, (await complete(session, single.url, body)).text)


async def check_moves_again(
    session: aiohttp.ClientSession, front: Gateway, pair: Pair, seeds: Iterator[int], seconds: float = 60
) -> None:
    """Prompts come from outside again, within that time, and no load that fails meanwhile fails a request."""
    deadline = time.monotonic() + seconds
    for number in seeds:
        before = pair.decode.external_tokens
        assert (await complete(session, front.url, {"prompt": make_prompt(number, 120), "max_tokens": 4})).status == 200
        if pair.decode.external_tokens > before:
            return
        assert time.monotonic() < deadline, "KV does not move again"
