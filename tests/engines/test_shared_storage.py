"""SharedStorage: P writes files, D reads them. Real vLLM engines, which share a directory of this test."""

import asyncio
import itertools
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pdx_api.connectors.base import Site
from pdx_api.names import Order
from pdx_api.render.engines import engine_command
from tests.engines.conftest import Pair, running_engines
from tests.engines.support.campaign import SHAPES
from tests.engines.support.harness import (
    Answer,
    Engine,
    Gateway,
    complete,
    eventually,
    gateway,
    make_prompt,
    tiny_spec,
)
from tests.engines.support.probing import check_another, check_probe

BLOCK = 128
"""Tokens in a KV block on the CPU."""
TRANSFER = {"connector": "SharedStorage", "storage": {"persistentVolumeClaim": {"claimName": "kv"}}}


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kv")


@pytest.fixture(scope="module")
def pair(tiny_model: Path, storage: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    spec, logs = tiny_spec(tiny_model, **TRANSFER), tmp_path_factory.mktemp("shared-storage")
    with running_engines(spec, logs, storage=str(storage)) as engines:
        yield engines


def _folders(storage: Path) -> set[Path]:
    return set(storage.iterdir())


def _wipe(storage: Path) -> None:
    for folder in _folders(storage):
        shutil.rmtree(folder)


def _moved(answer: Answer) -> int:
    return (int(answer.usage["prompt_tokens"]) - 2) // BLOCK * BLOCK


async def _alone(session: aiohttp.ClientSession, pair: Pair, storage: Path, body: dict[str, Any]) -> Answer:
    """What D answers by itself, with nothing to find and nothing left behind."""
    _wipe(storage)
    before = pair.decode.external_tokens
    answer = await complete(session, pair.decode.url, body)
    assert pair.decode.external_tokens == before
    _wipe(storage)
    return answer


async def test_pdx_probe(pair: Pair) -> None:
    await check_another(pair.prefill, pair.decode, "NIXL", Order.PREFILL_FIRST, "OtherConnector")
    await check_probe(pair.prefill, pair.decode)


@pytest.mark.parametrize(("chat", "stream"), SHAPES)
async def test_text_is_a_single_engines_and_the_prompt_came_from_outside(
    chat: bool, stream: bool, session: aiohttp.ClientSession, front: Gateway, pair: Pair, storage: Path
) -> None:
    for number in itertools.count(1000 * front.number + 2 * chat + stream, 7):
        prompt = make_prompt(number, 120)
        body: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
        body |= {"max_tokens": 24, "stream": stream, **({"stream_options": {"include_usage": True}} if stream else {})}
        alone = await _alone(session, pair, storage, body)
        if alone.usage["prompt_tokens"] % BLOCK != 1:  # which is saved under another name than it is looked for
            break
    before = pair.decode.external_tokens
    got = await complete(session, front.url, body)
    assert (got.status, got.complete, got.text) == (200, True, alone.text)
    assert len(alone.text) > 10, "a text that shows nothing proves nothing"
    assert _moved(got) > 0
    await eventually(
        lambda: pair.decode.external_tokens - before == _moved(got), 20, "the prompt's blocks did not come"
    )


async def test_foreign_kv_shows_in_the_text(
    session: aiohttp.ClientSession, front: Gateway, pair: Pair, storage: Path
) -> None:
    """The negative control: were D to decode over another prompt's KV, the comparison of texts would fail."""
    own, foreign = ([10 + seed * number**2 % 400 for number in range(300)] for seed in (1, 3))
    body = {"prompt": own, "max_tokens": 24}
    alone = await _alone(session, pair, storage, body)
    await complete(session, pair.prefill.url, {"prompt": foreign, "max_tokens": 1})
    (theirs,) = _folders(storage)
    await complete(session, pair.prefill.url, {"prompt": own, "max_tokens": 1})
    (mine,) = _folders(storage) - {theirs}
    assert (await complete(session, pair.decode.url, body)).text == alone.text
    shutil.rmtree(mine)
    theirs.rename(mine)
    over_foreign = await complete(session, pair.decode.url, body)
    assert over_foreign.status == 200
    assert over_foreign.text != alone.text
    _wipe(storage)


async def test_a_custom_pool_is_spoken_to_alike(
    session: aiohttp.ClientSession, pair: Pair, storage: Path, tiny_model: Path
) -> None:
    """`connector: Custom` of family Pool would start these engines, but for kv_role, which ExampleConnector ignores."""
    described = {"className": "ExampleConnector", "family": "Pool"}
    config = {"shared_storage_path": str(storage)}
    spec = tiny_spec(tiny_model, connector="Custom", custom=described, config=config)
    ends = [replace(engine, spec=spec) for engine in (pair.prefill, pair.decode)]
    for one, other in zip(ends, (pair.prefill, pair.decode), strict=True):
        assert {**_transfer_config(one), "kv_role": "kv_both"} == _transfer_config(other)
    body = {"prompt": [10 + 7 * number**2 % 400 for number in range(300)], "max_tokens": 24}
    alone = await _alone(session, pair, storage, body)
    with gateway(Order.PREFILL_FIRST, ends[:1], ends[1:], pair.logs) as front:
        before = pair.decode.external_tokens
        got = await complete(session, front.url, body)
        assert (got.status, got.text) == (200, alone.text)
        await eventually(lambda: pair.decode.external_tokens - before == _moved(got), 20, "the blocks did not come")
        assert front.state()["outcomes"]["split"] == 1


def _transfer_config(engine: Engine) -> dict[str, Any]:
    site = Site("127.0.0.1", {}, engine.storage)
    args = engine_command(engine.spec, engine.role, site=site, listen="127.0.0.1", port=engine.port).args
    config: dict[str, Any] = json.loads(args[args.index("--kv-transfer-config") + 1])
    return config


async def test_a_wiped_directory_costs_a_local_prefill(
    session: aiohttp.ClientSession, front: Gateway, pair: Pair, storage: Path
) -> None:
    """D gets the gateway's request when the blocks that P saved are gone."""
    body = {"prompt": make_prompt(11, 120), "max_tokens": 24}
    alone = await _alone(session, pair, storage, body)
    first = await complete(session, front.url, body)
    before = pair.decode.metrics()
    _wipe(storage)
    again = await complete(session, pair.decode.url, body)
    assert [first.text, again.text] == [alone.text] * 2
    after = pair.decode.metrics()
    assert after["external_kv_transfer"] == before["external_kv_transfer"]
    assert after["local_compute"] - before["local_compute"] == again.usage["prompt_tokens"]


async def test_a_dead_prefill_is_survived(
    session: aiohttp.ClientSession, front: Gateway, pair: Pair, storage: Path
) -> None:
    body = {"prompt": make_prompt(13, 120), "max_tokens": 24}
    alone = await _alone(session, pair, storage, body)
    before = front.state()["outcomes"]["whole"]
    await asyncio.to_thread(pair.prefill.kill)
    got = await complete(session, front.url, body)
    assert (got.status, got.text) == (200, alone.text)
    assert front.state()["outcomes"]["whole"] == before + 1
