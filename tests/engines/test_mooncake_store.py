"""MooncakeStore over TCP: P saves into the pool, D finds it through a `mooncake_master`. Real vLLM engines."""

import asyncio
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pdx_api.connectors.mooncake_store import MooncakeStore
from pdx_api.names import Role
from tests.engines.conftest import Pair, mooncake_environment
from tests.engines.support import campaign
from tests.engines.support.campaign import SHAPES, fresh
from tests.engines.support.harness import (
    Answer,
    Engine,
    Gateway,
    SideProcess,
    complete,
    eventually,
    make_prompt,
    running,
    tiny_spec,
)
from tests.engines.support.probing import check_probe

BLOCK = 128
"""Tokens of a KV block on the CPU: what is saved and found as one."""
SWAP = """
import os, sys
from mooncake.store import MooncakeDistributedStore
master, own, foreign = sys.argv[1:]
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 64 << 20, "tcp", "", master) == 0
content = store.get(foreign)
assert content and store.remove(own, True) == 0 and store.put(own, content) == 0
os._exit(0)
"""
"""Puts one key's content under another."""


@dataclass(frozen=True)
class Served(Pair):
    master: SideProcess

    @property
    def master_address(self) -> str:
        return f"127.0.0.1:{self.master.site.ports['requests']}"

    def master_keys(self) -> list[str]:
        """What the pool holds."""
        url = f"http://127.0.0.1:{self.master.site.ports['admin']}/get_all_keys"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return str(answer.read().decode()).split()


@pytest.fixture(scope="module")
def env() -> dict[str, str]:
    return mooncake_environment()


@pytest.fixture(scope="module")
def pair(tiny_model: Path, env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    spec = tiny_spec(tiny_model, connector="MooncakeStore", poolSize="256Mi")
    logs = tmp_path_factory.mktemp("mooncake-store")
    master = SideProcess(spec, MooncakeStore().services[0], logs)
    prefill, decode = (Engine(spec, role, logs, services=(master,), env=env) for role in (Role.PREFILL, Role.DECODE))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        with running(master), running(prefill, decode):
            yield Served(prefill, decode, logs, master)


def _moved(answer: Answer) -> int:
    """What D can find: whole blocks, without the prompt's last token."""
    return (int(answer.usage["prompt_tokens"]) - 1) // BLOCK * BLOCK


async def _came(pair: Served, before: float, tokens: int) -> bool:
    """Whether D counts so many more tokens from outside."""
    try:
        await eventually(lambda: pair.decode.external_tokens - before == tokens, 20, "they did not come")
    except AssertionError:
        return False
    return True


async def test_pdx_probe(pair: Served) -> None:
    await check_probe(pair.prefill, pair.decode)


@pytest.mark.parametrize(("chat", "stream"), SHAPES)
async def test_text_is_a_single_engines_and_the_prompt_came_from_outside(
    chat: bool, stream: bool, session: aiohttp.ClientSession, front: Gateway, pair: Served
) -> None:
    """P saves behind its answer: on a busy machine D may look too early, and what it computes is the same text."""
    for _ in range(5):
        prompt = make_prompt(fresh(), 300)
        body: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
        body |= {"max_tokens": 24, "stream": stream, **({"stream_options": {"include_usage": True}} if stream else {})}
        before = pair.decode.external_tokens
        got = await complete(session, front.url, body)
        alone = await complete(session, pair.prefill.url, body)
        assert (got.status, got.complete, got.text) == (200, True, alone.text)
        assert len(alone.text) > 10, "a text that shows nothing proves nothing"
        assert _moved(got) > 0
        if await _came(pair, before, _moved(got)):
            return
    raise AssertionError("no prompt came from outside")


async def test_foreign_kv_shows_in_the_text(session: aiohttp.ClientSession, pair: Served, env: dict[str, str]) -> None:
    """The negative control: were D to decode over another prompt's KV, the comparison of texts would fail."""
    prompts = [make_prompt(fresh(), 140) for _ in range(2)]
    keys: list[set[str]] = [set(pair.master_keys())]
    for prompt in prompts:
        assert (await complete(session, pair.prefill.url, {"prompt": prompt, "max_tokens": 1})).status == 200
        await eventually(lambda: len(pair.master_keys()) > len(keys[-1]), 30, "P has not saved")
        keys.append(set(pair.master_keys()))
    (own,), (foreign,) = keys[1] - keys[0], keys[2] - keys[1]
    command = [sys.executable, "-c", SWAP, pair.master_address, own, foreign]
    await asyncio.to_thread(subprocess.run, command, env={**os.environ, **env}, check=True)
    before = pair.decode.external_tokens
    over_foreign = await complete(session, pair.decode.url, {"prompt": prompts[0], "max_tokens": 24})
    assert await _came(pair, before, _moved(over_foreign))
    alone = await complete(session, pair.prefill.url, {"prompt": prompts[0], "max_tokens": 24})
    assert over_foreign.status == 200
    assert alone.text != over_foreign.text


async def test_a_dead_master_costs_time_and_comes_back(
    session: aiohttp.ClientSession, front: Gateway, pair: Served
) -> None:
    """Engines compute by themselves while it is away, and use it again without a restart."""
    await asyncio.to_thread(pair.master.kill)
    for _ in range(2):
        body = {"prompt": make_prompt(fresh(), 160), "max_tokens": 16}
        got = await complete(session, front.url, body)
        assert (got.status, got.text) == (200, (await complete(session, pair.prefill.url, body)).text)
    pair.master.start()
    await asyncio.to_thread(pair.master.wait_until_healthy)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        before = pair.decode.external_tokens
        got = await complete(session, front.url, {"prompt": make_prompt(fresh(), 160), "max_tokens": 4})
        if await _came(pair, before, _moved(got)):
            return
    raise AssertionError("the master is not used again")


async def test_a_dead_p_is_survived(session: aiohttp.ClientSession, front: Gateway, pair: Served) -> None:
    """What it held is lost; while the master still names it, D finds it, cannot load it, and computes."""
    await campaign.revive(pair.prefill)
    body = {"prompt": make_prompt(fresh(), 160), "max_tokens": 16}
    stored = len(pair.master_keys())
    alone = await complete(session, pair.prefill.url, body)
    await eventually(lambda: len(pair.master_keys()) > stored, 30, "P has not saved")
    pair.prefill.kill()
    before = pair.decode.metrics()
    direct = await complete(session, pair.decode.url, body)
    assert (direct.status, direct.text) == (200, alone.text)
    after = pair.decode.metrics()
    failed = "mooncake_store_operation_failed_keys_total"
    assert after[failed] > before[failed], "D has not tried to load it"
    got = await complete(session, front.url, {"prompt": make_prompt(fresh(), 160), "max_tokens": 16})
    assert got.status == 200
