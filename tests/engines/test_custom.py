"""The connector of docs/connectors/write-your-own.md between real vLLM engines, through `connector: Custom`."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.engines.conftest import Pair, running_engines
from tests.engines.support import campaign
from tests.engines.support.harness import (
    ROOT,
    Answer,
    Gateway,
    complete,
    eventually,
    make_prompt,
    tiny_spec,
)
from tests.engines.support.probing import check_probe

CODE = ROOT / "examples" / "connectors" / "write-your-own"
KEEP_SECONDS = 4
OWN = 1
"""Prompt tokens that D computes itself: the forward pass of the first token needs one."""
OWN_PARAMS = {"do_remote_decode": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kv")


@pytest.fixture(scope="module")
def pair(tiny_model: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    logs = tmp_path_factory.mktemp("custom")
    custom = {"className": "FolderConnector", "modulePath": "folder_connector", "code": {"directory": str(CODE)}}
    config = {"folder": str(folder), "keep_seconds": KEEP_SECONDS}
    spec = tiny_spec(tiny_model, connector="Custom", custom=custom, config=config)
    with running_engines(spec, logs) as engines:
        yield engines


async def prefill(session: aiohttp.ClientSession, pair: Pair, prompt: list[int]) -> dict[str, Any]:
    """What P answers about the KV of a prompt."""
    body = {"prompt": prompt, "max_tokens": 1, "kv_transfer_params": OWN_PARAMS}
    async with session.post(f"{pair.prefill.url}/v1/completions", json=body) as response:
        assert response.status == 200
        params = (await response.json())["kv_transfer_params"]
    assert isinstance(params, dict)
    return params


async def decode(session: aiohttp.ClientSession, pair: Pair, prompt: list[int], params: dict[str, Any]) -> Answer:
    return await complete(session, pair.decode.url, {"prompt": prompt, "max_tokens": 24, "kv_transfer_params": params})


async def alone(session: aiohttp.ClientSession, pair: Pair, prompt: list[int]) -> str:
    return (await complete(session, pair.prefill.url, {"prompt": prompt, "max_tokens": 24})).text


def tokens(seed: int, count: int) -> list[int]:
    """A prompt of its own for every seed, in tokens of the tiny model's letters."""
    return [10 + (seed * 7919 + number * (31 + seed)) % 200 for number in range(count)]


def files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def test_pdx_probe(pair: Pair) -> None:
    await check_probe(pair.prefill, pair.decode)


async def test_text_is_a_single_engines_and_the_prompt_came_from_outside(
    session: aiohttp.ClientSession, front: Gateway, pair: Pair
) -> None:
    await campaign.check_text_and_transfer(session, front, pair.prefill, pair.decode, moves=True, own=OWN)


async def test_a_prompt_of_several_chunks(session: aiohttp.ClientSession, front: Gateway, pair: Pair) -> None:
    """More tokens than one step of P holds (on the CPU 2048)."""
    prompt = tokens(campaign.fresh() + 1, 3000)
    before = pair.decode.external_tokens
    got = await complete(session, front.url, {"prompt": prompt, "max_tokens": 24})
    assert got.text == await alone(session, pair, prompt)
    assert pair.decode.external_tokens - before == len(prompt) - OWN


async def test_foreign_kv_shows_in_the_text(session: aiohttp.ClientSession, pair: Pair) -> None:
    """The negative control: were D to decode over another prompt's KV, the comparison of texts would fail."""
    mine, foreign = tokens(2, 300), tokens(3, 300)
    over_foreign = await decode(session, pair, mine, await prefill(session, pair, foreign))
    assert over_foreign.status == 200
    assert over_foreign.text != await alone(session, pair, mine)


async def test_what_is_gone_is_computed_by_decode(session: aiohttp.ClientSession, pair: Pair, folder: Path) -> None:
    prompt = tokens(4, 300)
    params = await prefill(session, pair, prompt)
    for path in files(folder):
        path.unlink()
    before = pair.decode.external_tokens
    assert (await decode(session, pair, prompt, params)).text == await alone(session, pair, prompt)
    assert pair.decode.external_tokens == before


async def test_what_cannot_be_read_fails_that_request_alone(
    session: aiohttp.ClientSession, pair: Pair, folder: Path
) -> None:
    prompt = tokens(5, 300)
    params = await prefill(session, pair, prompt)
    (path,) = [path for path in files(folder) if path.name.startswith(params["folder_key"])]
    path.write_bytes(path.read_bytes()[:1000])
    assert (await decode(session, pair, prompt, params)).status == 500
    params = await prefill(session, pair, prompt)
    assert (await decode(session, pair, prompt, params)).text == await alone(session, pair, prompt)


async def test_a_leg_that_decode_refuses_removes_the_files(
    session: aiohttp.ClientSession, pair: Pair, folder: Path
) -> None:
    """What the gateway does when a client has left after P's leg."""
    params = await prefill(session, pair, tokens(6, 300))
    assert files(folder)
    refused = {"prompt": ".", "max_tokens": 2**31 - 1, "kv_transfer_params": params}
    assert (await complete(session, pair.decode.url, refused)).status == 400
    await eventually(lambda: not files(folder), 3, "the files are there")


async def test_hang_ups_leave_no_files(
    session: aiohttp.ClientSession, front: Gateway, pair: Pair, folder: Path
) -> None:
    outcomes = await campaign.hang_up_at_random(session, front, 60, seed=7)
    assert set(outcomes) == {200, "left"}
    await campaign.check_idle(front)

    deadline = time.monotonic() + KEEP_SECONDS + 20
    while files(folder):
        assert time.monotonic() < deadline, files(folder)
        # P removes what nobody fetched in one of its next steps.
        await complete(session, pair.prefill.url, {"prompt": make_prompt(1, 5), "max_tokens": 1})
        await asyncio.sleep(0.2)


async def test_a_dead_prefill_is_survived(session: aiohttp.ClientSession, front: Gateway, pair: Pair) -> None:
    """The last test: P does not come back."""
    await campaign.revive(pair.prefill)
    prompt = tokens(8, 300)
    params = await prefill(session, pair, prompt)
    expected = await alone(session, pair, prompt)
    pair.prefill.kill()
    assert (await decode(session, pair, prompt, params)).text == expected, "what P saved is there without P"
    got = await complete(session, front.url, {"prompt": prompt, "max_tokens": 24})
    assert (got.status, got.text) == (200, expected)
