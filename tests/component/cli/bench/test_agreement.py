"""The same requests by `pdx bench` and by vLLM's own client of `vllm bench serve`, in virtual time and in both orders.

In real time, with the whole of that tool and 2,000 requests: `python -m benchmarks.bench agreement-sim`.
"""

import asyncio
import importlib.util
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import aiohttp
import pytest

from benchmarks.bench.agreement import TOLERANCE
from benchmarks.bench.requests import send_times
from benchmarks.bench.tools import Figures
from benchmarks.bench.virtual_time import run_virtually
from pdx_cli.bench.analysis.steps import Slo
from pdx_cli.bench.load.connection import Server
from pdx_cli.bench.load.generator import Generator, Shape, Step
from pdx_cli.bench.load.workload import Planned
from pdx_cli.bench.results.other_tools import as_vllm
from pdx_cli.bench.statistics import quantile
from pdx_sim import SimEngine, SimSettings
from tests.component.cli.programs import TEST_SECONDS

pytestmark = pytest.mark.timeout(TEST_SECONDS)
COUNT, RATE = 250, 25.0
ENGINES = SimSettings(step_seconds=0.02, step_sequence_seconds=2e-4, step_token_seconds=5e-5)


@pytest.fixture
def client() -> ModuleType:
    """vLLM's file with the requests of its benchmark, without the rest of vLLM, whose import takes ten seconds."""
    package = importlib.util.find_spec("vllm")
    if package is None or package.origin is None:
        pytest.skip("vLLM is not installed: run `make install`")
    file = Path(package.origin).parent / "benchmarks" / "lib" / "endpoint_request_func.py"
    spec = importlib.util.spec_from_file_location("endpoint_request_func", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look their annotations up there
    spec.loader.exec_module(module)
    return module


def planned() -> list[Planned]:
    """Requests at the times that the tool would draw."""
    rng = random.Random(1)
    times = enumerate(send_times(COUNT, RATE, 7))
    return [Planned(i, at, rng.randint(200, 1000), rng.randint(4, 16), ((-1 - i, 0),)) for i, at in times]


async def by_pdx(url: str, requests: Sequence[Planned]) -> Figures:
    generator = Generator(Server.of(url), Shape("sim"), asyncio.get_running_loop().time)
    try:
        outcome = await generator.run(Step(iter(requests), requests[-1].at + 1, 0.0, 60.0, "salt"))
    finally:
        generator.close()
    return Figures.read(as_vllm(outcome.records, Slo(9, 9), rate=RATE, model="sim", date=""))


async def by_vllm(url: str, requests: Sequence[Planned], client: ModuleType) -> Figures:
    """As `benchmark` and `calculate_metrics` of vLLM 0.32 (benchmarks/serve.py) send and count."""
    loop, shape = asyncio.get_running_loop(), Shape("sim")
    began = loop.time()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one(request: Planned) -> Any:
            await asyncio.sleep(began + request.at - loop.time())
            query = client.RequestFuncInput(
                prompt=json.loads(shape.body(request, "salt"))["prompt"],
                api_url=f"{url}/v1/completions",
                prompt_len=request.prompt,
                output_len=request.output,
                model="sim",
                ignore_eos=True,
            )
            return await client.async_request_openai_completions(query, session)

        outputs = await asyncio.gather(*map(one, requests))
    seconds = loop.time() - began
    assert all(each.success for each in outputs), [each.error for each in outputs if not each.success][:1]
    ttfts = sorted(1000 * each.ttft for each in outputs)
    tpots = sorted(1000 * (each.latency - each.ttft) / (each.output_tokens - 1) for each in outputs)
    tokens = sum(each.output_tokens for each in outputs)
    (first, first_p99), (each, each_p99) = (
        (quantile(values, 0.5), quantile(values, 0.99)) for values in (ttfts, tpots)
    )
    return Figures(first, first_p99, each, each_p99, len(outputs) / seconds, tokens / seconds, len(outputs), 0)


async def both(client: ModuleType, first: str) -> dict[str, Figures]:
    """One engine without a gateway, whose limits of legs would depend on what it has served before."""
    engine, requests = SimEngine(ENGINES), planned()
    await engine.start()
    try:
        found = {}
        for tool in (first, "pdx" if first == "vllm" else "vllm"):
            work = by_pdx(engine.url, requests) if tool == "pdx" else by_vllm(engine.url, requests, client)
            found[tool] = await work
        return found
    finally:
        await engine.stop()


@pytest.mark.parametrize("first", ["vllm", "pdx"])
def test_both_tools_report_the_same(client: ModuleType, first: str) -> None:
    found = run_virtually(both(client, first))
    assert found["pdx"].completed == found["vllm"].completed == COUNT
    for name, tolerance in TOLERANCE.items():
        theirs, own = (getattr(found[tool], name) for tool in ("vllm", "pdx"))
        assert own == pytest.approx(theirs, rel=tolerance), (name, found)
