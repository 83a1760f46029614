"""`parallelism.data: 2` of P and D on real vLLM: each rank of P hands over to each rank of D, by pull and by push."""

import asyncio
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import pytest

from pdx_api.connectors.families import AtBootstrap, Identity, Pull, Push
from pdx_api.connectors.nixl import Nixl
from pdx_api.names import Order
from pdx_api.spec.types import Parallelism
from tests.engines.conftest import Pair, mooncake_environment, running_engines
from tests.engines.support import campaign
from tests.engines.support.harness import Answer, complete, gateway, make_prompt, tiny_spec

RANKS = 2
COMBINATIONS = list(product(range(RANKS), range(RANKS)))
WIRINGS = [
    pytest.param(("NIXL", Order.PREFILL_FIRST), marks=pytest.mark.soak, id="NIXL-PrefillFirst"),
    pytest.param(("NIXL", Order.DECODE_FIRST), id="NIXL-DecodeFirst"),
    pytest.param(("Mooncake", Order.CONCURRENT), marks=pytest.mark.soak, id="Mooncake-Concurrent"),
]
"""One of them always, all in `make soak`: each starts four engine cores."""


@pytest.fixture(scope="module", params=WIRINGS)
def wiring(request: pytest.FixtureRequest) -> tuple[str, Order]:
    connector, order = request.param
    return str(connector), Order(order)


def _environment(connector: str) -> dict[str, str]:
    return mooncake_environment() if connector == "Mooncake" else {}


@pytest.fixture(scope="module")
def pair(wiring: tuple[str, Order], tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    connector, order = wiring
    logs, env = tmp_path_factory.mktemp("ranks"), _environment(connector)
    spec = tiny_spec(tiny_model, order=order, connector=connector)
    ranked = {"parallelism": Parallelism(data=RANKS)}
    assert spec.prefill is not None
    assert spec.decode is not None
    pools = {"prefill": spec.prefill.model_copy(update=ranked), "decode": spec.decode.model_copy(update=ranked)}
    spec = spec.model_copy(update=pools)
    with running_engines(spec, logs, env=env) as engines:
        yield engines


def _pinned(rank: int, request_id: str = "") -> dict[str, str]:
    return {"X-data-parallel-rank": str(rank), "X-Request-Id": request_id or uuid4().hex}


async def _params(session: aiohttp.ClientSession, pair: Pair, rank: int, body: dict[str, Any], id_: str) -> Any:
    """Prefill at one rank of P; its parameters."""
    url, headers = f"{pair.prefill.url}/v1/completions", _pinned(rank, id_)
    async with session.post(url, json={**body, "max_tokens": 1}, headers=headers) as response:
        assert response.status == 200
        return (await response.json()).get("kv_transfer_params")


async def _pull(session: aiohttp.ClientSession, pair: Pair, ranks: tuple[int, int], prompt: str) -> Answer:
    family = Nixl().family(Order.PREFILL_FIRST)
    assert isinstance(family, Pull)
    body: dict[str, Any] = {"prompt": prompt, "kv_transfer_params": dict(family.prefill_params)}
    params = await _params(session, pair, ranks[0], body, uuid4().hex)
    body = {"prompt": prompt, "max_tokens": 16, "kv_transfer_params": params}
    return await complete(session, pair.decode.url, body, _pinned(ranks[1]))


async def _push(session: aiohttp.ClientSession, pair: Pair, ranks: tuple[int, int], prompt: str) -> Answer:
    """D's leg goes first, with the identity of the rank that will push."""
    spec = pair.prefill.spec
    family = spec.connector.family(spec.order)
    assert isinstance(family, Push)
    identity, id_ = await _identity(session, pair, ranks[0], family), uuid4().hex
    body = {"prompt": prompt, "max_tokens": 16, "kv_transfer_params": dict(family.decode_params(id_, identity))}
    decode = asyncio.create_task(complete(session, pair.decode.url, body, _pinned(ranks[1], id_)))
    await asyncio.sleep(0.2)
    own = {"prompt": prompt, "kv_transfer_params": dict(family.prefill_params(id_))}
    await _params(session, pair, ranks[0], own, id_)
    return await decode


async def _identity(session: aiohttp.ClientSession, pair: Pair, rank: int, family: Push) -> Identity:
    source = family.identity
    if isinstance(source, AtBootstrap):
        async with session.get(f"http://127.0.0.1:{pair.prefill.side_port}{source.path}") as answer:
            return source.read(await answer.json(), "127.0.0.1", pair.prefill.side_port, rank)
    id_ = uuid4().hex
    body = {"prompt": make_prompt(campaign.fresh(), 5), "kv_transfer_params": dict(family.prefill_params(id_))}
    return source.read(await _params(session, pair, rank, body, id_))


def _prompt_tokens(pair: Pair) -> tuple[dict[int, float], dict[int, float]]:
    """Of each rank of P and of D."""
    found = pair.prefill.prompt_tokens(), pair.decode.prompt_tokens()
    assert [set(each) for each in found] == [set(range(RANKS))] * 2
    return found


async def test_every_combination_of_ranks_hands_over(
    session: aiohttp.ClientSession, wiring: tuple[str, Order], pair: Pair
) -> None:
    hand_over = _pull if wiring[1] is Order.PREFILL_FIRST else _push
    for ranks in COMBINATIONS:
        prompt = make_prompt(campaign.fresh(), 120)
        before, counts = pair.decode.external_tokens, _prompt_tokens(pair)
        got = await hand_over(session, pair, ranks, prompt)
        assert got.status == 200, got.text
        served = [
            [rank for rank, count in after.items() if count > earlier[rank]]
            for earlier, after in zip(counts, _prompt_tokens(pair), strict=True)
        ]
        assert served == [[rank] for rank in ranks], "other ranks of P or D have served"
        alone = await complete(session, pair.prefill.url, {"prompt": prompt, "max_tokens": 16})
        assert got.text == alone.text, ranks
        assert pair.decode.external_tokens - before == got.usage["prompt_tokens"], ranks


async def test_the_gateway_uses_all_ranks(
    session: aiohttp.ClientSession, wiring: tuple[str, Order], pair: Pair
) -> None:
    order = wiring[1]
    with gateway(order, [pair.prefill], [pair.decode], pair.logs, ranks=RANKS) as front:
        endpoints = [each for each in front.state()["endpoints"] if each["role"] == "prefill"]
        assert len(endpoints) == (1 if order is Order.PREFILL_FIRST else RANKS)
        before = pair.decode.external_tokens
        prompts = [make_prompt(campaign.fresh() + number, 60) for number in range(8)]
        answers = await asyncio.gather(
            *(complete(session, front.url, {"prompt": prompt, "max_tokens": 8}) for prompt in prompts)
        )
        assert [each.status for each in answers] == [200] * 8
        tokens = sum(each.usage["prompt_tokens"] for each in answers)
        assert pair.decode.external_tokens - before == tokens
        assert front.state()["outcomes"]["split"] == 8
