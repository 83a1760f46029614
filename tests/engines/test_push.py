"""NIXL, DecodeFirst and Concurrent: P pushes into D's blocks. Real vLLM engines."""

from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from pdx_api.names import Order
from tests.api_document import Parameter
from tests.engines.conftest import Pair, running_pair
from tests.engines.support import campaign
from tests.engines.support.agents import Agents
from tests.engines.support.api_table import ONE_OF_EACH_WAY, ApiTable
from tests.engines.support.harness import Gateway, gateway
from tests.engines.support.openai_client import OpenAIClient
from tests.engines.support.probing import check_another, check_probe


@pytest.fixture(scope="module")
def pair(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running_pair(tiny_model, tmp_path_factory.mktemp("push"), "Concurrent") as engines:
        yield engines


@pytest.fixture(scope="module", params=[Order.DECODE_FIRST, Order.CONCURRENT], ids=str)
def front(request: pytest.FixtureRequest, pair: Pair) -> Iterator[Gateway]:
    with gateway(request.param, [pair.prefill], [pair.decode], pair.logs) as running:
        yield running


async def test_pdx_probe(pair: Pair) -> None:
    ends = pair.prefill, pair.decode
    await check_another(*ends, "NIXL", Order.PREFILL_FIRST, "OtherOrder")
    for order in (Order.DECODE_FIRST, Order.CONCURRENT):
        await check_probe(*ends, order)


async def test_text_is_a_single_engines_and_the_prompt_came_from_outside(
    session: aiohttp.ClientSession, front: Gateway, pair: Pair
) -> None:
    await campaign.check_text_and_transfer(session, front, pair.prefill, pair.decode, moves=True)


@pytest.mark.parametrize(
    "front",
    [pytest.param(Order.DECODE_FIRST, marks=pytest.mark.soak), Order.CONCURRENT],
    ids=str,
    indirect=True,
    scope="module",
)
async def test_clients_with_one_request_id_get_their_own_answers(
    session: aiohttp.ClientSession, front: Gateway, pair: Pair
) -> None:
    await campaign.check_same_request_id(session, front, pair.prefill, pair.decode)


async def test_transfer_probes_see_kv_move(session: aiohttp.ClientSession, pair: Pair) -> None:
    await campaign.check_transfer_probes(session, Order.CONCURRENT, (pair.prefill, pair.decode), pair.logs)


async def test_hang_ups_are_settled(session: aiohttp.ClientSession, front: Gateway, pair: Pair) -> None:
    before = pair.prefill.metrics()
    outcomes = await campaign.hang_up_at_random(session, front, 100, seed=20 + list(Order).index(front.order))
    assert set(outcomes) == {200, "left"}
    await campaign.check_settled(front, pair.prefill, pair.decode, before=before)


@pytest.mark.parametrize("rounds", campaign.ROUNDS)
async def test_engines_that_are_killed(
    rounds: int, session: aiohttp.ClientSession, pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both orders at once. A P that dies costs D blocks of what was under way; D's own end gives them back."""
    ends = [pair.prefill], [pair.decode], pair.logs
    with gateway(Order.DECODE_FIRST, *ends) as first, gateway(Order.CONCURRENT, *ends) as second:
        for number in range(rounds):
            seed = 100_000 * (5 + number)
            campaign.print_lines(
                await campaign.check_kills(session, [first, second], (pair.prefill, pair.decode), seed), capsys
            )


@pytest.mark.soak
class TestOpenAIClient(OpenAIClient):
    """Every case of `openai_client` in this wiring. What the client sees depends on no order: see test_pull.py."""


@pytest.mark.soak
@pytest.mark.parametrize("front", [Order.CONCURRENT], ids=str, indirect=True, scope="module")
class TestAgents(Agents):
    """Conversations of coding agents in one push order."""


@pytest.mark.parametrize("front", [Order.CONCURRENT], ids=str, indirect=True, scope="module")
class TestApiTable(ApiTable):
    """The examples of docs/api.md in one push order: all in `make soak`, and one of each way always."""

    @pytest.mark.parametrize(("seed", "row"), ONE_OF_EACH_WAY)
    async def test_parameter(
        self, session: aiohttp.ClientSession, front: Gateway, pair: Pair, seed: int, row: Parameter
    ) -> None:
        await super().test_parameter(session, front, pair, seed, row)
