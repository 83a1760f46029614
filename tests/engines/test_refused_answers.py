"""Requests that vLLM refuses, with a prompt of 4,000 tokens: vLLM's own answer, and nearly always without a prefill."""

import json
import random
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from benchmarks.soak.results import print_line
from pdx_api.names import Order
from pdx_proxy.payload.decisions import COMPLETIONS, RESPONSES
from tests.engines.conftest import Pair, running_engines
from tests.engines.support.harness import MODEL, gateway, tiny_spec
from tests.unit.proxy.payload.test_answer_members import BODIES, ask_vllm

pytestmark = pytest.mark.soak
_LENGTH: Final = 8_192
_TOKENS: Final = 4_000
_REQUESTS: Final = 300
_MOST_PREFILLS: Final = 0.15


@pytest.fixture(scope="module")
def pair(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    place = tmp_path_factory.mktemp("models") / "long"
    shutil.copytree(tiny_model, place)
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**config, "max_position_embeddings": _LENGTH}))
    spec = tiny_spec(place, order="PrefillFirst", connector="NIXL")
    spec = spec.model_copy(update={"engine": spec.engine.model_copy(update={"max_model_len": _LENGTH})})
    with running_engines(spec, tmp_path_factory.mktemp("refused")) as pair:
        yield pair


def _send(url: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """The status, and the error's type and text."""
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            answer.read()
            return answer.status, None
    except urllib.error.HTTPError as error:
        error_object = json.loads(error.read())["error"]
        return error.code, (error_object["type"], error_object["message"])


def _prefills(pair: Pair) -> float:
    """Tokens that P has computed."""
    page = urllib.request.urlopen(f"{pair.prefill.url}/metrics", timeout=30).read().decode()
    return sum(
        float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith("vllm:prompt_tokens_total{")
    )


def test_a_refusal_costs_no_prefill(pair: Pair) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    chance = random.Random(seed)
    refused = [body for body, accepts in zip(BODIES, ask_vllm(), strict=True) if not accepts]
    different, prefills, counted = [], 0, 0
    with gateway(Order.PREFILL_FIRST, [pair.prefill], [pair.decode], pair.logs) as front:
        for number, (path, body) in enumerate(chance.sample(refused, _REQUESTS)):
            text = " ".join(chance.choice(("ba", "de", "fi", "go")) for _ in range(_TOKENS // 2))
            prompt = {"prompt": text} if path == COMPLETIONS else {"messages": [{"role": "user", "content": text}]}
            prompt = {"input": text} if path == RESPONSES else prompt
            asked = {**body, **prompt, "model": MODEL}
            direct = _send(pair.decode.url, path, asked)
            if direct[0] == 200:
                continue
            counted += 1
            before = _prefills(pair)
            found = _send(front.url, path, asked)
            prefills += _prefills(pair) > before
            if found != direct:
                different.append((number, path, body, direct, found))
    print_line("refused", {"seed": seed, "refused": counted, "prefills": prefills, "different": len(different)})
    assert not different, (seed, len(different), different[:5])
    assert counted >= _REQUESTS * 0.9
    assert prefills <= counted * _MOST_PREFILLS, (seed, prefills, counted)
