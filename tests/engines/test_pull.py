"""NIXL, PrefillFirst: D pulls from P. Real vLLM engines."""

import asyncio
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pdx_api.connectors.families import Pull
from pdx_api.connectors.nixl import Nixl
from pdx_api.names import Order
from tests import sdk_suite
from tests.engines.conftest import Pair, running_pair
from tests.engines.support import campaign
from tests.engines.support.agents import Agents, check_anthropics_own_tests
from tests.engines.support.api_table import ApiTable
from tests.engines.support.harness import MODEL, Gateway, complete, eventually, make_prompt
from tests.engines.support.openai_client import OpenAIClient
from tests.engines.support.probing import check_another, check_probe


@pytest.fixture(scope="module")
def pair(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running_pair(tiny_model, tmp_path_factory.mktemp("pull"), "PrefillFirst") as engines:
        yield engines


async def test_pdx_probe(pair: Pair) -> None:
    ends = pair.prefill, pair.decode
    await check_another(*ends, "NIXL", Order.CONCURRENT, "OtherOrder")
    await check_another(*ends, "SharedStorage", Order.PREFILL_FIRST, "OtherConnector")
    await check_probe(*ends)


async def test_text_is_a_single_engines_and_the_prompt_came_from_outside(
    session: aiohttp.ClientSession, front: Gateway, pair: Pair
) -> None:
    await campaign.check_text_and_transfer(session, front, pair.prefill, pair.decode, moves=True)


async def test_foreign_kv_shows_in_the_text(session: aiohttp.ClientSession, front: Gateway, pair: Pair) -> None:
    """The negative control: were D to decode over another prompt's KV, the comparison of texts would fail."""
    own, foreign = make_prompt(1, 100), make_prompt(2, 100)
    params = await _prefill(session, pair, foreign)
    body = {"prompt": own, "max_tokens": 24, "kv_transfer_params": params}
    over_foreign = await complete(session, pair.decode.url, body)
    alone = await complete(session, pair.prefill.url, {"prompt": own, "max_tokens": 24})
    assert over_foreign.status == 200
    assert alone.text != over_foreign.text


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"return_token_ids": True}, {"return_prompt_text": True}])
async def test_a_chat_whose_tokens_come_from_prefill(
    session: aiohttp.ClientSession, front: Gateway, pair: Pair, more: dict[str, Any]
) -> None:
    """The body is long, so D gets P's tokens instead of rendering the messages again; the answer is the same."""
    prompt = f"{make_prompt(front.number, 60)} {sorted(more)}"
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 16, "user": "u" * 20_000, **more}
    before = pair.decode.external_tokens
    through = await complete(session, front.url, body)
    assert pair.decode.external_tokens > before
    alone = await complete(session, pair.prefill.url, body)
    assert (through.status, through.text) == (200, alone.text)
    if "stream" not in more:
        shown = [await _shown(session, engine.url, body) for engine in (front, pair.prefill)]
        assert shown[0] == shown[1]


async def _shown(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> tuple[Any, Any, Any]:
    """What an answer shows of the prompt."""
    asked = {"model": MODEL, "temperature": 0, **body}
    async with session.post(f"{url}/v1/chat/completions", json=asked) as response:
        found = await response.json()
    return found.get("prompt_token_ids"), found.get("prompt_text"), found["usage"]["prompt_tokens"]


async def test_a_refused_leg_frees_prefill_only_after_a_first_transfer(
    session: aiohttp.ClientSession, front: Gateway, pair: Pair
) -> None:
    """What aftercare relies on: once D has fetched from P, a leg that D refuses makes P free its blocks."""
    await eventually(lambda: pair.prefill.kv_usage == 0, 40, "blocks of an earlier test")
    params = await _prefill(session, pair, make_prompt(3, 100))
    assert pair.prefill.kv_usage > 0
    body = {"prompt": ".", "max_tokens": 2**31 - 1, "kv_transfer_params": params}
    assert (await complete(session, pair.decode.url, body)).status == 400
    await eventually(lambda: pair.prefill.kv_usage == 0, 10, "the refusal has not freed P's blocks")


async def test_transfer_probes_see_kv_move(session: aiohttp.ClientSession, pair: Pair) -> None:
    await campaign.check_transfer_probes(session, Order.PREFILL_FIRST, (pair.prefill, pair.decode), pair.logs)


async def test_hang_ups_are_settled(session: aiohttp.ClientSession, front: Gateway, pair: Pair) -> None:
    before = pair.prefill.metrics()
    outcomes = await campaign.hang_up_at_random(session, front, 100, seed=1)
    assert set(outcomes) == {200, "left"}
    await campaign.check_settled(front, pair.prefill, pair.decode, before=before)


async def test_long_prefills_are_stopped_when_their_clients_leave(
    session: aiohttp.ClientSession, front: Gateway, pair: Pair
) -> None:
    """Clients leave while their prompts wait behind others that keep P busy for seconds."""
    before, sent = front.state()["settlements"], _sent(front)
    prefills = pair.prefill.metrics()["time_to_first_token_seconds_count"]
    own = [asyncio.create_task(_long_prefill(session, pair.prefill.url, 4000 + number)) for number in range(40)]
    await eventually(lambda: pair.prefill.metrics()["num_requests_waiting"] > 20, 10, "P has nothing to do")
    clients = [asyncio.create_task(_long_prefill(session, front.url, 4100 + number)) for number in range(8)]
    await eventually(lambda: _sent(front) > sent, 10, "the gateway sends P nothing")
    for client in clients:
        client.cancel()
    await eventually(
        lambda: front.state()["settlements"]["prefill_stopped"] > before["prefill_stopped"], 30, "no prefill is stopped"
    )
    await eventually(lambda: front.state()["inFlight"]["settling"] == 0, 30, "something is still being settled")
    after = front.state()["settlements"]
    assert not all(task.done() for task in own), "P was not busy for long enough"
    for task in own:
        task.cancel()
    await asyncio.wait([*clients, *own])
    assert after["lease"] == before["lease"]
    await eventually(lambda: pair.prefill.metrics()["num_requests_running"] == 0, 20, "a prefill goes on")
    prefills = pair.prefill.metrics()["time_to_first_token_seconds_count"] - prefills
    assert prefills < len(own), "P has prefilled prompts of clients that had left"
    await eventually(lambda: pair.prefill.kv_usage == 0, 35, "P still holds blocks")


async def _long_prefill(session: aiohttp.ClientSession, url: str, number: int) -> None:
    """A prompt of nearly the model's length."""
    await complete(session, url, {"prompt": make_prompt(number, 1300), "max_tokens": 8})


def _sent(front: Gateway) -> int:
    """How many legs the gateway has sent to P's."""
    with urllib.request.urlopen(f"http://127.0.0.1:{front.admin_port}/metrics", timeout=10) as page:
        found = re.search(r'^pdx_phase_seconds_count\{phase="to_prefill"\} (\S+)', page.read().decode(), re.MULTILINE)
    return int(float(found[1])) if found else 0


@pytest.mark.parametrize("rounds", campaign.ROUNDS)
async def test_engines_that_are_killed(
    rounds: int, session: aiohttp.ClientSession, front: Gateway, pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(rounds):
        lines = await campaign.check_kills(session, [front], (pair.prefill, pair.decode), 100_000 * (5 + number))
        campaign.print_lines(lines, capsys)


async def _prefill(session: aiohttp.ClientSession, pair: Pair, prompt: str) -> object:
    family = Nixl().family(Order.PREFILL_FIRST)
    assert isinstance(family, Pull)
    body = {"prompt": prompt, "max_tokens": 1, "kv_transfer_params": dict(family.prefill_params)}
    async with session.post(f"{pair.prefill.url}/v1/completions", json=body) as response:
        assert response.status == 200
        return (await response.json())["kv_transfer_params"]


class TestOpenAIClient(OpenAIClient):
    """Every case of `openai_client` in this wiring."""


async def test_what_anthropics_own_tests_find_at_an_engine(front: Gateway, pair: Pair, tmp_path: Path) -> None:
    await check_anthropics_own_tests(front, pair, tmp_path, sdk_suite.EACH_ONCE)


class TestAgents(Agents):
    """Conversations of coding agents in this wiring."""


class TestApiTable(ApiTable):
    """Every example of docs/api.md in this wiring."""
