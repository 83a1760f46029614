"""Mooncake over TCP in every order: P writes into D's blocks. Real vLLM engines."""

import asyncio
import itertools
import json
import os
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pdx_api.connectors.families import AtBootstrap, Push
from pdx_api.connectors.mooncake import Mooncake
from pdx_api.names import Order
from tests.engines.conftest import Pair, mooncake_environment, running_pair
from tests.engines.support import campaign
from tests.engines.support.api_table import counted, differences, post
from tests.engines.support.harness import MODEL, ROOT, Gateway, complete, eventually, gateway, make_prompt
from tests.engines.support.probing import check_another, check_probe

TIMEOUT = "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT"
TIMEOUT_SECONDS = 60
"""Until P's connector frees what nothing else has freed."""
FREED_SECONDS = 20.0
_late: list[float] = []
"""Seconds of the waits that took longer than `FREED_SECONDS`."""
"""Long before the engines' own time-out of 60 s."""
FAMILY = Mooncake().family(Order.CONCURRENT)
ALWAYS = {
    (Order.PREFILL_FIRST, "messages", "whole"),
    (Order.PREFILL_FIRST, "messages", "stream"),
    (Order.CONCURRENT, "messages", "whole"),
    (Order.PREFILL_FIRST, "responses", "whole"),
    (Order.DECODE_FIRST, "responses", "stream"),
    (Order.CONCURRENT, "responses", "whole"),
}
"""Agents' requests that run always: responses in each order. Of messages P goes first in every order."""
AGENTS = [
    pytest.param(*case, id="-".join(case), marks=() if case in ALWAYS else pytest.mark.soak)
    for case in itertools.product(Order, ("messages", "responses"), ("whole", "stream"))
]


@pytest.fixture(scope="module")
def env() -> dict[str, str]:
    return mooncake_environment()


@pytest.fixture(scope="module")
def pair(tiny_model: Path, env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    logs = tmp_path_factory.mktemp("mooncake")
    with running_pair(tiny_model, logs, "Concurrent", "Mooncake", {**env, TIMEOUT: str(TIMEOUT_SECONDS)}) as engines:
        yield engines


@pytest.fixture(params=list(Order), ids=str)
def front(request: pytest.FixtureRequest, pair: Pair) -> Iterator[Gateway]:
    with gateway(request.param, [pair.prefill], [pair.decode], pair.logs) as running:
        yield running


async def _free(pair: Pair) -> None:
    """Wait until no block is held: at most one wait of this file may last until P's time-out.

    On a busy machine a client can leave while P's answer, D's notice and the gateway's leg cross.
    """

    def free() -> bool:
        return pair.prefill.kv_usage == 0 and pair.decode.kv_usage == 0

    began = time.monotonic()
    await eventually(free, TIMEOUT_SECONDS + FREED_SECONDS, "blocks are held beyond P's time-out")
    if (seconds := time.monotonic() - began) > FREED_SECONDS:
        _late.append(seconds)
    assert len(_late) <= 1, f"blocks were held until P's time-out: {_late}"


async def test_pdx_probe(pair: Pair) -> None:
    ends = pair.prefill, pair.decode
    await check_another(*ends, "NIXL", Order.PREFILL_FIRST, "OtherConnector")
    for order in Order:
        await check_probe(*ends, order)


@pytest.mark.parametrize(("front", "agent", "form"), AGENTS, indirect=["front"])
async def test_agents_requests_are_split(
    session: aiohttp.ClientSession, front: Gateway, pair: Pair, agent: str, form: str
) -> None:
    """Of messages P goes first in every order: it has no `ignore_eos`."""
    stream = form == "stream"
    prompt = make_prompt(9_000_000 + 10 * front.number + 2 * (agent == "messages") + stream, 60)
    chat = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 12}
    body = chat if agent == "messages" else {"input": prompt, "max_output_tokens": 12}
    body |= {"model": MODEL, "temperature": 0, "stream": stream}
    before = pair.decode.external_tokens
    status, headers, got = await post(session, f"{front.url}/v1/{agent}", body)
    _, _, own = await post(session, f"{pair.prefill.url}/v1/{agent}", body)
    assert (status, "x-pdx-prefill" in headers) == (200, True)
    assert differences(counted(own), counted(got)) == []
    await eventually(lambda: pair.decode.external_tokens - before >= 60, 5, "no KV has moved")
    await _free(pair)


async def test_the_orders(session: aiohttp.ClientSession, front: Gateway, pair: Pair) -> None:
    """A single engine's text, the prompt from outside, and nothing held behind clients that leave at any moment."""
    await campaign.check_text_and_transfer(session, front, pair.prefill, pair.decode, moves=True)
    outcomes = await campaign.hang_up_at_random(session, front, 40, seed=30 + list(Order).index(front.order))
    assert set(outcomes) == {200, "left"}
    await campaign.check_idle(front)
    await _free(pair)
    for stream in (False, True):  # D refuses one, and both the other: P keeps no place for either
        body = {"prompt": make_prompt(7, 20), "stream": stream}
        assert (await complete(session, front.url, {**body, "max_tokens": 2**31 - 1})).status == 400
        assert (await complete(session, front.url, {**body, "prompt": make_prompt(8, 5000)})).status == 400
    answers = [
        await complete(session, front.url, {"prompt": make_prompt(90 + n, 60), "max_tokens": 4}) for n in range(3)
    ]
    assert [answer.status for answer in answers] == [200] * 3
    await _free(pair)
    settled = front.state()["settlements"]
    assert not settled["decode_lost"], settled


def _legs(pair: Pair, transfer_id: str) -> tuple[dict[str, Any], dict[str, Any]]:
    assert isinstance(FAMILY, Push)
    assert isinstance(FAMILY.identity, AtBootstrap)
    with urllib.request.urlopen(f"http://127.0.0.1:{pair.prefill.side_port}/query", timeout=5) as answer:
        identity = FAMILY.identity.read(json.load(answer), "127.0.0.1", pair.prefill.side_port, 0)
    transfer_id = f"{transfer_id}-{uuid.uuid4().hex}"  # a used one is spent, also for a test that is run again
    prefill = {"max_tokens": 1, "ignore_eos": True, "kv_transfer_params": dict(FAMILY.prefill_params(transfer_id))}
    return prefill, {"kv_transfer_params": dict(FAMILY.decode_params(transfer_id, identity))}


async def test_clients_that_leave_reserve_no_place(session: aiohttp.ClientSession, front: Gateway, pair: Pair) -> None:
    """A D whose answer is no stream notifies P when it is closed, even if it has the KV (vLLM 0.32).

    Each notice reserves one of P's 20 places until a leg with its ID. Without one, 24 clients stop every hand-off.
    """
    bodies = [{"prompt": make_prompt(500 + n, 40), "max_tokens": 1200, "ignore_eos": True} for n in range(24)]
    running = [asyncio.create_task(complete(session, front.url, body)) for body in bodies]
    await eventually(lambda: pair.decode.metrics()["num_requests_running"] >= 4, 20, "D decodes nothing")
    for task in running:
        task.cancel()
        await asyncio.sleep(0.1)  # D sends notices of one moment together, and they take one place
    await campaign.check_idle(front)
    await _free(pair)
    async with asyncio.timeout(FREED_SECONDS):
        for n in range(3):
            body = {"prompt": make_prompt(600 + n, 40), "max_tokens": 2}
            assert (await complete(session, front.url, body)).status == 200


async def test_foreign_kv_shows_in_the_text(session: aiohttp.ClientSession, pair: Pair) -> None:
    """The negative control: were D to decode over another prompt's KV, the comparison of texts would fail."""
    own, foreign = make_prompt(1, 100), make_prompt(2, 100)
    prefill, decode = _legs(pair, "foreign")
    assert (await complete(session, pair.prefill.url, {"prompt": foreign, **prefill})).status == 200
    over_foreign = await complete(session, pair.decode.url, {"prompt": own, "max_tokens": 24, **decode})
    alone = await complete(session, pair.prefill.url, {"prompt": own, "max_tokens": 24})
    assert over_foreign.status == 200
    assert alone.text != over_foreign.text


async def test_what_frees_blocks(session: aiohttp.ClientSession, pair: Pair) -> None:
    """What the gateway relies on (docs/settling.md)."""
    prompt = make_prompt(3, 100)
    prefill, decode = _legs(pair, "refused")
    await complete(session, pair.prefill.url, {"prompt": prompt, **prefill})
    assert pair.prefill.kv_usage > 0
    assert (await complete(session, pair.decode.url, {"prompt": ".", "max_tokens": 2**31 - 1, **decode})).status == 400
    await _free(pair)  # a leg that D refuses

    long = make_prompt(4, 400)
    prefill, decode = _legs(pair, "closed")
    waits = asyncio.create_task(complete(session, pair.decode.url, {"prompt": long, "max_tokens": 4, **decode}))
    await eventually(lambda: pair.decode.kv_usage > 0, 20, "D does not wait")
    waits.cancel()
    await asyncio.sleep(0.5)
    assert pair.decode.kv_usage > 0, "D's end has freed its blocks: P need not answer"
    await complete(session, pair.prefill.url, {"prompt": long, **prefill})
    await _free(pair)  # a P leg after D has gone

    prefill, decode = _legs(pair, "short")
    waits = asyncio.create_task(
        complete(session, pair.decode.url, {"prompt": make_prompt(5, 400), "max_tokens": 4, **decode})
    )
    await eventually(lambda: pair.decode.kv_usage > 0, 20, "D does not wait")
    await complete(session, pair.prefill.url, {"prompt": ".", **prefill})
    assert (await waits).status == 500
    await _free(pair)  # a P leg with less KV than D needs


@pytest.mark.parametrize("returns", [False, pytest.param(True, marks=pytest.mark.soak)])
async def test_a_dead_p_is_survived(session: aiohttp.ClientSession, pair: Pair, *, returns: bool) -> None:
    """P dies amid requests: every client gets its answer. When P is back, KV moves under its new identity."""
    await campaign.revive(pair.prefill)
    with gateway(Order.CONCURRENT, [pair.prefill], [pair.decode], pair.logs) as front:
        bodies = [{"prompt": make_prompt(200 + n, 200), "max_tokens": 8} for n in range(6)]
        tasks = [asyncio.create_task(complete(session, front.url, body)) for body in bodies]
        await asyncio.sleep(0.1)
        pair.prefill.kill()
        assert [answer.status for answer in await asyncio.gather(*tasks)] == [200] * 6
        assert (await complete(session, front.url, bodies[0])).status == 200
        if not returns:
            return
        pair.prefill.start()
        await asyncio.to_thread(pair.prefill.wait_until_healthy)
        await asyncio.to_thread(front.wait_until_warm)
        before = pair.decode.external_tokens
        again = await complete(session, front.url, {"prompt": make_prompt(300, 100), "max_tokens": 4})
        assert again.status == 200
        await eventually(lambda: pair.decode.external_tokens > before, 20, "no KV from the P that came back")


@pytest.mark.soak
def test_the_example(tiny_model: Path, env: dict[str, str], tmp_path: Path) -> None:
    """`pdx up examples/connectors/mooncake.yaml --once`."""
    command = [
        *(sys.executable, "-m", "pdx_cli", "up", "examples/connectors/mooncake.yaml", "--once"),
        *("--set", f"spec.model.source.path={tiny_model}", "--run-dir", str(tmp_path / "run")),
    ]
    libraries = {name: value for name, value in env.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **libraries}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert ended.stdout.splitlines()[-1] == "KV moved: yes"
