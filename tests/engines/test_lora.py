"""LoRA adapters from `model.adapters`, on real vLLM: P and D compute with the adapter, and its KV moves."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from safetensors.numpy import save_file

from pdx_api.names import Role
from pdx_api.spec.model import Adapter
from pdx_cli.checks.engines import unequal_adapters
from pdx_cli.sources.answers import names_of
from pdx_cli.sources.observation import Engine as Observed
from pdx_cli.sources.observation import Observation
from tests.engines.conftest import Pair, running_engines
from tests.engines.support import campaign
from tests.engines.support.harness import (
    Gateway,
    complete,
    eventually,
    make_prompt,
    tiny_spec,
)

ADAPTER = "tiny-lora"
RANK = 8
SIZES = {"q_proj": (256, 256), "v_proj": (256, 128)}
"""Inputs and outputs of the tiny model's projections."""


def write_adapter(directory: Path) -> Path:
    """An adapter in PEFT's form, with random weights that are large enough to change greedy text."""
    directory.mkdir()
    generator = np.random.default_rng(7)
    weights = {}
    for layer in range(4):
        for name, (inputs, outputs) in SIZES.items():
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            for part, shape in (("A", (RANK, inputs)), ("B", (outputs, RANK))):
                found = generator.standard_normal(shape, np.float32) * np.float32(0.1)
                weights[f"{prefix}.lora_{part}.weight"] = found
    save_file(weights, directory / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 16, "target_modules": list(SIZES), "bias": "none"}
    (directory / "adapter_config.json").write_text(json.dumps({**config, "task_type": "CAUSAL_LM"}))
    return directory


@pytest.fixture(scope="module")
def pair(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    logs = tmp_path_factory.mktemp("lora")
    spec = tiny_spec(tiny_model, order="PrefillFirst")
    adapter = Adapter(name=ADAPTER, path=str(write_adapter(logs / "adapter")))
    spec = spec.model_copy(update={"model": spec.model.model_copy(update={"adapters": [adapter]})})
    with running_engines(spec, logs) as engines:
        yield engines


async def test_an_adapters_text_is_a_single_engines_and_its_kv_moves(
    session: aiohttp.ClientSession, front: Gateway, pair: Pair
) -> None:
    prompt = make_prompt(campaign.fresh(), 120)
    texts: list[str] = []
    # The same prompt: P's and D's caches keep its KV with and without the adapter apart.
    for model in (ADAPTER, "tiny", ADAPTER):
        body = {"prompt": prompt, "max_tokens": 24, "model": model}
        before = pair.decode.external_tokens
        got = await complete(session, front.url, body)
        assert got.status == 200, got.text
        alone = await complete(session, pair.prefill.url, body)
        assert got.text == alone.text
        if len(texts) < 2:
            expected = before + got.usage["prompt_tokens"]
            await eventually(lambda e=expected: pair.decode.external_tokens == e, 20, f"{model}: no KV has moved")
        texts.append(got.text)
    assert texts[0] == texts[2] != texts[1]


async def test_the_gateway_lists_adapters_as_models(session: aiohttp.ClientSession, front: Gateway) -> None:
    async with session.get(f"{front.url}/v1/models") as answer:
        assert [card["id"] for card in (await answer.json())["data"]] == ["tiny", ADAPTER]
    refused = await complete(session, front.url, {"prompt": "x", "model": "other"})
    assert refused.status == 404


async def test_an_adapter_that_one_side_lacks_is_detected(session: aiohttp.ClientSession, pair: Pair) -> None:
    async with session.get(f"{pair.prefill.url}/v1/models") as answer:
        names = names_of(await answer.read())
    assert names == ("tiny", ADAPTER)
    prefill, decode = Observed("p", Role.PREFILL, names=names), Observed("d", Role.DECODE, names=names[:1])
    (finding,) = unequal_adapters(Observation("m", datetime.now(UTC), engines=(prefill, decode)))
    assert finding.cause == "AdapterMissing"
