"""Hidden reasoning of about a minute passes deadlines that are much shorter. Real vLLM with a reasoning parser.

`/v1/messages` is not among the paths: vLLM 0.32 shows the reasoning of each message.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from pdx_api.names import Order, Role
from pdx_api.spec.types import Spec
from tests.engines.conftest import Pair
from tests.engines.support.harness import MODEL, Engine, gateway, running, tiny_spec

pytestmark = pytest.mark.soak
_TOKENS: Final = 7_000
"""What the tiny model generates in about a minute on a busy core."""
_LENGTH: Final = 8_192
_THINK: Final = {"!": "<think>", '"': "</think>"}
"""Characters of the tiny model's vocabulary that become the tokens of the parser `deepseek_r1`."""
_END: Final = 3
"""The ID of `</think>`: a bias keeps the model from it."""
_FLAGS: Final = ("--handoff-seconds", "5", "--first-event-seconds", "10", "--idle-seconds", "5")
_SHAPE: Final = {"model": MODEL, "stream": True, "include_reasoning": False, "temperature": 0, "ignore_eos": True}
BODIES: Final[dict[str, dict[str, Any]]] = {
    "/v1/chat/completions": {
        **_SHAPE,
        "messages": [{"role": "user", "content": "ba de fi"}],
        "max_tokens": _TOKENS,
        "logit_bias": {_END: -100},
        "stream_options": {"include_usage": True},
    },
    "/v1/responses": {
        **_SHAPE,
        "input": "go hu ka",
        "max_output_tokens": _TOKENS,
        "logit_bias": {_END: -100},
    },
}


@pytest.fixture(scope="module")
def thinking_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with the tokens of a reasoning parser, and a longer context."""
    place = tmp_path_factory.mktemp("models") / "thinking"
    shutil.copytree(tiny_model, place)
    tokenizer = json.loads((place / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    for character, token in _THINK.items():
        number = vocabulary[token] = vocabulary.pop(character)
        tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": number, "content": token})
    (place / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**config, "max_position_embeddings": _LENGTH}))
    return place


def _spec(model: Path, order: str) -> Spec:
    spec = tiny_spec(model, order=order, connector="NIXL")
    args = [*spec.engine.args, "--reasoning-parser", "deepseek_r1"]
    return spec.model_copy(update={"engine": spec.engine.model_copy(update={"args": args, "max_model_len": _LENGTH})})


@pytest.fixture(scope="module", params=["PrefillFirst", "Concurrent"])
def pair(
    request: pytest.FixtureRequest, thinking_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    spec, logs = _spec(thinking_model, request.param), tmp_path_factory.mktemp("reasoning")
    prefill, decode = (Engine(spec, role, logs) for role in (Role.PREFILL, Role.DECODE))
    with running(prefill, decode):
        yield Pair(prefill, decode, logs)


async def _stream(session: aiohttp.ClientSession, url: str, path: str) -> tuple[list[str], Any]:
    """The kinds of the events, and what the last one with usage says about the answer."""
    kinds, last = [], None
    async with session.post(url + path, json=BODIES[path], timeout=aiohttp.ClientTimeout(total=500)) as response:
        assert response.status == 200
        async for line in response.content:
            data = line.decode().strip().removeprefix("data: ")
            if not data.startswith("{"):
                continue
            event = json.loads(data)
            kinds.append(event.get("type") or json.dumps([each["delta"] for each in event["choices"]]))
            usage = event.get("usage") or event.get("response", {}).get("usage")
            last = usage.get("completion_tokens", usage.get("output_tokens")) if usage else last
    return kinds, last


@pytest.mark.parametrize("path", BODIES)
async def test_hidden_reasoning_of_a_minute(session: aiohttp.ClientSession, pair: Pair, path: str) -> None:
    pull = pair.prefill.spec.order is Order.PREFILL_FIRST
    orders = [Order.PREFILL_FIRST] if pull else [Order.DECODE_FIRST, Order.CONCURRENT]
    direct = await _stream(session, pair.decode.url, path)
    for order in orders:
        with gateway(order, [pair.prefill], [pair.decode], pair.logs, flags=_FLAGS) as front:
            assert await _stream(session, front.url, path) == direct
            state = front.state()
            assert {name: count for name, count in state["outcomes"].items() if count} == {"split": 1}
            assert not any(state["retries"].values())
    assert direct[1] == _TOKENS
